"""Figures of the ledger as pages show them: one meaning of ± for accuracies and for differences."""

import math
from collections.abc import Sequence

from pages.text import ROOT, percent
from sosn.method.base import Statistics
from sosn.recipe.recipe import Recipe
from sosn.reproduce.claims import find
from sosn.reproduce.ledger import Entry, Gap, Summary, of_row, read_ledger, same_recipe, summarise
from sosn.reproduce.row import Measure, Row
from sosn.reproduce.table import TABLES

LEDGER = ROOT / "results/ledger"
TITLES = {"omniglot": "Omniglot", "mini-imagenet": "*mini*ImageNet"}


def current_entries(entries: Sequence[Entry] | None = None) -> list[Entry]:
    """Entries, by default all of the ledger, that were trained with the recipe of their row as it is now."""
    rows = {(row.table, row.id): row for table in TABLES.values() for row in table}
    current = []
    for entry in read_ledger(LEDGER) if entries is None else entries:
        trained = entry.get("of", entry)  # an experiment belongs to the row whose model it measured
        row = rows.get((trained["table"], trained["row"]))
        if row and ("recipe" not in entry or same_recipe(entry, row)):  # the first experiments kept no recipe
            current.append(entry)
    return current


def half_interval(summary: Summary) -> float:
    """Half of the 95% interval: over episodes and, of several seeds, between them too, added in squares."""
    return math.hypot(sum(summary.ci95s) / len(summary.ci95s), summary.between or 0.0)


def summary(entries: Sequence[Entry], row: Row, measure: Measure, statistics: Statistics = "running") -> Summary | None:
    """A row's figure over its seeds, if it was measured."""
    return summarise(of_row(entries, row.table, row.id), measure, statistics)


def figure(
    entries: Sequence[Entry], table: str, row: str, split: str, protocol: str, statistics: Statistics = "running"
) -> str:
    """A row's accuracy ± 95%, empty if there is no such row or it was not measured."""
    planned = next((one for one in TABLES[table] if one.id == row), None)
    measures = (one for one in planned.measures if (one.split, one.protocol) == (split, protocol)) if planned else iter(())
    measure = next(measures, None)
    found = summary(entries, planned, measure, statistics) if planned and measure else None
    return percent(found.mean, half_interval(found)) if found else ""


def seeds(entries: Sequence[Entry], table: str, rows: Sequence[str]) -> str:
    """How many seeds rows have, such as 3 or 1–3."""
    counts = [len(of_row(entries, table, row)) for row in rows]
    ends = dict.fromkeys(str(end) for end in (min(counts, default=0), max(counts, default=0)))
    return "–".join(ends)


def points(gap: Gap | None) -> str:
    """A difference in points ± 95%."""
    return f"{100 * gap.mean:+.2f} ± {100 * gap.ci95:.2f}" if gap else ""


def verdict(gap: Gap | None, paper: float | None) -> str:
    """Whether the first of two rows is ahead, as a claim says; open of one seed, which another training may turn round.

    It does not hold where the first is behind, or where the paper's difference is above our interval and zero is not.
    """
    if gap is None:
        return "not run"
    if gap.seeds > 1 and gap.mean > gap.ci95:
        return "holds"
    if gap.seeds > 1 and (gap.mean < -gap.ci95 or (paper is not None and paper / 100 > gap.mean + gap.ci95)):
        return "does not hold"
    return "open"


def training_episodes(recipe: Recipe) -> int:
    """How many episodes a recipe trains on."""
    return recipe.training.steps * recipe.episodes.episodes_per_step


def recipe_of(table: str, row: str) -> Recipe:
    """The recipe of a row."""
    return find(table, row).resolve(0)
