"""Rows of other settings and of the paper's budget: how far from rows of one budget, and what long trainings brought."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from pages.common import in_points
from sosn.reproduce.claims import find
from sosn.reproduce.ledger import Entry, as_it_is_now, gap
from sosn.reproduce.mini_imagenet import OTHER, SHOTS, TABLE
from sosn.reproduce.row import LONG, Row

BESIDE = {  # what rows are held against
    "unchanged": "sigme", "centred": "sigme", "centred-asinhe": "asinhe", "centred-none": "none", "long": "sigme",
    "long-centred": "long",
}  # fmt: skip
CURVES = "long.png"


def differences(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """What rows of other settings and of the paper's budget are ahead of those that they stand beside, in a sentence."""
    told = []
    for row in rows if rows[0].group in (OTHER, LONG) else ():
        name, protocol = row.id.rsplit("-", 1)
        other = find(TABLE, f"{BESIDE[name]}-{protocol}")
        ahead = gap(as_it_is_now(entries, row), as_it_is_now(entries, other), row.measures[0])
        if ahead:
            told.append(f"`{row.id}` − `{other.id}` {in_points(ahead)}")
    return [f"Differences of the same seed, points ± 95% over episodes: {', '.join(told)}.\n"] if told else []


def went_on(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """When validation was best in long trainings, and how it ended."""
    told = []
    for row, entry in _judged(rows, entries):
        steps, accuracies = entry["validation"]["steps"], entry["validation"]["accuracy"]
        best = max(range(len(steps)), key=accuracies.__getitem__)
        ends = f"{100 * accuracies[best]:.1f}% after {steps[best]:,} and {100 * accuracies[-1]:.1f}% after {steps[-1]:,}"
        told.append(f"`{row.id}` {ends}")
    if not told:
        return []
    first = "On the episodes that choose the weights, accuracy was highest, and at the end of training"
    return [f"{first}: {'; '.join(told)}.\n", f"![Accuracy on validation episodes over training]({CURVES})\n"]


def _judged(rows: Sequence[Row], entries: Sequence[Entry]) -> list[tuple[Row, Entry]]:
    """Long trainings whose validation was kept, of one episode a step."""
    return [
        (row, entry)
        for row in rows
        if row.group == LONG
        for entry in as_it_is_now(entries, row)
        if entry.get("validation", {}).get("steps")
    ]


def curves(rows: Sequence[Row], entries: Sequence[Entry]) -> Figure | None:
    """Validation accuracy over long trainings, a part for each protocol; None if there is none."""
    judged = _judged(rows, entries)
    if not judged:
        return None
    figure = Figure((7.6, 3.2), layout="constrained")
    for axes, protocol in zip(figure.subplots(1, len(SHOTS)), SHOTS, strict=True):
        for row, entry in judged:
            if row.id.endswith(protocol):
                kept = entry["validation"]
                heights = [100 * one for one in kept["accuracy"]]
                axes.plot([step / 1000 for step in kept["steps"]], heights, label=row.remark.split(",")[0])
        axes.set_title(protocol)
        axes.set_xlabel("thousand episodes")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False) if axes.lines else None
    figure.supylabel("accuracy, %")
    return figure
