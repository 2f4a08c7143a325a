"""Rows of other settings and of the paper's budget: how far from rows of one budget, and what long trainings brought."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from pages.common import in_points
from sosn.reproduce.claims import Contrast
from sosn.reproduce.ledger import Entry, as_it_is_now
from sosn.reproduce.mini_imagenet import SHOTS
from sosn.reproduce.row import LONG, Row

CURVES = "long.png"


def differences(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """What rows of other settings and of the paper's budget are ahead of those that they stand beside, in a sentence."""
    told = []
    for row in rows:
        for other in row.against:
            pair = Contrast(row.table, row.id, other, row.measures[0].protocol)
            if ahead := pair.ours(entries):
                means = pair.of_all_seeds(entries)
                of_all = "" if means is None else f" (means of all seeds {100 * means:+.2f})"
                told.append(f"`{pair.first}` − `{pair.second}` {in_points(ahead)}{of_all}")
    return [f"Differences of the same seeds, points ± 95%, of one seed over episodes: {', '.join(told)}.\n"] if told else []


def best_and_last(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """When validation was best in long trainings, and how it ended."""
    told = []
    for row, episodes, accuracies in _judged(rows, entries):
        best = max(range(len(episodes)), key=accuracies.__getitem__)
        told.append(
            f"`{row.id}` {accuracies[best]:.1f}% after {episodes[best]:,} and {accuracies[-1]:.1f}% after {episodes[-1]:,}"
        )
    if not told:
        return []
    first = "Accuracy on the episodes that choose the weights, at its highest and at the end, after so many training episodes"
    chosen = "Figures above are of the weights at the highest"
    return [f"{first}: {'; '.join(told)}. {chosen}.\n", f"![Accuracy on validation episodes over training]({CURVES})\n"]


def _judged(rows: Sequence[Row], entries: Sequence[Entry]) -> list[tuple[Row, list[int], list[float]]]:
    """Long trainings whose validation was kept: after how many episodes, and accuracies in per cent."""
    judged = []
    for row in rows:
        for entry in as_it_is_now(entries, row) if row.group == LONG else ():
            kept = entry.get("validation", {"steps": [], "accuracy": []})
            each = row.resolve(entry["seed"]).episodes.episodes_per_step
            if kept["steps"]:
                judged.append((row, [each * step for step in kept["steps"]], [100 * one for one in kept["accuracy"]]))
    return judged


def curves(rows: Sequence[Row], entries: Sequence[Entry]) -> Figure | None:
    """Validation accuracy over long trainings, a part for each protocol; None if there is none."""
    judged = _judged(rows, entries)
    if not judged:
        return None
    figure = Figure((7.6, 3.2), layout="constrained")
    for axes, protocol in zip(figure.subplots(1, len(SHOTS)), SHOTS, strict=True):
        for row, episodes, accuracies in judged:
            if row.id.endswith(protocol):
                shift = row.resolve(0).model.options["shift"]
                axes.plot([one / 1000 for one in episodes], accuracies, label=f"β = {shift:g}")
        axes.set_title(protocol)
        axes.set_xlabel("thousand episodes")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False) if axes.lines else None
    figure.supylabel("accuracy, %")
    return figure
