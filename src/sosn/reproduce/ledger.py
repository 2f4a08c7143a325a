"""The ledger: one JSON file per run, with its recipe, its figures and the data they were measured on."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sosn.errors import UsageError
from sosn.evaluation.protocol import Evaluation, mean_ci95
from sosn.method.base import Method
from sosn.recipe.recipe import Recipe, from_table, without_place
from sosn.reproduce.row import Measure, Row
from sosn.training.run import Run
from sosn.util.files import file_digest, read_json, write_atomically

ENTRY_FILE = "entry.json"  # in a run folder
Entry = dict[str, Any]


def new_entry(row: Row, recipe: Recipe, run: Run, method: Method, changed: Sequence[str], quick: bool) -> Entry:
    """Create the entry of a run, without figures. It has no dates and no paths; the row names the start."""
    recipe = replace(recipe, training=replace(recipe.training, start=""))
    about, result = run.about(), read_json(run.result)
    data = {
        split: {"fingerprint": part["fingerprint"], "images": part["images"], "classes": len(part["classes"])}
        for split, part in about["data"].items()
    }
    return {
        "table": row.table, "row": row.id, "label": row.label, "seed": recipe.seed, "quick": quick, "changed": list(changed),
        "recipe_name": row.recipe, "overrides": list(row.words), "start": row.start, "recipe": recipe.to_table(),
        "versions": about["versions"], "machine": about["machine"], "data": data, "seconds": result["seconds"],
        "parameters": method.parameter_count(), "weights": file_digest(run.weights),
        "start_weights": about.get("start", {}).get("weights", ""), "validation": run.validations(), "figures": [],
        "missing": {},
    }  # fmt: skip


def add_figure(entry: Entry, measure: Measure, result: Evaluation) -> None:
    """Add a figure to an entry."""
    entry["missing"].pop(measure.images, None)
    queries = result.way * result.query
    right = [round(queries * accuracy) for accuracy in result.per_episode]  # per episode, for paired comparisons of rows
    entry["figures"].append({"split": measure.split, "protocol": measure.protocol, **result.to_json(), "right": right})


def find_figure(entry: Entry, measure: Measure, statistics: str) -> dict[str, Any] | None:
    """Return the figure of an entry for a measure, or None if it is missing."""
    wanted = {"split": measure.split, "way": measure.way, "shot": measure.shot, "query": measure.query}
    wanted["statistics"] = statistics
    if measure.column:
        wanted["protocol"] = measure.protocol
    return next((one for one in entry["figures"] if wanted.items() <= one.items()), None)


def write_entry(path: Path, entry: Entry) -> None:
    """Write an entry, with one line for each value and for each list of numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(entry, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n *-?\d[^\[\]{}\"]*\]", lambda numbers: f"[{' '.join(numbers[0][1:-1].split())}]", text)
    write_atomically(path, f"{text}\n".encode())


def read_entry(path: Path) -> Entry:
    entry: Entry = json.loads(path.read_text("utf-8"))
    return entry


def read_ledger(folder: Path) -> list[Entry]:
    """Return all entries in a folder, sorted by table, row and seed."""
    return [read_entry(path) for path in sorted(folder.glob("*/*.json"))]


def ledger_file(folder: Path, entry: Entry) -> Path:
    """Return the file of an entry in a ledger."""
    return folder / str(entry["table"]) / f"{entry['row']}-seed{entry['seed']}.json"


def same_training(entry: Entry, other: Entry) -> bool:
    """Return whether two entries come from the same training. The oldest entries have no digest of their weights."""
    keys = ["seed", "seconds", "versions", *(["weights"] if "weights" in entry and "weights" in other else [])]
    return all(entry.get(key) == other.get(key) for key in keys)


def keep(folder: Path, entry: Entry) -> bool:
    """Write an entry to a ledger, unless there is one of another training. Returns whether it was written."""
    file = ledger_file(folder, entry)
    if file.exists() and not same_training(read_entry(file), entry):
        return False
    write_entry(file, entry)
    return True


def same_recipe(entry: Entry, row: Row) -> bool:
    """Return whether an entry was trained with the current recipe of the row.

    Options that were added later have their defaults, and removed options are ignored if they were off.
    """
    try:
        return without_place(from_table(entry["recipe"], "the entry")) == without_place(row.resolve(entry["seed"]))
    except UsageError:  # a removed method, or a removed option that was on
        return False


@dataclass(frozen=True)
class Summary:
    """A figure over seeds, as fractions: the mean, its 95% interval, and the figures of each seed."""

    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    ci95s: tuple[float, ...]  # of each seed, over episodes

    @property
    def mean(self) -> float:
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def between(self) -> float | None:
        return interval(self.accuracies)

    @property
    def half(self) -> float:
        """Half the width of the 95% interval over episodes, and also over seeds if there are several."""
        return math.hypot(self.between or 0.0, sum(self.ci95s) / len(self.ci95s))


def interval(values: Sequence[float]) -> float | None:
    """Return half the width of the 95% interval of the mean of a few values (Student's t), or None for a single value."""
    if len(values) < 2:
        return None
    from scipy import stats

    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return float(stats.t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))


