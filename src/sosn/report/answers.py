"""Write the answers of `sosn classify` as one self-contained HTML page."""

import base64
import io
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

import sosn
from sosn.classify.batch import Classified
from sosn.data.image import read_image
from sosn.data.listing import class_files
from sosn.errors import UsageError
from sosn.util.files import write_atomically

THUMBNAIL = 96
SHOWN = 8  # images of a class
LIKELY = 3  # classes of an answer
MARK = b'<meta name="generator" content="sosn">'  # at the head of every page


def write_answers(path: Path, support: Path, results: list[Classified], lead: str) -> Path:
    """Write a page with the support images and the answers, and return its path."""
    classes, _ = class_files(support)
    template = jinja2.Template((resources.files("sosn") / "report" / "answers.html").read_text("utf-8"), autoescape=True)
    page = template.render(
        title=f"{len(results)} images, {len(classes)} classes", lead=lead, version=sosn.__version__,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        classes=[(name, [_thumbnail(file) for file in files[:SHOWN]]) for name, files in classes.items()],
        rows=[_row(one) for one in results if one.answer], failed=[one.error for one in results if one.error],
    )  # fmt: skip
    write_atomically(path, page.encode(errors="replace"))  # file names need not be valid UTF-8
    return path


def check_page(path: Path) -> None:
    """Refuse a file name that does not end in .html, and a file that sosn did not write."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--html needs a file name that ends in .html, got {str(path)!r}")
    if path.is_dir() or (path.is_file() and MARK not in path.read_bytes()[:1000]):
        raise UsageError(f"{str(path)!r} exists and is not a page that sosn wrote: choose another name for --html")


def _row(one: Classified) -> dict[str, Any]:
    assert one.answer is not None
    likely = sorted(one.answer.probabilities.items(), key=lambda pair: -pair[1])[:LIKELY]
    row = {"image": one.image, "picture": _thumbnail(Path(one.image)), "answer": one.answer.answer, "likely": likely}
    if one.nearest and one.nearest.source:
        row |= {
            "nearest": _thumbnail(Path(one.nearest.source)),
            "nearest_name": f"{one.nearest.label}: {Path(one.nearest.source).name}",
        }
    return row


def _thumbnail(file: Path) -> str:
    with Image.open(file) as opened:
        longest = max(opened.size)
        square = Image.fromarray(read_image(opened, min(THUMBNAIL, longest), 3).permute(1, 2, 0).contiguous().numpy())
    buffer = io.BytesIO()
    square.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
