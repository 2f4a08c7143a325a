"""The ledger: one JSON document a run, with its recipe, its figures and what they were measured on."""

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
    """What is known of a run before anything is measured: no dates, no paths; where it started is told by its row."""
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
    """Put a measured figure into an entry."""
    entry["missing"].pop(measure.images, None)
    asked = result.way * result.query
    right = [round(asked * accuracy) for accuracy in result.per_episode]  # answers, so that rows can be compared in pairs
    entry["figures"].append({"split": measure.split, "protocol": measure.protocol, **result.to_json(), "right": right})


def find_figure(entry: Entry, measure: Measure, statistics: str) -> dict[str, Any] | None:
    """The figure of an entry for a measure, if it was measured."""
    wanted = {"split": measure.split, "way": measure.way, "shot": measure.shot, "query": measure.query}
    wanted["statistics"] = statistics
    if measure.column:
        wanted["protocol"] = measure.protocol
    return next((one for one in entry["figures"] if wanted.items() <= one.items()), None)


def write_entry(path: Path, entry: Entry) -> None:
    """Keep an entry, with a line for each value and for each list of numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(entry, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n *-?\d[^\[\]{}\"]*\]", lambda numbers: f"[{' '.join(numbers[0][1:-1].split())}]", text)
    write_atomically(path, f"{text}\n".encode())


def read_entry(path: Path) -> Entry:
    entry: Entry = json.loads(path.read_text("utf-8"))
    return entry


def read_ledger(folder: Path) -> list[Entry]:
    """All entries below a folder, by table, row and seed."""
    return [read_entry(path) for path in sorted(folder.glob("*/*.json"))]


def ledger_file(folder: Path, entry: Entry) -> Path:
    """Where a ledger keeps an entry."""
    return folder / str(entry["table"]) / f"{entry['row']}-seed{entry['seed']}.json"


def same_training(entry: Entry, other: Entry) -> bool:
    """Whether two entries are of one training; the oldest have no digest of their weights."""
    keys = ["seed", "seconds", "versions", *(["weights"] if "weights" in entry and "weights" in other else [])]
    return all(entry.get(key) == other.get(key) for key in keys)


def keep(folder: Path, entry: Entry) -> bool:
    """Put an entry into a ledger, unless one of another training stands there; whether it was put."""
    file = ledger_file(folder, entry)
    if file.exists() and not same_training(read_entry(file), entry):
        return False
    write_entry(file, entry)
    return True


def same_recipe(entry: Entry, row: Row) -> bool:
    """Whether an entry was trained with the row's recipe as it is now.

    Options that came later count with their defaults, and one that is no more makes no difference where it was off.
    """
    try:
        return without_place(from_table(entry["recipe"], "the entry")) == without_place(row.resolve(entry["seed"]))
    except UsageError:  # a method that is no more, or an option that is no more and was on
        return False


@dataclass(frozen=True)
class Summary:
    """A figure over seeds, as fractions: mean, half of its 95% interval over seeds (Student's t), each seed's own figures."""

    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    ci95s: tuple[float, ...]  # over episodes, of each seed

    @property
    def mean(self) -> float:
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def between(self) -> float | None:
        return interval(self.accuracies)

    @property
    def half(self) -> float:
        """Half of the 95% interval: over seeds and episodes where there are several seeds, else over episodes."""
        return math.hypot(self.between or 0.0, sum(self.ci95s) / len(self.ci95s))


def interval(values: Sequence[float]) -> float | None:
    """Half of the 95% interval of the mean of a few values (Student's t); None of a single one."""
    if len(values) < 2:
        return None
    from scipy import stats

    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return float(stats.t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))


def of_row(entries: Iterable[Entry], table: str, row: str) -> list[Entry]:
    """The entries of a row, by seed."""
    own = (entry for entry in entries if (entry["table"], entry["row"]) == (table, row))
    return sorted(own, key=lambda entry: int(entry["seed"]))


def as_it_is_now(entries: Iterable[Entry], row: Row) -> list[Entry]:
    """The entries of a row that were trained with its recipe of today, by seed."""
    return [entry for entry in of_row(entries, row.table, row.id) if same_recipe(entry, row)]


def summarise(entries: Sequence[Entry], measure: Measure, statistics: str) -> Summary | None:
    """A figure of one row over its seeds; None where no seed has it."""
    found = [(entry["seed"], figure) for entry in entries if (figure := find_figure(entry, measure, statistics))]
    if not found:
        return None
    seeds, figures = zip(*found, strict=True)
    return Summary(seeds, tuple(one["accuracy"] for one in figures), tuple(one["ci95"] for one in figures))


@dataclass(frozen=True)
class Gap:
    """How much one row is ahead of another, as a fraction, over seeds that both have.

    The interval is that over episodes, in pairs where answers were kept, and where there are several seeds that between seeds
    too, added in squares: seeds share their episodes.
    """

    mean: float
    ci95: float
    seeds: int


def _comparable(one: Entry, other: Entry, figure: dict[str, Any], against: dict[str, Any]) -> bool:
    """Whether two figures are of the same episodes, or of data at two sizes, which cannot be the same."""
    sizes = [entry["recipe"]["data"].get("size") for entry in (one, other)]
    return bool(figure["fingerprint"] == against["fingerprint"] or sizes[0] != sizes[1])


def gap(first: Sequence[Entry], second: Sequence[Entry], measure: Measure, statistics: str = "running") -> Gap | None:
    """The first row's figure minus the second's, on the same episodes unless image sizes differ; None if no seed has both."""
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
    """Half of the 95% interval over episodes of a mean difference; in pairs, if all answers were kept.

    Episodes of images at two sizes are drawn alike, and where they are not, pairs of other episodes do no harm.
    """
    if not all("right" in a and "right" in b and len(a["right"]) == len(b["right"]) for a, b in pairs):
        return sum(math.hypot(a["ci95"], b["ci95"]) for a, b in pairs) / len(pairs)
    asked = pairs[0][0]["way"] * pairs[0][0]["query"]
    ahead = [torch.tensor(a["right"], dtype=torch.float64) - torch.tensor(b["right"], dtype=torch.float64) for a, b in pairs]
    return mean_ci95(torch.stack(ahead).mean(0) / asked)[1]
