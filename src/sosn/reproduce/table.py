"""Run the rows of the paper's tables. Finished rows are read from their files."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from sosn.checkpoint.registry import load
from sosn.data.sampler import EpisodeSampler
from sosn.errors import DataError, MissingSplitError, SosnError, TooFewError, TrainingError, UsageError
from sosn.evaluation.protocol import evaluate
from sosn.method.base import Statistics
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.reproduce import mini_imagenet, omniglot, open_mic
from sosn.reproduce.ledger import (
    ENTRY_FILE,
    Entry,
    add_figure,
    find_figure,
    keep,
    ledger_file,
    new_entry,
    read_entry,
    write_entry,
)
from sosn.reproduce.parallel import Failure, Task, run_parallel, starts_from_failed
from sosn.reproduce.row import Measure, Row, changes
from sosn.reproduce.running import estimate, prepare_missing, train_or_resume
from sosn.training import Progress, Silent
from sosn.training.run import Run
from sosn.training.setup import open_split
from sosn.util.device import resolve_device
from sosn.util.spelling import nearest

TABLES: dict[str, tuple[Row, ...]] = {
    omniglot.TABLE: omniglot.ROWS, mini_imagenet.TABLE: mini_imagenet.ROWS, **open_mic.ROWS,
}  # fmt: skip
FIXED = {"seed", "way", "shot"}  # keys that every row sets
FIXED_BY_TABLE = {table: {"train", "test"} for table in open_mic.ROWS}
QUICK = (
    "steps=4 every=2 episodes_per_step=1 query=2 val_episodes=4 val_query=2 report_episodes=4 recalibrate=2 precision=fp32"
).split()
STATISTICS: tuple[Statistics, ...] = get_args(Statistics)


@dataclass(frozen=True)
class Job:
    """One training: a row and a seed, in a folder."""

    row: Row
    recipe: Recipe
    folder: Path

    @property
    def entry_file(self) -> Path:
        return self.folder / ENTRY_FILE

    @property
    def name(self) -> str:
        return f"{self.row.name}, seed {self.recipe.seed}"

    @property
    def start(self) -> str:
        """Name of the job that it starts from, if any."""
        return f"{self.row.table}/{self.row.start}, seed {self.recipe.seed}" if self.row.start else ""


@dataclass(frozen=True)
class Options:
    """Options of a reproduction."""

    rows: Sequence[str] = ()  # shell patterns; none means all rows
    seeds: Sequence[int] = (0,)
    overrides: Sequence[str] = ()
    quick: bool = False
    data: Path | None = None  # folder to prepare missing datasets from
    ledger: Path | None = None  # folder to copy entries to
    jobs: int = 1  # trainings at a time; several run in separate processes
    estimate: bool = True  # time a few steps first, and report how long all will take

    @property
    def words(self) -> list[str]:
        return [*(QUICK if self.quick else ()), *self.overrides]


@dataclass
class Reproduction:
    """The rows of a table, the entries of their runs, and the reasons why some were skipped."""

    table: str
    rows: tuple[Row, ...]
    entries: list[Entry] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "rows": [row_json(row) for row in self.rows],
            "entries": self.entries,
            "skipped": self.skipped,
        }


def row_json(row: Row) -> dict[str, Any]:
    """Return a planned row as JSON, with the paper's figures as fractions."""
    paper = {one.protocol: row.paper(one.protocol) for one in row.measures}
    figures = {
        protocol: {"accuracy": round(one.accuracy / 100, 4), "ci95": None if one.ci95 is None else round(one.ci95 / 100, 4)}
        for protocol, one in paper.items()
        if one
    }
    return {
        "row": row.id, "group": row.group, "label": row.label, "recipe": row.recipe, "overrides": list(row.words),
        "start": row.start, "paper": figures,
    }  # fmt: skip


