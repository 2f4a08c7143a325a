"""Write the answers of `sosn classify` as one self-contained HTML page."""

import base64
import io
from collections import Counter
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

import sosn
from sosn.classify.batch import Classified
from sosn.classify.labelled_evaluation import LabelledEvaluation
from sosn.classify.support import Label
from sosn.data.pixels import open_image, upright
from sosn.errors import DataError, UsageError
from sosn.util.files import write_atomically

THUMBNAIL = 144  # pixels, shown at half that size
SHOWN = 8  # images of a class
LIKELY = 3  # classes of an answer
MARK = b'<meta name="generator" content="sosn">'  # at the head of every page


def write_answers(
    path: Path,
    support: dict[Label, list[str]],
    results: list[Classified],
    lead: str,
    evaluation: LabelledEvaluation | None = None,
) -> Path:
    """Write a page with the support images, the answers and, if there is one, their evaluation, and return its path."""
    columns: list[Label | None] = [
        *support,
        *([None] if any(one.answer and one.answer.answer is None for one in results) else []),
    ]
    labels = evaluation.labels if evaluation else []
    rows = [_row(one, columns, labels) for one in results if one.answer]
    if evaluation:  # mistakes first, the most confident ones before others
        rows.sort(
            key=lambda row: (row["right"] is not False, row["answer"] is None, -row["probability"] * (row["right"] is False))
        )
    counts = Counter(row["answer"] for row in rows)
    template = jinja2.Template((resources.files("sosn") / "report" / "answers.html").read_text("utf-8"), autoescape=True)
    page = template.render(
        title=f"{len(results)} images, {len(support)} classes", lead=lead, version=sosn.__version__,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"), evaluation=evaluation, rows=rows,
        matrix=_matrix(evaluation, columns) if evaluation else [],
        answers=["none of these" if answer is None else answer for answer in columns],
        classes=[
            {"name": name, "count": counts[name], "pictures": [shown for file in files[:SHOWN] if (shown := _thumbnail(file))]}
            for name, files in support.items()
        ],
        failed=[one.error for one in results if one.error],
    )  # fmt: skip
    write_atomically(path, page.encode(errors="replace"))  # file names need not be valid UTF-8
    return path


def _matrix(evaluation: LabelledEvaluation, columns: list[Label | None]) -> list[tuple[Label, list[tuple[int, bool]]]]:
    """Return for each label how often it got each answer, and whether that answer is right."""
    known = set(evaluation.classes)
    return [
        (label, [(counts.get(answer, 0), answer == (label if label in known else None)) for answer in columns])
        for label, counts in evaluation.confusion.items()
    ]


def check_page(path: Path) -> None:
    """Refuse a file name that does not end in .html, a missing folder, and a file that sosn did not write."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--html needs a file name that ends in .html, got {str(path)!r}")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r} for --html: create it, or choose another place")
    if path.is_dir() or (path.is_file() and MARK not in path.read_bytes()[:1000]):
        raise UsageError(f"{str(path)!r} exists and is not a page that sosn wrote: choose another name for --html")


def _row(one: Classified, columns: list[Label | None], labels: list[Label]) -> dict[str, Any]:
    assert one.answer is not None
    likely = sorted(one.answer.probabilities.items(), key=lambda pair: -pair[1])[:LIKELY]
    row = {
        "image": one.image, "picture": _thumbnail(one.image), "answer": one.answer.answer, "likely": likely,
        "probability": one.answer.probability, "column": columns.index(one.answer.answer),
        "label": one.label, "row": labels.index(one.label) if one.label in labels else "", "right": one.right,
        "far": one.answer.far,
    }  # fmt: skip
    if one.nearest:
        source = one.nearest.source
        named = f"{one.nearest.label}: {Path(source).name}" if source else str(one.nearest.label)
        row |= {"nearest": _thumbnail(source) if source else None, "nearest_name": named}
    return row


def _thumbnail(file: str) -> str | None:
    """Return an image as a data address, or None if it cannot be read (any more)."""
    try:
        image = upright(open_image(file))
    except DataError:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
