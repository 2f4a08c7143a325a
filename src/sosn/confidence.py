"""How sure is sure? Probabilities by a temperature, "none of these" by a threshold, both measured on validation classes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.errors import CheckpointError, DataError, UsageError
from sosn.evaluation import draw_indices, encode_once
from sosn.method.base import Method
from sosn.precision import full

CALIBRATION_FILE = "calibration.json"  # in a run folder
PERCENTS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)  # of known pictures that a threshold may refuse
OTHERS = 5  # classes of an episode, at most, that are not shown
BINS = 15  # of the calibration error
PAIRS = 2_000  # compared at once


@dataclass(frozen=True)
class Confidence:
    """What was measured for tasks of one size: way classes in `shot` pictures each, queries of these and of other classes.

    Fitted on episodes of one seed; what follows thresholds was measured on episodes of another.
    """

    way: int
    shot: int
    temperature: float  # logits divided by it give probabilities with the least cross-entropy
    thresholds: tuple[float, ...]  # on the highest logit, one for each of PERCENTS of known queries refused
    queries: int  # known ones that the following figures are of
    accuracy: float  # of known queries
    ece: float  # expected calibration error of the probabilities
    ece_before: float  # the same with temperature 1
    auroc: float  # of the highest logit: known queries against unknown
    refused: float  # share of known queries that the 5% threshold refuses
    detected: float  # share of unknown queries that it refuses


@dataclass(frozen=True)
class Calibration:
    """The confidence of a model at several sizes of tasks, measured on images of one kind."""

    data: str
    split: str
    sizes: tuple[Confidence, ...]

    def at(self, way: int, shot: int) -> Confidence:
        """The measured size that is nearest without being easier: no more classes and no more shots, if there is one.

        With more classes the highest logit of a known picture can only rise, so its threshold refuses no more of them.
        """
        ways = sorted({one.way for one in self.sizes})
        nearest_way = max((one for one in ways if one <= way), default=ways[0])
        own = sorted((one for one in self.sizes if one.way == nearest_way), key=lambda one: one.shot)
        return ([one for one in own if one.shot <= shot] or own[:1])[-1]

    def threshold(self, way: int, shot: int, reject: float) -> float:
        """The logit below which a picture is none of these, so that at most this share of known ones is refused.

        It is that of the largest measured share which is no larger.
        """
        places = [place for place, percent in enumerate(PERCENTS) if percent <= round(100 * reject, 6)]
        if not places or not reject <= PERCENTS[-1] / 100:
            raise UsageError(f"reject is {reject}; it is a share of known images, from 0.01 to 0.5, that may be refused")
        return self.at(way, shot).thresholds[places[-1]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Calibration":
        try:
            sizes = tuple(Confidence(**one | {"thresholds": tuple(one["thresholds"])}) for one in table["sizes"])
            if not sizes or any(len(one.thresholds) != len(PERCENTS) for one in sizes):
                raise ValueError(f"every size needs {len(PERCENTS)} thresholds")
            return cls(table["data"], table["split"], sizes)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"a calibration cannot be read ({error}): measure it anew") from error


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / T) over classes, (…, L)."""
    return (logits / temperature).softmax(-1)


