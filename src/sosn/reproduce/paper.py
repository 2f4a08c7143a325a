"""The paper's figures, in per cent with their 95% confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

PAIRS = tuple((train, test) for train in ("p1", "p2", "p3", "p4") for test in ("p1", "p2", "p3", "p4") if train != test)
EXHIBITIONS = ("shn", "hon", "clv", "clk", "gls", "scl", "sci", "nat", "shx", "rlc")

# "Evaluations on the Open MIC dataset": 1-shot, columns are PAIRS.
OPEN_MIC_1 = (
    ("Relation Net", 5,
         "71.1 1.0 53.6 1.1 63.5 1.0 47.2 1.0 50.6 1.1 68.5 1.0 48.5 1.1 49.7 1.1 68.4 1.0 45.5 1.0 70.3 1.0 50.8 1.1"),
    ("Relation Net", 20,
         "40.1 0.5 30.4 0.5 41.4 0.5 23.5 0.4 26.4 0.5 38.6 0.5 26.2 0.4 25.8 0.4 46.3 0.5 23.1 0.4 43.3 0.5 27.7 0.4"),
    ("SoSN", 5,
         "80.8 0.9 64.3 1.1 74.9 1.1 58.8 1.1 61.2 1.1 76.9 0.9 61.3 1.1 80.8 0.9 77.2 1.0 58.2 1.1 80.1 0.9 61.6 1.1"),
    ("SoSN", 20,
         "57.0 0.5 42.3 0.5 54.2 0.5 34.7 0.5 37.0 0.5 54.8 0.5 36.0 0.5 57.1 0.5 57.0 0.5 36.4 0.5 59.3 0.9 37.8 0.5"),
    ("SoSN+SigmE", 5,
         "81.4 0.9 65.2 1.1 75.1 1.0 60.3 1.1 62.1 1.1 77.7 0.9 61.5 1.1 82.0 1.0 78.0 1.0 59.0 1.1 80.8 1.0 62.5 1.1"),
    ("SoSN+SigmE", 20,
         "59.4 0.6 42.5 0.5 55.0 0.5 35.1 0.5 38.3 0.5 56.3 0.5 38.7 0.5 57.9 0.6 59.4 0.5 37.4 0.5 59.0 0.5 38.6 0.5"),
    ("SoSN+SigmE 224²", 5,
         "83.9 0.9 68.9 1.1 82.1 0.9 64.7 1.1 66.6 1.1 82.2 0.9 65.5 1.1 84.5 0.8 80.6 0.8 64.6 1.1 83.6 0.8 66.0 1.1"),
    ("SoSN+SigmE 224²", 20,
         "63.6 0.5 46.7 0.6 63.6 0.5 39.0 0.5 43.9 0.5 61.8 0.5 43.7 0.5 63.3 0.5 62.5 0.5 42.7 0.5 61.5 0.5 43.7 0.5"),
)  # fmt: skip

# "Evaluations on the Open MIC dataset for Protocol II": 1-shot, columns are EXHIBITIONS.
OPEN_MIC_2 = (
    ("Relation Net", 5,
         "43.2 1.0 49.6 1.0 49.8 1.0 62.1 1.1 59.3 1.0 51.5 1.0 45.9 1.0 54.8 1.0 71.1 1.0 72.0 1.0"),
    ("Relation Net", 20,
         "20.8 0.4 25.7 0.4 26.1 0.4 34.3 0.4 35.5 0.5 18.4 0.3 18.6 0.3 32.8 0.5 51.8 0.5 48.2 0.5"),
    ("Relation Net", 30,
         "18.1 0.3 21.1 0.3 23.2 0.3 27.0 0.3 31.8 0.4 12.8 0.2 12.4 0.2 27.1 0.3 40.6 0.4 41.0 0.4"),
    ("SoSN", 5,
         "60.3 1.1 62.6 1.1 60.5 1.1 72.9 1.1 74.3 1.1 72.3 1.0 53.4 1.1 68.0 1.1 77.0 1.0 78.4 1.0"),
    ("SoSN", 20,
         "36.3 0.5 34.4 0.5 32.3 0.4 46.5 0.5 48.6 0.5 50.1 0.5 24.8 0.4 42.0 0.5 58.5 0.5 53.2 0.5"),
    ("SoSN", 30,
         "32.0 0.4 32.6 0.4 27.7 0.3 44.3 0.4 44.0 0.4 44.2 0.4 16.3 0.3 39.9 0.4 53.7 0.4 47.8 0.4"),
    ("SoSN+SigmE", 5,
         "61.5 1.1 63.6 1.1 61.7 1.1 74.5 1.2 74.9 1.1 72.9 1.0 54.2 1.0 68.9 1.1 78.0 1.0 79.1 1.0"),
    ("SoSN+SigmE", 20,
         "37.4 0.5 37.5 0.5 33.9 0.4 48.6 0.5 53.2 0.5 50.5 0.5 25.1 0.4 45.3 0.5 58.9 0.5 56.6 0.5"),
    ("SoSN+SigmE", 30,
         "32.8 0.4 33.4 0.4 30.6 0.3 45.3 0.5 49.9 0.4 49.3 0.3 21.1 0.3 40.8 0.4 54.9 0.4 48.7 0.5"),
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """An accuracy of the paper in per cent, with half the width of its interval if the paper prints one."""

    printed: str  # such as 52.10±0.82

    @property
    def accuracy(self) -> float:
        return float(self.printed.partition("±")[0])

    @property
    def ci95(self) -> float | None:
        half = self.printed.partition("±")[2]
        return float(half) if half else None

    def __str__(self) -> str:
        return self.printed.replace("±", " ± ")


def _published(protocols: str, figures: str) -> dict[str, Published]:
    """Return figures by protocol; "-" marks one that the paper does not print."""
    pairs = zip(protocols.split(), figures.split(), strict=True)
    return {protocol: Published(figure) for protocol, figure in pairs if figure != "-"}


def _omniglot(figures: str) -> dict[str, Published]:
    return _published("5w1s 5w5s 20w1s 20w5s", figures)


def _mini(figures: str) -> dict[str, Published]:
    return _published("5w1s 5w5s", figures)


# "Evaluations on Omniglot".
OMNIGLOT = {
    "Matching Nets": _omniglot("97.9 98.7 93.5 98.7"),
    "Siamese Nets with Memory": _omniglot("98.4 99.6 95.0 98.6"),
    "Meta Nets": _omniglot("99.0 - 97.0 -"),
    "Prototypical Net": _omniglot("99.8 99.7 96.0 98.9"),
    "Relation Net": _omniglot("99.6±0.2 99.8±0.1 97.6±0.2 99.1±0.1"),
    "SoSN(⊗)+AsinhE": _omniglot("99.7±0.2 99.9±0.1 98.2±0.2 99.3±0.1"),
    "SoSN(⊗)+SigmE": _omniglot("99.8±0.1 99.9±0.1 98.3±0.2 99.4±0.1"),
}

# Snell et al. (2017), of Vinyals' partition with test classes at four angles; the paper prints 99.8 for the first.
SNELL = _omniglot("98.8 99.7 96.0 98.9")

# "Evaluations on the miniImagenet dataset": 84² unless the label says otherwise.
MINI_IMAGENET = {
    "Matching Nets": _mini("43.56±0.84 55.31±0.73"),
    "Meta-Learn Nets": _mini("43.44±0.77 60.60±0.71"),
    "Prototypical Net": _mini("49.42±0.78 68.20±0.66"),
    "MAML": _mini("48.70±1.84 63.11±0.92"),
    "Relation Net": _mini("50.44±0.82 65.32±0.70"),
    "SoSN(⊗+F)+SigmE": _mini("50.57±0.84 65.91±0.71"),
    "SoSN(⊗+R)+SigmE": _mini("52.96±0.83 68.58±0.70"),
    "SoSN(⊗) (no Power Norm.)": _mini("50.88±0.85 66.71±0.67"),
    "SoSN(⊗)+AsinhE": _mini("52.10±0.82 67.79±0.69"),
    "SoSN(⊗)+SigmE": _mini("52.96±0.83 68.63±0.68"),
    "SoSN(⊗)+Permutation+SigmE": _mini("54.52±0.86 68.52±0.69"),
    "SoSN(⊗)+Permutation+SigmE+Multiple-similarity Net.": _mini("54.72±0.89 68.67±0.67"),
    "SoSN(⊗)+SigmE (224×224)": _mini("58.41±0.87 72.96±0.67"),
    "SoSN(⊗)+Permutation+SigmE (224×224)": _mini("58.80±0.90 73.11±0.71"),
    "SoSN(⊗)+Permutation+SigmE (224×224)+Mult.-sim. Net.": _mini("59.22±0.91 73.24±0.69"),
}


def _open_mic(rows: Sequence[tuple[str, int, str]], columns: Sequence[str]) -> dict[str, dict[str, Published]]:
    """Return figures by model and by column and way, such as p1→p2 5w1s. Accuracies and half intervals alternate."""
    found: dict[str, dict[str, Published]] = {}
    for model, way, figures in rows:
        numbers = figures.split()
        printed = (f"{figure}±{half}" for figure, half in zip(numbers[::2], numbers[1::2], strict=True))
        protocols = (f"{column} {way}w1s" for column in columns)
        found.setdefault(model, {}).update((key, Published(one)) for key, one in zip(protocols, printed, strict=True))
    return found


PUBLISHED = {  # by table, label and protocol
    "omniglot": OMNIGLOT,
    "mini-imagenet": MINI_IMAGENET,
    "open-mic-1": _open_mic(OPEN_MIC_1, [f"{train}→{test}" for train, test in PAIRS]),
    "open-mic-2": _open_mic(OPEN_MIC_2, EXHIBITIONS),
}


def published(table: str, label: str, protocol: str) -> Published | None:
    """Return the paper's figure for a row of a table and a protocol such as 5w1s, or None if there is none."""
    return PUBLISHED.get(table, {}).get(label, {}).get(protocol)


def ahead(table: str, first: str, second: str, protocol: str) -> float:
    """Return the paper's difference of two rows, in points."""
    figures = [published(table, label, protocol) for label in (first, second)]
    if not all(figures):
        raise KeyError(f"the paper prints no {protocol} figures of {first!r} and {second!r} for {table}")
    one, other = (figure.accuracy for figure in figures if figure)
    return round(one - other, 2)
