"""A run folder: the resolved recipe, versions, metrics as JSON lines, weights, checkpoint, TensorBoard events."""

import json
import platform
from pathlib import Path
from typing import Any

import torch

import sosn
from sosn.errors import SosnError, UsageError
from sosn.files import write_atomically
from sosn.recipe import RECIPE_FILE, Recipe, load_recipe, without_place
from sosn.storage import WEIGHTS_FILE

CHECKPOINT_FILE = "checkpoint.safetensors"
METRICS_FILE = "metrics.jsonl"
RESULT_FILE = "result.json"


class Run:
    """One run folder, new or resumed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = folder / WEIGHTS_FILE
        self.checkpoint = folder / CHECKPOINT_FILE
        self.metrics = folder / METRICS_FILE
        self.result = folder / RESULT_FILE

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> "Run":
        """A new run folder; refuses one that holds a run already."""
        if (folder / RECIPE_FILE).exists():
            raise UsageError(f"{str(folder)!r} holds a run already: add --resume to go on with it, or choose another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SosnError(f"cannot make the run folder {str(folder)!r} ({error.strerror}): choose another --out") from error
        about = {
            "seed": recipe.seed,
            "versions": {"sosn": sosn.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "machine": {"platform": platform.platform(), "threads": torch.get_num_threads()},
        }
        write_atomically(folder / "run.json", (json.dumps(about, indent=2) + "\n").encode())
        write_atomically(folder / RECIPE_FILE, recipe.to_toml().encode())
        return cls(folder)

    @classmethod
    def resume(cls, folder: Path, recipe: Recipe) -> "Run":
        """The run in a folder; refuses another recipe than the one it was started with."""
        if not (folder / RECIPE_FILE).exists():
            raise UsageError(f"there is no run to resume in {str(folder)!r}: leave out --resume, or give its --out")
        before = without_place(load_recipe(str(folder))).to_table()
        now = without_place(recipe).to_table()
        for section, values in before.items():
            pairs = ((f"{section}.{key}", value, now[section].get(key)) for key, value in values.items()) if isinstance(
                values, dict) else ((section, values, now[section]),)  # fmt: skip
            for key, old, new in pairs:
                if old != new:
                    raise UsageError(
                        f"the run in {str(folder)!r} has {key}={old!r}, not {new!r}: resume it with its own recipe"
                    )
        return cls(folder)

    def forget_after(self, step: int) -> None:
        """Drop metrics of steps that a resumed run will take again."""
        if self.metrics.exists():
            lines = self.metrics.read_text().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
            write_atomically(self.metrics, "".join(kept).encode())

    def record(self, **values: Any) -> None:
        """Append one line of metrics."""
        try:
            with self.metrics.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise SosnError(
                f"cannot write {str(self.metrics)!r} ({error.strerror}); the last checkpoint is untouched"
            ) from error