class Named(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> str: ...


Chosen = TypeVar("Chosen", bound=Named)


def select(rows: Sequence[Chosen], patterns: Sequence[str]) -> tuple[Chosen, ...]:
    """Return the rows or claims whose id matches a shell pattern, or all without patterns. Refuses a useless pattern."""
    names = [row.id for row in rows]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no id matches {pattern!r}{nearest(pattern, names)}: --list shows all ids")
    return tuple(row for row in rows if not patterns or any(fnmatchcase(row.id, pattern) for pattern in patterns))


def plan(rows: Sequence[Row], out: Path, wanted: Options) -> list[Job]:
    """Plan the trainings of rows. The rows that they start from come first. Each has the folder OUT/TABLE/ROW-seedN.

    The starts of finished trainings are not needed and not planned.
    """
    fixed = FIXED.union(*(FIXED_BY_TABLE.get(row.table, set()) for row in rows))
    for word in wanted.overrides:
        if word.partition("=")[0].rpartition(".")[2] in fixed:
            names = ", ".join(sorted(fixed - {"seed"}))
            raise UsageError(f"{word!r} cannot be set: every row sets {names}; use --seeds for random seeds")
    ordered: dict[tuple[Row, int], None] = {}
    for wish in rows:
        unfinished = [seed for seed in wanted.seeds if not Run(_folder(out, wish.table, wish.id, seed)).result.exists()]
        ordered |= dict.fromkeys((first, seed) for first in started_from(wish) for seed in unfinished)
        ordered |= dict.fromkeys((wish, seed) for seed in wanted.seeds)
    jobs = []
    for row, seed in ordered:
        start = [f"start={_folder(out, row.table, row.start, seed).absolute()}"] if row.start else []
        jobs.append(Job(row, row.resolve(seed, [*wanted.words, *start]), _folder(out, row.table, row.id, seed)))
    return jobs


def trained(job: Job) -> bool:
    """Return whether the training of a job is finished."""
    return Run(job.folder).result.exists()


def _folder(out: Path, table: str, row: str, seed: int) -> Path:
    return out / table / f"{row}-seed{seed}"


def started_from(row: Row) -> list[Row]:
    """Return the rows that must be trained before this one, in order."""
    if not row.start:
        return []
    first = next(one for one in TABLES[row.table] if one.id == row.start)
    return [*started_from(first), first]


def reproduce_rows(table: str, out: Path, wanted: Options, progress: Progress | None = None) -> Reproduction:
    """Train and evaluate rows of a table, in run folders under `out`, and return their entries.

    Finished runs are read, not repeated; interrupted runs continue. Rows without prepared images are skipped. progress receives
    the skipped rows, the number of trainings and an estimate of the time before training starts.
    """
    if table not in TABLES:
        raise UsageError(f"there is no table {table!r}{nearest(table, TABLES)}: choose one of {', '.join(TABLES)}")
    rows = select(TABLES[table], wanted.rows)
    jobs = plan(rows, out, wanted)
    return Reproduction(table, rows, *run_jobs(jobs, wanted, progress or Silent()))


def run_jobs(jobs: Sequence[Job], wanted: Options, progress: Progress) -> tuple[list[Entry], dict[str, str]]:
    """Run the unfinished jobs. Returns the entries of all jobs, and the reasons why some were skipped."""
    if wanted.jobs < 1:
        raise UsageError(f"jobs is {wanted.jobs}; it must be 1 or more")
    if wanted.ledger and (wanted.quick or changes(wanted.overrides)):
        words = " ".join((*changes(wanted.overrides), *(("--quick",) if wanted.quick else ())))
        raise UsageError(f"--ledger takes only unchanged rows: remove --ledger, or remove {words}")
    skipped = _prepare(jobs, wanted.data, progress)
    ready = [job for job in jobs if job.name not in skipped]
    if jobs and not ready:
        raise DataError(next(iter(skipped.values())))
    for name, reason in skipped.items():
        progress.say(f"{name} is skipped: {reason}")
    waiting = [job for job in ready if not trained(job)]
    if waiting:
        if wanted.estimate:
            progress.say("timing a few steps of each configuration")
        took = f": {estimate([(job.recipe, _pairs(job)) for job in waiting])}" if wanted.estimate else ""
        took += ", one after another" if took and wanted.jobs > 1 else ""
        progress.say(f"{len(waiting)} of {len(ready)} trainings to run{took}")
    failed = _run_parallel([job for job in ready if not _whole(job)], wanted, progress) if wanted.jobs > 1 else {}
    skipped |= {name: failure.reason for name, failure in failed.items()}
    entries = []
    for job in ready:
        if job.start in skipped:
            skipped.setdefault(job.name, starts_from_failed(job.start))
        if job.name in skipped:
            continue
        try:
            entries.append(_run(job, changes(wanted.overrides), wanted.quick, progress))
        except (
            TrainingError,
            TooFewError,
            MissingSplitError,
        ) as error:  # a row that cannot be trained does not stop the others
            skipped[job.name] = str(error)
            progress.say(f"{job.row.name}: {error}")
            continue
        into_ledger(wanted.ledger, entries[-1], job.entry_file, progress)
    broken = [f"{name}: {failure.reason}" for name, failure in failed.items() if failure.broke]
    if broken:
        raise SosnError(f"{len(broken)} of {len(jobs)} trainings failed, such as {broken[0]}; the others were saved")
    return entries, skipped


def into_ledger(ledger: Path | None, entry: Entry, file: Path, progress: Progress) -> None:
    """Copy the entry of a file to a ledger, if there is one. An entry of another training is kept, with a message."""
    if ledger and not keep(ledger, entry):
        there = str(ledger_file(ledger, entry))
        progress.say(f"{there!r} comes from another training and was kept: move it away to copy {str(file)!r} there")


def _whole(job: Job) -> bool:
    """Return whether a job is trained and evaluated on all available images."""
    if not trained(job) or not job.entry_file.exists():
        return False
    entry = read_entry(job.entry_file)
    wanted = ((measure, one) for measure in job.row.measures for one in STATISTICS)
    return all(measure.images in entry["missing"] or find_figure(entry, measure, one) for measure, one in wanted)


def _run_parallel(jobs: Sequence[Job], wanted: Options, progress: Progress) -> dict[str, Failure]:
    """Run each job as a separate command, with its output in a log file beside its folder. Returns the failures."""
    if not jobs:
        return {}
    out = str(jobs[0].folder.parent.parent)  # of all
    progress.say(f"running {wanted.jobs} at a time; the output of each is in TABLE/ROW-seedN.log in {out!r}")
    tasks = []
    for job in jobs:
        command = [sys.executable, "-m", "sosn", "reproduce", job.row.table, *wanted.overrides, "--rows", job.row.id]
        command += ["--seeds", str(job.recipe.seed), "--out", out, "--no-estimate", *(["--quick"] if wanted.quick else [])]
        command += ["--ledger", str(wanted.ledger)] if wanted.ledger else []
        log = job.folder.with_name(f"{job.folder.name}.log")
        tasks.append(Task(job.name, tuple(command), log, job.entry_file, job.start))
    return run_parallel(tasks, wanted.jobs, progress.say)


def _prepare(jobs: Sequence[Job], source: Path | None, progress: Progress) -> dict[str, str]:
    """Prepare the images of unfinished jobs, if there is a source. Returns why jobs are skipped."""
    skipped: dict[str, str] = {}
    for job in jobs:
        name, size = job.recipe.data.name, job.recipe.data.options["size"]
        if not job.entry_file.exists() and not prepare_missing(name, size, source, progress):
            skipped[job.name] = f"{name} at {size}×{size} is not prepared: give the folder of the dataset with --data DIR"
    return skipped


def _pairs(job: Job) -> float:
    """Return the number of query–class pairs that the evaluation of a job scores."""
    scored = sum(measure.way**2 * measure.query for measure in job.row.measures)
    return len(STATISTICS) * job.recipe.validation.report_episodes * scored


def _run(job: Job, changed: Sequence[str], quick: bool, progress: Progress) -> Entry:
    """Train a job if needed, measure missing figures, and return its entry."""
    run = train_or_resume(job.recipe, job.folder, progress)
    if job.entry_file.exists():
        entry = read_entry(job.entry_file)
        if "validation" not in entry:  # written by an earlier version
            entry["validation"] = run.validations()
            write_entry(job.entry_file, entry)
    else:
        entry = new_entry(job.row, job.recipe, run, load(job.folder), changed, quick)
    for measured in _measure(job, entry, progress):
        write_entry(job.entry_file, measured)
    return entry


def _measure(job: Job, entry: Entry, progress: Progress) -> Iterator[Entry]:
    """Measure the missing figures of an entry. Yields it after every figure, so that an interruption loses little."""
    wanted, device = job.recipe.validation, resolve_device(job.recipe.training.device)
    method = None
    for measure in job.row.measures:
        lacking = [one for one in STATISTICS if find_figure(entry, measure, one) is None]
        if not lacking:
            continue
        try:
            bank = open_split(_with_data(job.recipe, measure), measure.split, progress.say).to(device)
            EpisodeSampler(bank, measure.way, measure.shot, measure.query)  # refuses a bank that is too small
        except DataError as error:
            if not isinstance(error, MissingSplitError | TooFewError) and measure.images not in entry["missing"]:
                raise
            entry["missing"].setdefault(measure.images, str(error))
            yield entry
            continue
        if method is None:
            method = load(job.folder).to(device)
        for statistics in lacking:
            sizes = (measure.way, measure.shot, measure.query, wanted.report_episodes, wanted.report_seed)
            add_figure(entry, measure, evaluate(method, bank, *sizes, statistics, progress.evaluating))
            yield entry


def _with_data(recipe: Recipe, measure: Measure) -> Recipe:
    """Return the recipe with the data of a measure."""
    return override(recipe, [f"data.{word}" for word in measure.data]) if measure.data else recipe
