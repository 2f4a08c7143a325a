"""Rows for Open MIC: the paper's two tables, with one training for each part or exhibition and way."""

from collections.abc import Iterator, Sequence

from sosn.reproduce.ledger import Entry, of_row, summarise
from sosn.reproduce.paper import EXHIBITIONS, PAIRS
from sosn.reproduce.row import Measure, Row, words

METHODS = {  # id: label in the paper, settings
    "relation-net": ("Relation Net", words("method=relation_net clip=0.5")),
    "none": ("SoSN", words("power_norm=none trace_normalise=false")),
    "sigme": ("SoSN+SigmE", ()),
    "sigme-224": ("SoSN+SigmE 224²", words("size=224")),
}
TABLES = {  # table: ways, pairs of training and test photos, methods
    "open-mic-1": ((5, 20), PAIRS, ("relation-net", "none", "sigme", "sigme-224")),
    "open-mic-2": ((5, 20, 30), tuple((one, one) for one in EXHIBITIONS), ("relation-net", "none", "sigme")),
}
QUERY = 2  # per class, in training and test


def _rows(table: str) -> Iterator[Row]:
    ways, pairs, methods = TABLES[table]
    for name in methods:
        label, settings = METHODS[name]
        for way in ways:
            for part in dict.fromkeys(train for train, _ in pairs):  # one model for all tests of a part
                tests = [test for train, test in pairs if train == part]
                measures = tuple(
                    Measure("test", way, 1, QUERY, (f"test={test}",), part if part == test else f"{part}→{test}")
                    for test in tests
                )
                overrides = (f"train={part}", f"test={tests[0]}", f"way={way}", *settings)
                yield Row(table, f"{way}-way", f"{name}-{part}-{way}w", label, table, overrides, measures)


ROWS = {table: tuple(_rows(table)) for table in TABLES}


def averages(table: str, entries: Sequence[Entry]) -> list[tuple[str, int, float | None, float | None]]:
    """Return label, way, and the mean accuracies of the paper and ours over all pairs, as fractions.

    A mean is None if an accuracy is missing.
    """
    found = []
    for name in TABLES[table][2]:
        label = METHODS[name][0]
        for way in TABLES[table][0]:
            paper: list[float | None] = []
            ours: list[float | None] = []
            for row in (row for row in ROWS[table] if (row.label, row.group) == (label, f"{way}-way")):
                for measure in row.measures:
                    printed = row.paper(measure.protocol)
                    figure = summarise(of_row(entries, table, row.id), measure, "running")
                    paper.append(printed.accuracy / 100 if printed else None)
                    ours.append(figure.mean if figure else None)
            found.append((label, way, _mean(paper), _mean(ours)))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
