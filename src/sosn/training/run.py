"""A run folder: the resolved recipe, versions, metrics as JSON lines, weights, checkpoint, TensorBoard events."""

import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import sosn
from sosn.checkpoint.storage import RUN_FILE, WEIGHTS_FILE
from sosn.data.bank import Bank
from sosn.errors import CheckpointError, DataError, SosnError, UsageError
from sosn.recipe.library import RECIPE_FILE, load_recipe
from sosn.recipe.recipe import Recipe, without_place
from sosn.util.device import machine
from sosn.util.files import digest, read_json, write_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

CHECKPOINT_FILE = "checkpoint.safetensors"
METRICS_FILE = "metrics.jsonl"
RESULT_FILE = "result.json"
_LOCKED: set[Path] = set()  # folders that this process trains in: a file lock only keeps out other processes


class Run:
    """One run folder, new or resumed."""

    def __init__(self, folder: Path, writes: bool = True) -> None:
        self.folder, self.writes = folder, writes  # in distributed training, only one process writes
        self.weights = folder / WEIGHTS_FILE
        self.checkpoint = folder / CHECKPOINT_FILE
        self.metrics = folder / METRICS_FILE
        self.result = folder / RESULT_FILE
        self._board: SummaryWriter | None = None

    @property
    def exists(self) -> bool:
        """Whether the folder contains a run."""
        return (self.folder / RECIPE_FILE).exists()

    def check_new(self) -> None:
        """Refuse a folder that already contains a run."""
        if self.exists:
            raise UsageError(
                f"{str(self.folder)!r} already contains a run: add --resume to continue it, or choose another --out"
            )

    def check_same(self, recipe: Recipe) -> None:
        """Refuse to resume a run with a different recipe."""
        if not self.exists:
            raise UsageError(
                f"there is no run to resume in {str(self.folder)!r}: remove --resume, or give the run's folder as --out"
            )
        before, now = (_flat(without_place(one).to_table()) for one in (load_recipe(str(self.folder)), recipe))
        for key in sorted(before.keys() | now.keys()):
            old, new = before.get(key), now.get(key)
            if old != new:
                raise UsageError(
                    f"the run in {str(self.folder)!r} has {key}={old!r}, not {new!r}: resume it with the same recipe, or "
                    "start a new run with another --out"
                )

    def check_contents(self, data: dict[str, Any]) -> None:
        """Refuse to resume a run whose images have changed."""
        before = self.about().get("data", {})
        for split, old in before.items():
            if old != data.get(split):
                raise DataError(
                    f"the {split} images have changed since the run in {str(self.folder)!r} started: restore them, or start "
                    "a new run with another --out"
                )

    def check_start(self, start: dict[str, Any]) -> None:
        """Refuse to restart a run without a checkpoint from other weights than it started from."""
        before = self.about().get("start", {})
        if start and before and before["weights"] != start["weights"]:
            raise CheckpointError(
                f"the weights that the run in {str(self.folder)!r} starts from have changed: restore them, or start a new run "
                "with another --out"
            )

    def about(self) -> dict[str, Any]:
        """Return what run.json recorded when the run started."""
        path = self.folder / RUN_FILE
        return read_json(path) if path.is_file() else {}

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SosnError(
                f"cannot create the run folder {str(self.folder)!r} ({error.strerror}): choose another --out"
            ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Create and lock the folder. Refuses a folder that another process trains in, on systems with file locks."""
        if not self.writes:
            yield
            return
        self._make_folder()
        try:
            import fcntl
        except ImportError:  # not a Unix
            yield
            return
        place = self.folder.resolve()
        busy = UsageError(f"another process is training in {str(self.folder)!r}: wait for it, or stop it")
        if place in _LOCKED:  # checked before opening the file: closing it would release the lock
            raise busy
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not shared with forked workers
            except (BlockingIOError, PermissionError):
                raise busy from None
            _LOCKED.add(place)
            try:
                yield
            finally:
                _LOCKED.discard(place)

    def create(self, recipe: Recipe, data: dict[str, Any], start: dict[str, Any] | None = None) -> None:
        """Create the folder if needed, and write the recipe and run.json: seed, versions, machine, images, start."""
        self._make_folder()
        about = {"seed": recipe.seed, **circumstances(), "data": data} | ({"start": start} if start else {})
        write_atomically(self.folder / RUN_FILE, (json.dumps(about, indent=2) + "\n").encode())
        write_atomically(self.folder / RECIPE_FILE, recipe.to_toml().encode())

    def history(self) -> list[dict[str, float]]:
        """Return all metrics of a run in the order in which they were recorded."""
        try:
            return [dict(json.loads(line)) for line in self.metrics.read_text("utf-8").splitlines()]
        except ValueError as error:
            raise CheckpointError(f"{str(self.metrics)!r} is damaged ({error}): restore it") from error

    def validations(self) -> dict[str, list[float]]:
        """Return the validation accuracies of a run and the steps after which they were measured."""
        lines = [line for line in self.history() if "val_accuracy" in line]
        return {"steps": [line["step"] for line in lines], "accuracy": [line["val_accuracy"] for line in lines]}

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record metrics from this step on. Metrics of later steps, which a resumed run repeats, are dropped."""
        if not self.writes:
            yield
            return
        from torch.utils.tensorboard import SummaryWriter

        if self.metrics.exists():
            lines = self.metrics.read_text().splitlines(keepends=True)
            kept = [line for line in lines if _step(line) <= step]
            write_atomically(self.metrics, "".join(kept).encode())
        with SummaryWriter(str(self.folder), purge_step=step) as self._board:
            yield
        self._board = None

    def record(self, step: int, **values: float) -> None:
        """Append one line of metrics and write them for TensorBoard."""
        if self._board is None:
            return
        try:
            with self.metrics.open("a") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
        except OSError as error:
            raise SosnError(
                f"cannot write {str(self.metrics)!r} ({error.strerror}); the last checkpoint is untouched"
            ) from error


def circumstances() -> dict[str, Any]:
    """Return the versions, a digest of the code, and the machine."""
    ours = {"sosn": sosn.__version__, "code": digest(Path(sosn.__file__).parent, "*.py")}
    return {
        "versions": ours | {"torch": torch.__version__, "python": platform.python_version()},
        "machine": {"platform": f"{platform.system()} {platform.machine()}", "device": machine()},
    }


def contents(bank: Bank) -> dict[str, Any]:
    """Return the fingerprint, the number of images and the classes of a bank."""
    return {"fingerprint": bank.fingerprint, "images": len(bank), "classes": list(bank.names)}


def _step(line: str) -> float:
    """Return the step of a line of metrics; infinity for a line that was cut short."""
    try:
        return float(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """Flatten a recipe's table to keys such as training.steps."""
    flat: dict[str, Any] = {}
    for section, values in table.items():
        flat |= {f"{section}.{key}": value for key, value in values.items()} if isinstance(values, dict) else {section: values}
    return flat
