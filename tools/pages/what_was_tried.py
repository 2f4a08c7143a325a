"""docs/reproduction/what-was-tried.md: what two stages and test-time augmentation bring."""

from collections.abc import Sequence

from pages.ledger import TITLES, current_entries, figure, points
from pages.text import accuracy, percent, read, table
from sosn.reproduce.claims import MINI, find
from sosn.reproduce.ledger import Entry, gap, of_row
from sosn.reproduce.table import TABLES

AUGMENTED = ("mini-imagenet", "omniglot", "omniglot-5shot")


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    current = current_entries(entries)
    return {
        "one-stage": figure(current, MINI, "sigme-5w1s", "val", "5w1s"),
        "two-stages": figure(current, MINI, "best-5w1s", "val", "5w1s"),
        "stages": _stages(current),
        "test-time": _test_time(),
    }


def _stages(entries: Sequence[Entry]) -> str:
    """Second stages minus the first stages that they start from, on the same episodes."""
    lines = []
    for row in (row for rows in TABLES.values() for row in rows if row.start):
        first = find(row.table, row.start)
        for measure in row.measures:
            second, start = (of_row(entries, one.table, one.id) for one in (row, first))
            if ahead := gap(second, start, measure):
                where = [TITLES[row.table], f"`{row.id}`", f"`{first.id}`", f"{measure.split} {measure.protocol}"]
                lines.append([*where, points(ahead), str(ahead.seeds)])
    head = ("dataset", "second stage", "first stage", "measured on", "second minus first, points", "seeds")
    return table(head, lines) if lines else "\nNot run.\n"


def _test_time() -> str:
    """What test-time augmentation adds to shipped models, from files of benchmarks/copies.py."""
    lines = []
    for model in AUGMENTED:
        for one in read(f"results/test-time-{model}.json")["rows"]:
            gain = percent(one["difference"], one["ci95_difference"]) if one["setting"] else ""
            settings = f"`{one['setting'].replace(',', ' ')}`" if one["setting"] else "none"
            lines.append([f"`{model}`", f"{one['way']}-way {one['shot']}-shot", settings, accuracy(one), gain])
    return table(("model", "episodes", "augmentation", "accuracy on val, %", "gain, points"), lines)