def of_row(entries: Iterable[Entry], table: str, row: str) -> list[Entry]:
    """Return the entries of a row, sorted by seed."""
    found = (entry for entry in entries if (entry["table"], entry["row"]) == (table, row))
    return sorted(found, key=lambda entry: int(entry["seed"]))


def summarise(entries: Sequence[Entry], measure: Measure, statistics: str) -> Summary | None:
    """Summarise a figure of one row over its seeds. Returns None if no seed has it."""
    found = [(entry["seed"], figure) for entry in entries if (figure := find_figure(entry, measure, statistics))]
    if not found:
        return None
    seeds, figures = zip(*found, strict=True)
    return Summary(seeds, tuple(one["accuracy"] for one in figures), tuple(one["ci95"] for one in figures))


@dataclass(frozen=True)
class Gap:
    """The mean difference of two rows, as a fraction, over the seeds that both have.

    The interval is over episodes, paired if the answers were recorded. With several seeds, the interval over seeds is added in
    quadrature, because all seeds share their episodes.
    """

    mean: float
    ci95: float
    seeds: int


def _comparable(one: Entry, other: Entry, figure: dict[str, Any], against: dict[str, Any]) -> bool:
    """Return whether two figures have the same episodes, or image sizes that differ, so that they cannot."""
    sizes = [entry["recipe"]["data"].get("size") for entry in (one, other)]
    return bool(figure["fingerprint"] == against["fingerprint"] or sizes[0] != sizes[1])


def gap(first: Sequence[Entry], second: Sequence[Entry], measure: Measure, statistics: str = "running") -> Gap | None:
    """Return the first row's figure minus the second's, on the same episodes unless image sizes differ.

    Returns None if no seed has both figures.
    """
    pairs = []
    for one in first:
        other = next((entry for entry in second if entry["seed"] == one["seed"]), None)
        figures = [find_figure(entry, measure, statistics) for entry in (one, other) if entry]
        if len(figures) == 2 and other and figures[0] and figures[1] and _comparable(one, other, figures[0], figures[1]):
            pairs.append((figures[0], figures[1]))
    if not pairs:
        return None
    differences = [a["accuracy"] - b["accuracy"] for a, b in pairs]
    half = math.hypot(_over_episodes(pairs), interval(differences) or 0.0)
    return Gap(sum(differences) / len(differences), half, len(differences))


def _over_episodes(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> float:
    """Return half the width of the 95% interval of a mean difference over episodes, paired if all answers were recorded.

    Episodes of different image sizes are usually drawn alike; if not, pairing is harmless.
    """
    if not all("right" in a and "right" in b and len(a["right"]) == len(b["right"]) for a, b in pairs):
        return sum(math.hypot(a["ci95"], b["ci95"]) for a, b in pairs) / len(pairs)
    queries = pairs[0][0]["way"] * pairs[0][0]["query"]
    ahead = [torch.tensor(a["right"], dtype=torch.float64) - torch.tensor(b["right"], dtype=torch.float64) for a, b in pairs]
    return mean_ci95(torch.stack(ahead).mean(0) / queries)[1]