def measure(
    method: Method,
    bank: Bank,
    split: str,
    data: str,
    ways: Sequence[int] = (1, 5, 20),
    shots: Sequence[int] = (1, 5),
    query: int = 5,
    episodes: int = 200,
    say: Callable[[str], None] | None = None,
) -> Calibration:
    """Fit temperatures and thresholds on episodes of a bank and judge them on others of the same classes.

    episodes is their number at 5 classes; there are as many queries at every size. An episode has up to five classes more that
    are not shown: their queries are the unknown ones. Sizes for which the bank has too few classes or images are left out;
    refuses a bank that has enough for none.
    """
    method.check_trained()
    method.eval()
    sizes = []
    for way in ways:
        for shot in shots:
            others = min(way, OTHERS, len(bank.names) - way)
            count = max(2, 5 * episodes // way)
            if others < 1 or int(bank.counts.min()) < shot + query:
                continue
            fitted = fit_confidence(*_draw(method, bank, way, others, shot, query, count, seed=0), way, shot)
            sizes.append(judge(fitted, *_draw(method, bank, way, others, shot, query, count, seed=1)))
            if say:
                say(f"{way}-way {shot}-shot: ECE {sizes[-1].ece:.3f}, AUROC {sizes[-1].auroc:.3f}")
    if not sizes:
        raise DataError(f"{len(bank.names)} {split} classes of {data} are too few, or have too few images, to measure anything")
    return Calibration(data, split, tuple(sizes))


def fit_confidence(known: Tensor, labels: Tensor, unknown: Tensor, way: int, shot: int) -> Confidence:
    """Temperature and thresholds from logits (n, L) of known queries with their labels (n,), judged on the same."""
    thresholds = np.quantile(known.amax(-1).double().numpy(), [percent / 100 for percent in PERCENTS], method="lower")
    temperature = fit_temperature(known, labels)
    fitted = Confidence(way, shot, temperature, tuple(round(float(one), 5) for one in thresholds), 0, 0, 0, 0, 0, 0, 0)
    return judge(fitted, known, labels, unknown)


def judge(fitted: Confidence, known: Tensor, labels: Tensor, unknown: Tensor) -> Confidence:
    """The figures of a temperature and of thresholds on logits of known queries (n, L), their labels, and unknown ones."""
    threshold = fitted.thresholds[PERCENTS.index(5)]
    top, other = known.amax(-1), unknown.amax(-1)
    figures: dict[str, Any] = {
        "accuracy": float((known.argmax(-1) == labels).double().mean()),
        "ece": calibration_error(probabilities(known, fitted.temperature), labels),
        "ece_before": calibration_error(probabilities(known, 1.0), labels),
        "auroc": auroc(top, other),
        "refused": float((top < threshold).double().mean()),
        "detected": float((other < threshold).double().mean()),
    }
    return replace(fitted, queries=len(known), **{name: round(value, 4) for name, value in figures.items()})


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the least cross-entropy of logits (n, L) and labels (n,); 1 where there is one class."""
    if logits.shape[-1] == 1:
        return 1.0
    from scipy.optimize import minimize_scalar

    logits = logits.double()
    found = minimize_scalar(lambda log: float(F.cross_entropy(logits / np.exp(log), labels)), bounds=(-4, 4), method="bounded")
    return round(float(np.exp(found.x)), 4)


def calibration_error(chances: Tensor, labels: Tensor) -> float:
    """Expected calibration error: |accuracy − mean probability of the answer| in 15 equal bins, weighted by their sizes."""
    top, answers = chances.double().max(-1)
    right = (answers == labels).double()
    bins = (top * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right - top)
    return float(gaps.abs().sum() / len(top))


def auroc(high: Tensor, low: Tensor) -> float:
    """How likely one of the first is above one of the second; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(torch.cat((high, low)).double().numpy())
    return float((ranks[: len(high)].sum() - len(high) * (len(high) + 1) / 2) / (len(high) * len(low)))


@torch.inference_mode()
def _draw(
    method: Method, bank: Bank, way: int, others: int, shot: int, query: int, episodes: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (n, way) of known queries, their labels (n,), and logits (m, way) of queries of classes that were not shown."""
    sampler = EpisodeSampler(bank, way + others, shot, query)
    support, queries = draw_indices(sampler, episodes, seed)
    support = support[:, :way].contiguous()
    known = encode_once(method, bank, support, queries)
    if known is None:
        raise UsageError(
            f"method {method.name!r} cannot be calibrated: it does not encode images one by one, or the images of {episodes} "
            "episodes take too much memory"
        )
    at_once = max(1, PAIRS // (way * (way + others) * query))
    parts = [
        full(method.compare(*known.look_up(support[first : first + at_once], queries[first : first + at_once]))).cpu()
        for first in range(0, episodes, at_once)
    ]
    logits = torch.cat(parts)  # (E, (way + others)·query, way)
    own = way * query
    labels = torch.arange(way).repeat_interleave(query).repeat(episodes)
    return logits[:, :own].reshape(-1, way), labels, logits[:, own:].reshape(-1, way)


def read_calibration(path: Path) -> Calibration | None:
    """The calibration in a run folder, or None where none was measured."""
    if not path.is_file():
        return None
    try:
        return Calibration.from_json(json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}): measure it anew") from error
