"""The paper's two Open MIC tables, run by run; what is finished is read from its files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sosn.checkpoint.registry import load
from sosn.data.prepare.store import read_index
from sosn.errors import DataError, UsageError
from sosn.evaluation.protocol import evaluate
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.reproduce.paper import EXHIBITIONS, OPEN_MIC_1, OPEN_MIC_2, PAIRS, PaperRow
from sosn.reproduce.running import estimate, prepare_missing, train_or_resume
from sosn.training import Progress, Silent
from sosn.training.setup import open_split
from sosn.util.device import resolve_device
from sosn.util.files import write_atomically

PAPER = {"open-mic-1": OPEN_MIC_1, "open-mic-2": OPEN_MIC_2}
WAYS: dict[str, tuple[int, ...]] = {"open-mic-1": (5, 20), "open-mic-2": (5, 20, 30)}
QUICK = "steps=200 every=100 val_episodes=20 report_episodes=100 recalibrate=5".split()


@dataclass(frozen=True)
class Job:
    """One training, judged on the test photos of one or several exhibitions."""

    recipe: Recipe  # its test is that of the first
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.recipe.data.options['train']}-{self.recipe.episodes.way}way"


@dataclass(frozen=True)
class Cell:
    """One figure of the table: what was measured, as JSON, or why it could not be."""

    train: str
    test: str
    way: int
    measured: dict[str, Any] | None
    reason: str = ""


@dataclass(frozen=True)
class Table:
    """The paper's rows and our cells, column by column."""

    protocol: str
    columns: tuple[tuple[str, str], ...]  # train and test
    ways: tuple[int, ...]
    paper: tuple[PaperRow, ...]
    cells: tuple[Cell, ...]

    def cell(self, train: str, test: str, way: int) -> Cell:
        return next(cell for cell in self.cells if (cell.train, cell.test, cell.way) == (train, test, way))

    def average(self, way: int) -> float | None:
        """Mean of our accuracies as a fraction, if every column has one."""
        found = [cell.measured["accuracy"] for cell in self.cells if cell.way == way and cell.measured]
        return sum(found) / len(found) if len(found) == len(self.columns) else None

    def to_json(self) -> dict[str, Any]:
        cells = [{"train": c.train, "test": c.test, "way": c.way, "reason": c.reason, **(c.measured or {})} for c in self.cells]
        paper = [
            {"model": row.model, "way": row.way, "average": round(row.average / 100, 4)}
            | {"figures": {f"{a}-{b}": f[0] / 100 for (a, b), f in zip(self.columns, row.figures, strict=True)}}
            for row in self.paper
        ]
        averages = {str(way): self.average(way) for way in self.ways}
        return {"table": self.protocol, "cells": cells, "averages": averages, "paper": paper}


def plan(protocol: str, overrides: Sequence[str] = (), quick: bool = False) -> list[Job]:
    """The trainings of a protocol. A model is chosen on validation classes of its own part, so one serves all its tests."""
    if protocol not in WAYS:
        raise UsageError(f"there is no table {protocol!r}; there are {', '.join(WAYS)}")
    for word in overrides:
        if word.partition("=")[0].removeprefix("data.").removeprefix("episodes.") in ("train", "test", "way"):
            raise UsageError(f"{word!r} cannot be set: the table has its own pairs and ways")
    base = override(load_recipe(protocol), [*(QUICK if quick else ()), *overrides])
    jobs = []
    for way in WAYS[protocol]:
        for place in dict.fromkeys(trained for trained, _ in _columns(protocol)):
            tests = tuple(test for trained, test in _columns(protocol) if trained == place)
            title = f"Open MIC {protocol}, {place}→{', '.join(tests)}, {way}-way"
            options = base.data.options | {"train": place, "test": tests[0]}
            recipe = replace(
                base, title=title, data=replace(base.data, options=options), episodes=replace(base.episodes, way=way)
            )
            jobs.append(Job(recipe, tests))
    return jobs


def _columns(protocol: str) -> tuple[tuple[str, str], ...]:
    return PAIRS if protocol == "open-mic-1" else tuple((place, place) for place in EXHIBITIONS)


def reproduce(
    protocol: str,
    out: Path,
    overrides: Sequence[str] = (),
    quick: bool = False,
    progress: Progress | None = None,
    data: Path | None = None,
) -> Table:
    """Train and test everything that a table needs, in run folders below out, and return the table.

    What is finished there is read, not run again; what was interrupted goes on. A part that has too few classes for a way
    gives cells with the reason. The number of runs and an estimate of the time are said before anything is trained. Images that
    are not prepared are first, from data if it is given.
    """
    progress = progress or Silent()
    jobs = plan(protocol, overrides, quick)
    size = jobs[0].recipe.data.options["size"]
    prepare_missing("open-mic", size, data, progress)
    read_index("open-mic", size)  # refused here if nothing is prepared
    waiting = [job for job in jobs if any(not _file(out, job, test).exists() for test in job.tests)]
    if waiting:
        took = estimate([(job.recipe, _pairs(job)) for job in waiting])
        progress.say(f"{len(waiting)} of {len(jobs)} trainings to run in {str(out)!r}: {took}")
    cells = [cell for job in jobs for cell in _run(job, out, progress)]
    large = size == 224
    rows = (row for row in PAPER[protocol] if row.model.endswith("224²") == large or row.model == "Relation Net")
    return Table(protocol, _columns(protocol), WAYS[protocol], tuple(rows), tuple(cells))


def _file(out: Path, job: Job, test: str) -> Path:
    return out / job.name / f"test-{test}.json"


def _pairs(job: Job) -> float:
    """Pairs of a query and a class that testing a job scores."""
    wanted, way = job.recipe.validation, job.recipe.episodes.way
    return len(job.tests) * wanted.report_episodes * way**2 * wanted.val_query


def _run(job: Job, out: Path, progress: Progress) -> list[Cell]:
    """Train a job unless that is done, test what is not tested, and return its cells."""
    recipe, folder = job.recipe, out / job.name
    place, way = recipe.data.options["train"], recipe.episodes.way
    try:
        train_or_resume(recipe, folder, progress)
    except DataError as error:
        return [Cell(place, test, way, None, str(error)) for test in job.tests]
    return [_test(job, out, test, progress) for test in job.tests]


def _test(job: Job, out: Path, test: str, progress: Progress) -> Cell:
    recipe, file = job.recipe, _file(out, job, test)
    place, way, wanted = recipe.data.options["train"], recipe.episodes.way, recipe.validation
    if not file.exists():
        method = load(out / job.name).to(resolve_device(recipe.training.device))
        options = recipe.data.options | {"test": test}
        try:
            bank = open_split(replace(recipe, data=replace(recipe.data, options=options)), "test", progress.say)
            sizes = (way, recipe.val_shot, wanted.val_query, wanted.report_episodes, wanted.report_seed)
            result = evaluate(method, bank, *sizes, progress=progress.evaluating)
        except DataError as error:
            return Cell(place, test, way, None, str(error))
        write_atomically(file, (json.dumps(result.to_json() | {"split": "test", "test": test}, indent=2) + "\n").encode())
    return Cell(place, test, way, json.loads(file.read_text()))
