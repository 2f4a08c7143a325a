"""Write the report of a run as one self-contained HTML page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import sosn
from sosn.data.bank import Bank
from sosn.episode import Episode
from sosn.evaluation.protocol import Evaluation
from sosn.method import Method
from sosn.recipe.recipe import Recipe
from sosn.report.plots import accuracy_histogram, episode_figure, matrix_figure, training_curves
from sosn.report.sheet import class_rows, contact_sheet
from sosn.util.device import machine
from sosn.util.files import write_atomically


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    source: str
    pixels: bool = False


def write_report(
    path: Path, recipe: Recipe, method: Method, bank: Bank, metrics: Sequence[dict[str, Any]], test: Evaluation,
    pixels: Evaluation, episode: Episode, scores: Tensor, names: Sequence[str], seconds: float,
) -> Path:  # fmt: skip
    """Write the report of a run and its evaluation on test classes, and return its path."""
    sections = [
        Section("Training", "Weights are selected on validation classes. Test classes are used once, at the end.",
                _inline(training_curves(metrics))),
        Section("Episode by episode", "Every method is evaluated on the same seeded episodes.",
                _inline(accuracy_histogram(test, pixels))),
        Section("One episode", "Similarity of each query to each class, from one example of each. Bold: the answer. "
                "Framed: the true class.", _inline(episode_figure(episode, scores, names))),
        Section("The classes", "Each row is one test class. None of them was in the training set.",
                _inline(contact_sheet(class_rows(bank, 12, 20))), pixels=True),
    ]  # fmt: skip
    if method.second_order is not None:
        text = "How often features occur together, before and after power normalisation, which discards the counts."
        sections.insert(
            3, Section("What is compared", text, _inline(matrix_figure(method, method.second_order, episode.query[0, 0])))
        )
    figures = [
        (str(test), f"{test.way}-way {test.shot}-shot on new classes, {test.episodes} episodes, 95% CI"),
        (str(pixels), "by comparing pixels"),
        (f"{100 / test.way:.0f}%", "by guessing"),
        (f"{method.parameter_count():,}", "parameters"),
    ]
    template = jinja2.Template((resources.files("sosn") / "report" / "page.html").read_text("utf-8"), autoescape=True)
    page = template.render(
        title=recipe.title, lead=f"Data: {recipe.data.name}{', synthetic' if recipe.data.name == 'glyphs' else ''}.",
        figures=figures, sections=sections, recipe=recipe.to_toml(), version=sosn.__version__,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"), machine=machine(), seconds=round(seconds),
    )  # fmt: skip
    write_atomically(path, page.encode())
    return path


def _inline(picture: Figure | Image.Image) -> str:
    buffer = io.BytesIO()
    if isinstance(picture, Figure):
        picture.savefig(buffer, format="png", dpi=130)
    else:
        picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
