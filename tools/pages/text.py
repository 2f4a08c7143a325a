"""What all pages share: reading results, filling places in a page, and writing figures and tables."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sosn.reproduce.ledger import interval

ROOT = Path(__file__).parent.parent.parent
MODELS = ROOT / "src/sosn/checkpoint/shipped"


def read(name: str) -> dict[str, Any]:
    """A JSON document of the repository."""
    document: dict[str, Any] = json.loads((ROOT / name).read_text("utf-8"))
    return document


def model_cards() -> dict[str, dict[str, Any]]:
    """The cards of the models in the package, by name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(MODELS.glob("*.json"))}


def fill(text: str, figures: Mapping[str, str]) -> str:
    """A page with every figure between its <!-- name --> and <!-- /name -->. Places and figures must have the same names."""
    places = set(re.findall(r"<!-- /([\w.-]+) -->", text))
    if places != figures.keys():
        raise SystemExit(f"no place for {sorted(figures.keys() - places)}, no figure for {sorted(places - figures.keys())}")
    place = re.compile(r"<!-- ([\w.-]+) -->.*?<!-- /\1 -->", re.DOTALL)
    return place.sub(lambda match: f"<!-- {match[1]} -->{figures[match[1]]}<!-- /{match[1]} -->", text)


def percent(mean: float, half: float, digits: int = 2) -> str:
    """An accuracy and half of its 95% interval, both fractions, in per cent."""
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"


def accuracy(figure: Mapping[str, Any], digits: int = 2) -> str:
    """The accuracy of a JSON document in per cent."""
    return percent(figure["accuracy"], figure["ci95"], digits)


def over_seeds(values: Sequence[float], digits: int = 2) -> str:
    """Mean and 95% interval (Student's t) over seeds, in per cent; the mean alone of one seed."""
    mean, half = sum(values) / len(values), interval(values)
    return f"{100 * mean:.{digits}f}" if half is None else percent(mean, half, digits)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, on lines of its own."""
    return "\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)) + "\n"
