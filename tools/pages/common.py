"""What pages share: files of results, places for figures, and how figures are written."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sosn.reproduce.ledger import Gap, interval

ROOT = Path(__file__).parent.parent.parent
TITLES = {"omniglot": "Omniglot", "mini-imagenet": "miniImageNet"}


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / name).read_text("utf-8"))
    return document


def put(text: str, name: str, value: str) -> str:
    """Replace what stands between <!-- name --> and <!-- /name -->."""
    pattern = rf"(<!-- {re.escape(name)} -->).*?(<!-- /{re.escape(name)} -->)"
    changed, places = re.subn(pattern, lambda match: match[1] + value + match[2], text, flags=re.DOTALL)
    if not places:
        raise SystemExit(f"there is no place for {name}: <!-- {name} --><!-- /{name} -->")
    return changed


def accuracy(figures: dict[str, Any], digits: int) -> str:
    return percent(figures["accuracy"], figures["ci95"], digits)


def percent(mean: float, half: float, digits: int) -> str:
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"


def over_seeds(values: list[float], digits: int) -> str:
    """Mean and 95% confidence interval over a few seeds (Student's t; none of a single one), in percent."""
    mean, half = sum(values) / len(values), interval(values)
    return f"{100 * mean:.{digits}f}" if half is None else percent(mean, half, digits)


def ahead(by_seed: list[float]) -> str:
    return f"{sum(difference > 0 for difference in by_seed)} of {len(by_seed)}"


def in_points(difference: Gap | None) -> str:
    return f"{100 * difference.mean:+.2f} ± {100 * difference.ci95:.2f}" if difference else ""


def as_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)) + "\n"
