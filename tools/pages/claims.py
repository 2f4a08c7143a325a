"""What the paper says in words, held against differences between rows and against experiments."""

from collections.abc import Sequence

from pages.common import TITLES, as_table, in_points
from sosn.reproduce.claims import CLAIMS, TABLE, Claim
from sosn.reproduce.ledger import Entry, Gap, of_row

BURST = "patch 3×3"


def _verdict(ours: Gap, paper: float | None) -> str:
    """What the first row is beside the second, as far as several trainings and the interval can tell, and beside the paper."""
    if ours.seeds < 2:
        return "– (one seed)"
    told = "ahead" if ours.mean > ours.ci95 else "behind" if ours.mean < -ours.ci95 else "not told apart"
    apart = 0.0 if paper is None else 100 * ours.mean - paper
    return told if abs(apart) <= 100 * ours.ci95 else f"{told} ({'more' if apart > 0 else 'less'} than in the paper)"


def overview(entries: Sequence[Entry]) -> str:
    """All claims that differences bear on, a line a dataset: the least and the most of the paper's differences and of ours."""
    lines = []
    for claim in CLAIMS:
        for name in dict.fromkeys(one.table for one in claim.contrasts):
            own = [one for one in claim.contrasts if one.table == name]
            found = [(one.paper, ours, one.of_all_seeds(entries)) for one in own if (ours := one.ours(entries))]
            if found:
                printed = [paper for paper, _, _ in found if paper is not None]
                means = [100 * (ours.mean if mean is None else mean) for _, ours, mean in found]
                told = [_verdict(ours, paper) for paper, ours, _ in found]
                cells = [_between(printed), _between([100 * ours.mean for _, ours, _ in found]), _between(means)]
                verdicts = ", ".join(f"{told.count(one)} {one}" for one in dict.fromkeys(told))
                lines.append([claim.claim.removesuffix("."), TITLES[name], *cells, f"{len(found)} of {len(own)}", verdicts])
    head = ("claim", "", "the paper, points", "ours, points", "means of all seeds", "run", "verdicts")
    return as_table(head, lines) if lines else ""


def _between(points: Sequence[float]) -> str:
    """The least and the most of some differences, or the single one."""
    ends = dict.fromkeys(f"{one:+.2f}" for one in (min(points), max(points))) if points else ()
    return " to ".join(ends)


def claim_parts(claim: Claim, entries: Sequence[Entry]) -> list[str]:
    """A claim, its quotation, the differences that bear on it and its experiments."""
    parts = [f"### {claim.claim}\n", f"> {claim.quote}\n", *([f"{claim.note}\n"] if claim.note else [])]
    lines = []
    for one in claim.contrasts:
        ours, paper = one.ours(entries), "" if one.paper is None else f"{one.paper:+.2f}"
        if ours:
            pair = (f"`{one.first}`", f"`{one.second}`", TITLES[one.table], one.protocol, one.split)
            points = (in_points(ours), in_points(one.ours(entries, "batch")), str(ours.seeds))
            means = one.of_all_seeds(entries)
            lines.append((*pair, paper, *points, "" if means is None else f"{100 * means:+.2f}", _verdict(ours, one.paper)))
    if lines:
        head = (
            "row",
            "minus",
            "",
            "",
            "split",
            "paper, points",
            "ours, points",
            "batch",
            "seeds",
            "means of all",
            "the first is",
        )
        parts.append(as_table(head, lines))
    told = [entry for one in claim.experiments for entry in of_row(entries, TABLE, one.id)]
    for kind, show in (("rank", _ranks), ("burstiness", _bursts)):
        own = [entry for entry in told if entry["row"].startswith(kind)]
        if own:
            parts.append(show(own))
    wanted = len(claim.contrasts) + len(claim.experiments)
    done = len(lines) + len({entry["row"] for entry in told})
    if done < wanted:
        parts.append(f"{wanted - done} of {wanted} measurements not run.\n")
    return parts


def _ranks(entries: Sequence[Entry]) -> str:
    head = (
        "", "model", "seed", "image side", "N", "rank", "full rank, %", "effective rank", "after the norm: rank", "effective",
    )  # fmt: skip
    lines = []
    for entry in entries:
        for one in entry["results"]:
            size = f"**{one['size']}**" if one["trained"] else str(one["size"])
            cells = (TITLES[entry["of"]["table"]], f"`{entry['of']['row']}`", str(entry["seed"]), size, str(one["vectors"]))
            own = (f"{one['rank']:.1f} of {one['features']}", f"{100 * one['full_rank']:.0f}", f"{one['effective_rank']:.1f}")
            lines.append((*cells, *own, f"{one['normalised_rank']:.1f}", f"{one['normalised_effective_rank']:.1f}"))
    trained = [(entry["of"]["table"], one) for entry in entries for one in entry["results"] if one["trained"]]
    full = (f"{TITLES[name]} {one['size']}²: {100 * one['full_rank']:.0f}%" for name, one in trained)
    told = f"Of full rank at the size that a model was trained at: {', '.join(full)}."
    return f"Matrices of validation images; the size that a model was trained at is bold. {told}\n\n" + as_table(head, lines)


def _bursts(entries: Sequence[Entry]) -> str:
    head = (
        "model", "seed", "query changed by", "descriptor moves, %", "of the way to another query, %",
        "trace-normalised alone, %", "of the way, %", "scores move, deviations", "answers that change, %",
        "accuracy lost, points",
    )  # fmt: skip
    lines = []
    for entry in entries:
        for one in entry["results"]:
            moved = (one[key] for key in ("descriptor", "descriptor_share", "unnormalised", "unnormalised_share"))
            cells = (f"`{entry['of']['row']}`", str(entry["seed"]), one["change"], *(f"{100 * value:.1f}" for value in moved))
            scores = (f"{one['score']:.2f}", f"{100 * one['answers']:.1f}")
            lines.append((*cells, *scores, f"{100 * round(one['lost'], 12):+.1f} ± {100 * one['lost_ci95']:.1f}"))
    told = (
        f"{entry['of']['row']} {100 * one['descriptor_share']:.0f}% and {100 * one['answers']:.0f}%"
        for entry in entries
        for one in entry["results"]
        if one["change"] == BURST
    )
    return (
        "A random patch, a quarter of the side, is repeated 2×2 or 3×3 in the query; *replaced*: the same square holds what "
        "another query has there, which repeats nothing; *tiled*: the whole query, shrunk, four times; *one feature vector*: "
        "copies of it among the query's "
        f"features. A {BURST} moves descriptors so far on their way to another query, and changes so many answers: "
        f"{', '.join(told)}.\n\n"
    ) + as_table(head, lines)
