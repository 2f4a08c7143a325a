"""docs/reproduction/mini-imagenet.md: the paper's miniImageNet table beside ours."""

from collections.abc import Sequence

from pages.ledger import current_entries, figure, points, recipe_of, seeds, training_episodes
from pages.text import table
from sosn.reproduce.claims import Contrast, find
from sosn.reproduce.ledger import Entry, of_row
from sosn.reproduce.mini_imagenet import LONGS, METHODS, OTHERS, ROWS, SHOTS, STAGES, TABLE
from sosn.reproduce.row import Row

HEAD = ("model", "rows", "paper", "ours", "ours, batch statistics", "seeds", "parameters", "minutes")


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    current = current_entries(entries)
    groups = {
        "compared": list(METHODS),
        "other": list(OTHERS),
        "long": list(LONGS),
        "best": [name for name, _, _, _ in STAGES],
    }
    tables = {
        f"{group}.{protocol}": _models(current, [f"{name}-{protocol}" for name in names])
        for group, names in groups.items()
        for protocol in SHOTS
    }
    best, first, resnet, resnet_first = (
        recipe_of(TABLE, row) for row in ("best-5w1s", "best-pretrain", "resnet12-5w1s", "resnet12-pretrain")
    )
    return tables | {
        "differences": _differences(current),
        "validation": _validation(current),
        "ties": f"{100 * max((one['ties'] for entry in current for one in entry.get('figures', ())), default=0.0):.1f}",
        "not-run": ", ".join(f"`{row.id}`" for row in ROWS if not of_row(current, TABLE, row.id)),
        "compared.episodes": f"{training_episodes(recipe_of(TABLE, 'sigme-5w1s')):,}",
        "long.episodes": f"{training_episodes(recipe_of(TABLE, 'long-5w1s')):,}",
        "best.batches": f"{first.training.steps:,}",
        "best.images": str(first.episodes.way * (first.episodes.shot + first.episodes.query)),
        "best.episodes": f"{training_episodes(best):,}",
        "resnet.batches": f"{resnet_first.training.steps:,}",
        "resnet.images": str(resnet_first.episodes.way * (resnet_first.episodes.shot + resnet_first.episodes.query)),
        "resnet.episodes": f"{training_episodes(resnet):,}",
    }


def _models(entries: Sequence[Entry], names: Sequence[str]) -> str:
    """A line for each row that was run, on validation classes."""
    lines = []
    for row in (row for name in names for row in ROWS if row.id == name):
        own = of_row(entries, TABLE, row.id)
        protocol = row.measures[0].protocol
        if own:
            accuracies = [figure(entries, TABLE, row.id, "val", protocol, statistics) for statistics in ("running", "batch")]
            size = [seeds(entries, TABLE, [row.id]), f"{own[0]['parameters']:,}", f"{_minutes(entries, own):.0f}"]
            lines.append([row.label, f"`{row.id}`", str(row.paper(protocol) or ""), *accuracies, *size])
    return table(HEAD, lines) if lines else "\nNot run.\n"


def _minutes(entries: Sequence[Entry], own: Sequence[Entry]) -> float:
    """Minutes of training, with the first stage's."""
    return sum(float(entry["seconds"]) + _first_stage(entries, entry) for entry in own) / len(own) / 60


def _first_stage(entries: Sequence[Entry], entry: Entry) -> float:
    first = [one for one in of_row(entries, TABLE, entry.get("start", "")) if one["seed"] == entry["seed"]]
    return sum(float(one["seconds"]) for one in first)


def _differences(entries: Sequence[Entry]) -> str:
    """Rows with other settings minus the rows they change, on the same seeds and episodes."""
    lines = []
    for row in ROWS:
        for other in row.against:
            gap = Contrast(TABLE, row.id, other, row.measures[0].protocol).ours(entries)
            if gap:
                lines.append([f"`{row.id}`", f"`{other}`", points(gap), str(gap.seeds)])
    return table(("first", "second", "difference, points", "seeds"), lines) if lines else "\nNot run.\n"


def long_runs(entries: Sequence[Entry]) -> list[tuple[Row, list[int], list[float]]]:
    """Long trainings whose validation was kept: after how many episodes, and accuracies in per cent."""
    runs = []
    for row in (find(TABLE, f"{name}-{protocol}") for name in LONGS for protocol in SHOTS):
        for entry in of_row(entries, TABLE, row.id):
            kept = entry.get("validation", {"steps": [], "accuracy": []})
            each = row.resolve(entry["seed"]).episodes.episodes_per_step
            if kept["steps"]:
                runs.append((row, [each * step for step in kept["steps"]], [100 * one for one in kept["accuracy"]]))
    return runs


def _validation(entries: Sequence[Entry]) -> str:
    """When validation was best in long trainings, and how it ended."""
    lines = []
    for row, episodes, accuracies in long_runs(entries):
        best = max(range(len(episodes)), key=accuracies.__getitem__)
        ends = [f"{accuracies[best]:.1f}", f"{episodes[best]:,}", f"{accuracies[-1]:.1f}", f"{episodes[-1]:,}"]
        lines.append([f"`{row.id}`", *ends])
    return table(("row", "best, %", "after episodes", "last, %", "after episodes"), lines) if lines else "\nNot run.\n"
