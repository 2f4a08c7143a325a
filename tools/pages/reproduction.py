"""docs/reproduction.md: which of the paper's claims hold in our runs, and how far its main figure is from ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import integrate, stats

from pages.ledger import current_entries, figure, points, recipe_of, summary, training_episodes, verdict
from pages.text import table
from sosn.reproduce.claims import MINI, OMNIGLOT, Contrast, find
from sosn.reproduce.ledger import Entry, Gap, of_row
from sosn.reproduce.omniglot import PARTITIONS, PROTOCOLS
from sosn.reproduce.row import HEADLINE_SEEDS, Measure
from sosn.reproduce.table import TABLES

ROUNDS = 100  # evaluations of which the authors' script prints the best


@dataclass(frozen=True)
class Line:
    """A claim in a few words and the comparison of two rows that decides it."""

    claim: str
    first: str
    second: str
    protocol: str
    table: str = MINI
    split: str = "val"

    @property
    def contrast(self) -> Contrast:
        return Contrast(self.table, self.first, self.second, self.protocol, self.split)


LINES = (
    Line("SigmE beats no power normalisation, 1-shot", "sigme-5w1s", "none-5w1s", "5w1s"),
    Line("SigmE beats AsinhE, 1-shot", "sigme-5w1s", "asinhe-5w1s", "5w1s"),
    Line("Three permutations help, 1-shot", "permutations-5w1s", "sigme-5w1s", "5w1s"),
    Line("… with a similarity net for each, 1-shot", "streams-5w1s", "sigme-5w1s", "5w1s"),
    Line("Averaging shots (⊗) beats ⊗+F, 5-shot", "sigme-5w5s", "full-5w5s", "5w5s"),
    Line("Averaging shots (⊗) beats ⊗+R, 5-shot", "sigme-5w5s", "ranked-5w5s", "5w5s"),
    Line("SoSN beats Relation Net, 1-shot", "sigme-5w1s", "relation-net-5w1s", "5w1s"),
    Line("SoSN beats Prototypical Net, 5-shot", "sigme-5w5s", "prototypical-5w5s", "5w5s"),
    Line("Larger images help: 84² against 28², 1-shot", "ablation-base", "size-28", "5w1s"),
    Line("Larger images help: 84² against 56², 1-shot", "ablation-base", "size-56", "5w1s"),
)


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    current = current_entries(entries)
    rivals = _omniglot_rivals(current)
    long, compared, small = (recipe_of(MINI, row) for row in ("long-5w1s", "sigme-5w1s", "ablation-base"))
    return {
        "mean-shift": points(Contrast(MINI, "long-centred-5w1s", "long-5w1s", "5w1s").ours(current)),
        "power-norm": points(Contrast(MINI, "sigme-5w1s", "none-5w1s", "5w1s").ours(current)),
        "rivals.ahead": str(sum(gap.mean > gap.ci95 for _, gap in rivals)),
        "rivals.all": str(len(rivals)),
        "rows.run": str(sum(bool(of_row(current, row.table, row.id)) for rows in TABLES.values() for row in rows)),
        "rows.all": str(sum(map(len, TABLES.values()))),
        "rows.trainings": str(sum("figures" in entry for entry in current)),
        "headline.seeds": str(HEADLINE_SEEDS),
        "claims": table(("claim", "paper, points", "ours, points", "seeds", "verdict"), _claims(current, rivals)),
        "seed-spread": _seed_spread(current),
        "distance": _distance(current),
        "best-of-100": f"{best_of(ROUNDS, _half(current)):.1f}",
        "long.episodes": f"{training_episodes(long):,}",
        "long.checkpoints": str(long.training.steps // long.validation.every),
        "long.val-episodes": str(long.validation.val_episodes),
        "long.queries": str(long.episodes.query),
        "long.rate": f"{long.training.learning_rate:g}",
        "compared.episodes": f"{training_episodes(compared):,}",
        "compared.each": str(compared.episodes.episodes_per_step),
        "compared.checkpoints": str(compared.training.steps // compared.validation.every),
        "compared.queries": str(compared.episodes.query),
        "compared.rate": f"{compared.training.learning_rate:g}",
        "ablation.episodes": f"{training_episodes(small):,}",
    }


def best_of(rounds: int, half: float) -> float:
    """Points that the best of several evaluations is above their mean, when one has this 95% interval (a fraction)."""
    highest = integrate.quad(lambda x: x * rounds * stats.norm.pdf(x) * stats.norm.cdf(x) ** (rounds - 1), -10, 10)[0]
    return float(100 * highest * half / 1.96)


def _half(entries: Sequence[Entry]) -> float:
    """The 95% interval over 600 episodes of our run of the paper's model; the paper's own where it has not been run."""
    row = find(MINI, "long-5w1s")
    found, printed = summary(entries, row, row.measures[0]), row.paper("5w1s")
    return found.ci95s[0] if found else (printed.ci95 or 0.0) / 100 if printed else 0.0


def _omniglot_rivals(entries: Sequence[Entry]) -> list[tuple[float | None, Gap]]:
    """What SoSN is ahead of both rivals on Omniglot, in the paper and here: two splits, four protocols."""
    found = []
    for partition in PARTITIONS:
        for protocol in PROTOCOLS:
            for rival in ("relation-net", "prototypical"):
                first, second = (f"{name}-{partition}-{protocol}" for name in ("sigme", rival))
                one = Contrast(OMNIGLOT, first, second, protocol, "test")
                if gap := one.ours(entries):
                    found.append((one.paper, gap))
    return found


def _claims(entries: Sequence[Entry], rivals: Sequence[tuple[float | None, Gap]]) -> list[list[str]]:
    lines = []
    for line in LINES:
        ours, paper = line.contrast.ours(entries), line.contrast.paper
        printed = "" if paper is None else f"{paper:+.2f}"
        lines.append([line.claim, printed, points(ours), str(ours.seeds if ours else 0), verdict(ours, paper)])
    if rivals:
        ahead = sum(gap.mean > gap.ci95 for _, gap in rivals)
        found = "holds at equal budget" if ahead == len(rivals) else "open"
        printed = _ends([paper for paper, _ in rivals if paper is not None])
        points_ahead = f"{_ends([100 * gap.mean for _, gap in rivals])}, ahead in {ahead} of {len(rivals)}"
        count = str(max(gap.seeds for _, gap in rivals))
        lines.append(["SoSN beats Relation Net and Prototypical Net on Omniglot", printed, points_ahead, count, found])
    return [*lines, *_experiments(entries)]


def _experiments(entries: Sequence[Entry]) -> list[list[str]]:
    """The claims that were measured on trained models, not as a difference of accuracies."""
    lines = []
    experiments = {entry["of"]["row"]: entry["results"] for entry in entries if "of" in entry and entry["of"]["table"] == MINI}
    sizes = {one["size"]: one for row in ("size-28", "ablation-base") for one in experiments.get(row, ()) if one["trained"]}
    if {28, 84} <= sizes.keys():
        shares = ", ".join(f"{100 * sizes[size]['full_rank']:.0f}% at {size}²" for size in (28, 84))
        found = "holds" if sizes[84]["full_rank"] > sizes[28]["full_rank"] else "open"
        lines.append(["Larger images give matrices of full rank", "at 224²", shares, "1", found])
    changed = {
        row: one
        for row in ("sigme-5w1s", "none-5w1s")
        for one in experiments.get(row, ())
        if one["change"] == "patch 3×3" and "answers" in one
    }
    if len(changed) == 2:
        with_norm, without = (f"{100 * one['answers']:.0f}%" for one in changed.values())
        ours = f"answers that change: {with_norm} with, {without} without"
        lines.append(["Power normalisation discards repeated textures", "", ours, "1", "open"])
    return lines


def _ends(values: Sequence[float]) -> str:
    """The least and the most of some differences."""
    return " to ".join(dict.fromkeys(f"{end:+.2f}" for end in (min(values), max(values)))) if values else ""


def _seed_spread(entries: Sequence[Entry]) -> str:
    """How far the seeds of SoSN's 1-shot row lie apart, in points."""
    found = summary(entries, find(MINI, "sigme-5w1s"), Measure("val", 5, 1, 15))
    return f"{100 * (max(found.accuracies) - min(found.accuracies)):.1f}" if found else ""


def _distance(entries: Sequence[Entry]) -> str:
    """The paper's main figure beside our run of its model."""
    lines = []
    for protocol, words in (("5w1s", "5-way 1-shot"), ("5w5s", "5-way 5-shot")):
        row = find(MINI, f"long-{protocol}")
        printed, ours = row.paper(protocol), summary(entries, row, row.measures[0])
        cells = [figure(entries, MINI, row.id, "val", protocol, statistics) for statistics in ("running", "batch")]
        far = f"{100 * ours.mean - printed.accuracy:+.1f}" if ours and printed else ""
        lines.append([words, str(printed), *cells, far])
    head = ("*mini*ImageNet", "paper, test", "our run, val", "our run, val, batch statistics", "ours minus paper, points")
    return table(head, lines)
