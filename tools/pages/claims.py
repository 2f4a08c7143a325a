"""docs/reproduction/claims.md: every claim in the paper's words, with all comparisons that bear on it."""

from collections.abc import Sequence

from pages.ledger import TITLES, current_entries, points, verdict
from pages.text import table
from sosn.reproduce.claims import CLAIMS, Claim
from sosn.reproduce.ledger import Entry
from sosn.reproduce.paper import PUBLISHED, ahead

HEAD = ("first", "second", "dataset", "protocol", "split", "paper", "ours", "ours, batch statistics", "seeds", "verdict")
NETS = {"84": ("", "+Multiple-similarity Net."), "224": (" (224×224)", " (224×224)+Mult.-sim. Net.")}


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    current = current_entries(entries)
    quotes = {f"quote.{claim.id}": f"\n> {claim.quote}\n" for claim in CLAIMS}
    return quotes | {claim.id: _comparisons(claim, current) for claim in CLAIMS if claim.contrasts} | _misprints()


def _comparisons(claim: Claim, entries: Sequence[Entry]) -> str:
    lines, waiting = [], []
    for one in claim.contrasts:
        ours, paper = one.ours(entries), one.paper
        pair = [f"`{one.first}`", f"`{one.second}`"]
        if ours is None:
            waiting.append(" − ".join(pair))
            continue
        printed = "" if paper is None else f"{paper:+.2f}"
        batch = points(one.ours(entries, "batch"))
        where = [TITLES[one.table], one.protocol, one.split]
        lines.append([*pair, *where, printed, points(ours), batch, str(ours.seeds), verdict(ours, paper)])
    return (table(HEAD, lines) if lines else "\n") + (f"\nNot run: {', '.join(waiting)}.\n" if waiting else "")


def _misprints() -> dict[str, str]:
    """What the printed rows say where the paper's text says something else, in points."""
    found = {}
    for size, (one, several) in NETS.items():
        for protocol in ("5w1s", "5w5s"):
            rows = (f"SoSN(⊗)+Permutation+SigmE{end}" for end in (one, several))
            ahead_by = (f"{ahead('mini-imagenet', row, f'SoSN(⊗)+SigmE{one}', protocol):+.2f}" for row in rows)
            found[f"permutations.{size}.{protocol}"] = " and ".join(ahead_by)
    for protocol in ("5w1s", "5w5s"):
        found[f"sigme.{protocol}"] = f"{ahead('mini-imagenet', 'SoSN(⊗)+SigmE', 'SoSN(⊗) (no Power Norm.)', protocol):+.2f}"
    gains = [
        figure.accuracy - PUBLISHED[table]["SoSN"][protocol].accuracy
        for table in ("open-mic-1", "open-mic-2")
        for protocol, figure in PUBLISHED[table]["SoSN+SigmE"].items()
    ]
    return found | {"sigme.open-mic": f"{min(gains):+.1f} to {max(gains):+.1f}"}
