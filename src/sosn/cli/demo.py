"""`sosn demo`: train on generated glyphs, evaluate on new classes, classify a few drawings, write a report."""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sosn.data.sampler import EpisodeSampler
from sosn.errors import SosnError, UsageError
from sosn.evaluation.protocol import Evaluation, evaluate
from sosn.method import NearestPixels
from sosn.recipe.library import RECIPE_FILE, load_recipe
from sosn.recipe.override import override
from sosn.report import write_report
from sosn.training import Progress, train
from sosn.training.run import Run
from sosn.training.setup import open_split
from sosn.util.device import machine
from sosn.util.files import write_atomically
from sosn.util.seeding import generator

RECIPE = "glyphs-5w1s"
TEST_EPISODES = 150
VAL_EPISODES = 20  # few, because the demo reports the accuracy on test classes
MARK = "demo.json"
WRITTEN = ("run", "report.html", MARK)  # what a demo writes to its folder


@dataclass(frozen=True)
class Answer:
    """The true class of a drawing and the answer."""

    truth: str
    answer: str
    similarity: float

    @property
    def right(self) -> bool:
        return self.truth == self.answer


@dataclass(frozen=True)
class DemoResult:
    test: Evaluation
    pixels: Evaluation
    answers: tuple[Answer, ...]
    report: Path
    seconds: float

    def to_json(self) -> dict[str, Any]:
        answers = [{"truth": a.truth, "answer": a.answer, "similarity": a.similarity} for a in self.answers]
        return self.test.to_json() | {
            "split": "test",
            "pixels": self.pixels.accuracy,
            "answers": answers,
            "report": str(self.report),
            "seconds": round(self.seconds, 1),
            "machine": machine(),
        }


def run_demo(out: Path, progress: Progress, overrides: Sequence[str] = ()) -> DemoResult:
    """Train the default recipe in a folder, evaluate it on test classes, classify five drawings and write report.html.

    Overwrites the folder of an earlier demo. Refuses a folder with other files.
    """
    began = time.monotonic()
    recipe = override(load_recipe(RECIPE), [f"report_episodes={VAL_EPISODES}", *overrides])
    _clear(out)
    progress.say(f"training {recipe.training.steps} steps on generated glyphs (synthetic; nothing is downloaded)")
    trained = train(recipe, out / "run", progress=progress)
    bank = open_split(recipe, "test").to(trained.method.device)
    progress.say(f"evaluating {TEST_EPISODES} episodes of {len(bank.names)} new classes")
    sizes = (recipe.val_way, recipe.val_shot, recipe.validation.val_query, TEST_EPISODES)
    test = evaluate(trained.method, bank, *sizes, progress=progress.evaluating)
    pixels = evaluate(NearestPixels(bank.channels, bank.size), bank, *sizes)
    sampler = EpisodeSampler(bank, recipe.val_way, recipe.val_shot, 1)
    support, query = sampler.indices(1, generator("demo", recipe.seed))
    episode = sampler.episode(support, query)
    with torch.inference_mode():
        scores = trained.method(episode)[0].cpu()  # (Q, L)
    names = [bank.names[int(bank.labels[row])] for row in support[0, :, 0]]
    answers = tuple(Answer(names[number], names[int(row.argmax())], float(row.max())) for number, row in enumerate(scores))
    metrics = Run(out / "run").history()
    report = write_report(
        out / "report.html", recipe, trained.method, bank, metrics, test, pixels, episode, scores, names, trained.seconds
    )
    result = DemoResult(test, pixels, answers, report, time.monotonic() - began)
    kept = result.to_json() | {"report": report.name}  # relative, so that the folder can be moved
    write_atomically(out / MARK, (json.dumps(kept, indent=2) + "\n").encode())
    return result


def _clear(out: Path) -> None:
    """Remove the run of an earlier demo. Refuses a folder with other files."""
    try:
        foreign = [entry.name for entry in out.iterdir() if entry.name not in WRITTEN] if out.exists() else []
        if foreign:
            raise UsageError(f"{str(out)!r} contains other files, such as {foreign[0]!r}: choose another --out")
        if (out / "run" / RECIPE_FILE).exists():  # the old report is kept until the new one is written
            shutil.rmtree(out / "run")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SosnError(f"cannot use {str(out)!r} as a folder ({error.strerror}): choose another --out") from error
