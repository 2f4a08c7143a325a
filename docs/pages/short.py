"""The headline figures in one table, for the README and the page on the reproduction."""

from collections.abc import Sequence

from sosn.reproduce.ledger import Entry, as_it_is_now, summarise
from sosn.reproduce.omniglot import PROTOCOLS
from sosn.reproduce.paper import published
from sosn.reproduce.row import HEADLINE_SEEDS
from sosn.reproduce.table import TABLES

MODEL = "SoSN(⊗)+SigmE"  # the paper's own
LINES = (  # what, table, classes, the row of a protocol; without one the figure is the printed one
    ("Omniglot: the paper", "omniglot", "test", ""),
    ("its model here, the paper's kind of partition", "omniglot", "test", "sigme-paper-{protocol}"),
    ("our best recipe, the paper's kind of partition", "omniglot", "test", "best-paper-20w{shot}s"),
    ("its model here, Vinyals' partition", "omniglot", "test", "sigme-vinyals-{protocol}"),
    ("our best recipe, Vinyals' partition", "omniglot", "test", "best-20w{shot}s"),
    ("*mini*ImageNet, 84²: the paper", "mini-imagenet", "test", ""),
    ("its model here", "mini-imagenet", "val", "sigme-{protocol}"),
    ("our best recipe, Conv-4", "mini-imagenet", "val", "best-{protocol}"),
    ("our recipe for ResNet-12", "mini-imagenet", "val", "resnet12-{protocol}"),
)


def short(entries: Sequence[Entry]) -> str:
    """The paper's figures, those of its model here, and those of our recipes: a column a protocol."""
    rows = [f"| accuracy, % | classes | {' | '.join(PROTOCOLS)} |", "|---|---|" + "---|" * len(PROTOCOLS)]
    for what, table, split, name in LINES:
        cells = []
        for protocol, (_, shot, _) in PROTOCOLS.items():
            if name:
                cells.append(_ours(entries, table, name.format(protocol=protocol, shot=shot), split, protocol))
            else:
                printed = published(table, MODEL, protocol)
                cells.append(f"{printed.accuracy}" if printed else "")
        rows.append(f"| {' | '.join([what, split, *cells])} |")
    return "\n".join(rows) + "\n"


def _ours(entries: Sequence[Entry], table: str, name: str, split: str, protocol: str) -> str:
    """A row's mean ± its interval between seeds, and how many seeds where there are too few; nothing if it was not run."""
    for row in TABLES[table]:
        for measure in row.measures:
            if (row.id, measure.split, measure.protocol) == (name, split, protocol):
                figure = summarise(as_it_is_now(entries, row), measure, "running")
                if figure:
                    between = "" if figure.between is None else f" ± {100 * figure.between:.2f}"
                    few = f" ({len(figure.seeds)} of {HEADLINE_SEEDS} seeds)" if len(figure.seeds) < HEADLINE_SEEDS else ""
                    return f"{100 * figure.mean:.2f}{between}{few}"
    return ""
