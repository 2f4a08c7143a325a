"""The headline figures in one table, for the README and the page on the reproduction."""

import math
from collections.abc import Sequence

from pages.common import as_table, percent
from sosn.method.base import Statistics
from sosn.reproduce.claims import find
from sosn.reproduce.ledger import Entry, as_it_is_now, summarise
from sosn.reproduce.omniglot import PROTOCOLS
from sosn.reproduce.paper import published
from sosn.reproduce.row import HEADLINE_SEEDS, Row
from sosn.reproduce.table import TABLES

MODEL = "SoSN(⊗)+SigmE"  # the paper's own
MINE, BEST = "its model here", "our best recipe"
LONG = find("mini-imagenet", "long-5w1s").resolve(0)
LONGER = (
    f"best of {LONG.training.steps // LONG.validation.every} checkpoints in "
    f"{LONG.training.steps * LONG.episodes.episodes_per_step:,} episodes"
)
PAPERS, VINYALS = "the paper's kind of partition", "Vinyals' partition"
LINES: tuple[tuple[str, str, str, str, Statistics], ...] = (
    # what, table, classes, the row of a protocol (without one the figure is the printed one), statistics
    ("Omniglot: the paper", "omniglot", "test", "", "batch"),
    (f"{MINE}, {PAPERS}", "omniglot", "test", "sigme-paper-{protocol}", "batch"),
    (f"{MINE}, {PAPERS}", "omniglot", "test", "sigme-paper-{protocol}", "running"),
    (f"{BEST}, {PAPERS}", "omniglot", "test", "best-paper-20w{shot}s", "running"),
    (f"{MINE}, {VINYALS}", "omniglot", "test", "sigme-vinyals-{protocol}", "running"),
    (f"{BEST}, {VINYALS}", "omniglot", "test", "best-20w{shot}s", "running"),
    ("*mini*ImageNet, 84²: the paper", "mini-imagenet", "test", "", "batch"),
    (MINE, "mini-imagenet", "val", "sigme-{protocol}", "batch"),
    (MINE, "mini-imagenet", "val", "sigme-{protocol}", "running"),
    (f"{MINE}, {LONGER}", "mini-imagenet", "val", "long-{protocol}", "batch"),
    (f"{MINE}, {LONGER}", "mini-imagenet", "val", "long-{protocol}", "running"),
    (f"{BEST}, Conv-4", "mini-imagenet", "val", "best-{protocol}", "running"),
    ("our recipe for ResNet-12", "mini-imagenet", "val", "resnet12-{protocol}", "running"),
)


def short(entries: Sequence[Entry]) -> str:
    """The paper's figures, those of its model here, and those of our recipes: a column a protocol."""
    lines = []
    for what, table, split, name, statistics in LINES:
        cells = []
        for protocol, (_, shot, _) in PROTOCOLS.items():
            row = next((one for one in TABLES[table] if one.id == name.format(protocol=protocol, shot=shot)), None)
            printed = published(table, MODEL, protocol)
            if name:
                cells.append(_ours(entries, row, split, protocol, statistics) if row else "")
            else:
                cells.append(f"{printed.accuracy}" if printed else "")
        lines.append([what, split, statistics, *cells])
    return as_table(("accuracy, %", "classes", "statistics", *PROTOCOLS), lines)


def _ours(entries: Sequence[Entry], row: Row, split: str, protocol: str, statistics: Statistics) -> str:
    """A row's mean ± its interval, over seeds and episodes; and how many seeds where there are too few."""
    measure = next(one for one in row.measures if (one.split, one.protocol) == (split, protocol))
    figure = summarise(as_it_is_now(entries, row), measure, statistics)
    if figure is None:
        return ""
    half = math.hypot(sum(figure.ci95s) / len(figure.ci95s), figure.between or 0.0)  # seeds share their episodes
    count, few = len(figure.seeds), ""
    if row.headline and count < HEADLINE_SEEDS:
        few = f" ({count} of {HEADLINE_SEEDS} seeds)"
    elif count == 1:
        few = " (one training)"
    return f"{percent(figure.mean, half, 2)}{few}"
