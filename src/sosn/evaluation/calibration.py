"""How sure is sure? Probabilities by a temperature, "none of these" by a threshold, both measured on validation classes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.checkpoint.registry import model_path, shipped_models
from sosn.checkpoint.storage import shelf
from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.errors import CheckpointError, DataError, UsageError
from sosn.evaluation.cache import FeatureCache, cache_features
from sosn.evaluation.protocol import draw_indices
from sosn.method.base import Method
from sosn.util.seeding import generator

CALIBRATION_FILE = "calibration.json"  # in a run folder
PERCENTS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)  # of known pictures that a threshold may refuse
OTHERS = 5  # classes of an episode, at most, that are not shown
BINS = 15  # of the calibration error
AT_ONCE = {"cpu": 2_000, "cuda": 8_000}  # pairs compared, and images looked up
SURE = 0.999  # share of resamples in which a threshold refuses no more than its percent; cards have many sizes, all shall hold
RESAMPLES = 2_000
VALUES = 5_000_000  # resampled at once
Rows = tuple[Tensor, Tensor]  # of a bank: support (E, L, Z) and queries (E, Q) of episodes


@dataclass(frozen=True)
class Confidence:
    """What was measured for tasks of one size: way classes in `shot` pictures each, queries of these and of other classes.

    Fitted on episodes of one seed; what follows thresholds was measured on as many of another.
    """

    way: int
    shot: int
    temperature: float  # logits divided by it give probabilities with the least cross-entropy
    thresholds: tuple[float, ...]  # on the highest logit, one for each of PERCENTS of known queries that may be refused
    queries: int  # known ones that the following figures are of
    accuracy: float  # of known queries
    ece: float  # expected calibration error of the probabilities
    ece_before: float  # the same with temperature 1
    auroc: float  # of the highest logit: known queries against unknown
    refused: float  # share of known queries that the 5% threshold refuses
    detected: float  # share of unknown queries that it refuses
    episodes: int = 0  # that the above figures are of, and as many that it was fitted on; 0 where it was not written down


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
        ways = [one.way for one in self.sizes]
        return self._with(max((one for one in ways if one <= way), default=min(ways)), shot)

    def promised(self, way: int, shot: int) -> Confidence | None:
        """The measured size of several classes whose accuracy may be expected; None where only one class was measured.

        It is the nearest that is not easier: no fewer classes and no more shots, if there is one.
        """
        ways = [one.way for one in self.sizes if one.way > 1]
        return self._with(min((one for one in ways if one >= way), default=max(ways)), shot) if ways else None

    def _with(self, way: int, shot: int) -> Confidence:
        """Of the measured sizes with this many classes, that with the most shots that are no more than these, if there are."""
        own = sorted((one for one in self.sizes if one.way == way), key=lambda one: one.shot)
        return ([one for one in own if one.shot <= shot] or own[:1])[-1]

    def temperature(self, way: int, shot: int) -> float:
        """That of the measured size which at names; of the least with several classes where at names one of a single class."""
        found = self.at(way, shot)
        if found.way > 1 or way == 1:
            return found.temperature
        several = tuple(one for one in self.sizes if one.way > 1)
        return replace(self, sizes=several).at(way, shot).temperature if several else found.temperature

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
            raise CheckpointError(f"a calibration cannot be read ({error}): measure it again") from error


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
    """Fit temperatures and thresholds on episodes of a bank and judge them on as many others of the same classes.

    episodes is their number at 5 classes; there are as many queries at every size. An episode has up to five classes more that
    are not shown: their queries are the unknown ones. Sizes for which the bank has too few classes or images are left out;
    refuses a bank that has enough for none. Works on the method's device; every image is encoded once.
    """
    method.check_trained()
    method.eval()
    drawn: dict[tuple[int, int], list[Rows]] = {}
    for way in ways:
        others = min(way, OTHERS, len(bank.names) - way)
        for shot in shots:
            if others < 1 or int(bank.counts.min()) < shot + query:
                continue
            sampler = EpisodeSampler(bank, way + others, shot, query)
            both = [draw_indices(sampler, max(2, 5 * episodes // way), seed) for seed in (0, 1)]
            drawn[way, shot] = [(support[:, :way].contiguous(), queries) for support, queries in both]
    if not drawn:
        raise DataError(f"{len(bank.names)} {split} classes of {data} are too few, or have too few images, to measure anything")
    with torch.inference_mode():
        known = cache_features(method, bank, *(rows for both in drawn.values() for own in both for rows in own))
    if known is None:
        raise UsageError(
            f"method {method.name!r} cannot be calibrated: it does not encode images one by one, or the images of {episodes} "
            "episodes take too much memory"
        )
    sizes = []
    for (way, shot), (first, second) in drawn.items():
        fitted = fit_confidence(*_compare(method, known, first, query), shot)
        sizes.append(judge(fitted, *_compare(method, known, second, query)))
        if say:
            told = ", ".join(f"{name} {getattr(sizes[-1], name):.3f}" for name in ("ece", "auroc", "refused", "detected"))
            say(f"{way}-way {shot}-shot, {sizes[-1].episodes:,} episodes: {told}")
    return Calibration(data, split, tuple(sizes))


def fit_confidence(known: Tensor, labels: Tensor, unknown: Tensor, shot: int) -> Confidence:
    """Temperature and thresholds from logits by episode, judged on the same.

    known (E, n, L) are those of queries of the classes shown, with their labels (E, n); unknown (E, m, L), of other classes.
    """
    temperature = fit_temperature(known.flatten(0, 1), labels.flatten())
    fitted = Confidence(known.shape[-1], shot, temperature, safe_thresholds(known.amax(-1)), 0, 0, 0, 0, 0, 0, 0)
    return judge(fitted, known, labels, unknown)


def safe_thresholds(top: Tensor) -> tuple[float, ...]:
    """For each of PERCENTS the highest threshold that is safe, from the highest logits (E, n) of known queries by episode.

    One is safe if it refuses no more than that percent in 99.9% of 2,000 resamples. Whole episodes are resampled, as queries
    of one episode are alike. A resample has E/2 of them: it differs from all E as much as E others would (twice the variance).
    """
    values, order = (part[: top.numel() // 2 + 1] for part in top.double().flatten().sort())  # none is above the median
    episode = order // top.shape[1]  # of each value
    draws = max(1, len(top) // 2)
    allowed = torch.tensor([percent * draws * top.shape[1] // 100 for percent in PERCENTS], dtype=torch.int32)
    source, at_once = generator("thresholds"), max(1, VALUES // len(values))
    found = []
    for first in range(0, RESAMPLES, at_once):
        drawn = torch.randint(len(top), (min(at_once, RESAMPLES - first), draws), generator=source)
        times = torch.zeros(len(drawn), len(top), dtype=torch.int32)  # that an episode is in a resample
        times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.int32))
        upto = times[:, episode].cumsum(1, dtype=torch.int32)
        places = torch.searchsorted(upto, allowed.repeat(len(drawn), 1), right=True)
        found.append(values[places.clamp(max=len(values) - 1)])
    lowest = torch.cat(found).sort(0).values[int((1 - SURE) * RESAMPLES)]
    return tuple(math.floor(1e5 * one) / 1e5 for one in lowest.tolist())


def judge(fitted: Confidence, known: Tensor, labels: Tensor, unknown: Tensor) -> Confidence:
    """The figures of a temperature and of thresholds on logits by episode, those that fit_confidence takes."""
    threshold, episodes = fitted.thresholds[PERCENTS.index(5)], len(known)
    known, labels, unknown = known.flatten(0, 1), labels.flatten(), unknown.flatten(0, 1)
    top, other = known.amax(-1), unknown.amax(-1)
    figures: dict[str, Any] = {
        "accuracy": float((known.argmax(-1) == labels).double().mean()),
        "ece": calibration_error(probabilities(known, fitted.temperature), labels),
        "ece_before": calibration_error(probabilities(known, 1.0), labels),
        "auroc": auroc(top, other),
        "refused": float((top < threshold).double().mean()),
        "detected": float((other < threshold).double().mean()),
    }
    figures = {name: round(value, 4) for name, value in figures.items()}
    return replace(fitted, queries=len(known), episodes=episodes, **figures)


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
def _compare(method: Method, known: FeatureCache, rows: Rows, query: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (E, n, L) of queries of the classes shown, their labels (E, n), and logits (E, m, L) of queries of others."""
    support, queries = rows
    episodes, way, shot = support.shape
    asked = queries.shape[1]
    at_once = max(1, AT_ONCE.get(method.device.type, AT_ONCE["cpu"]) // max(way * asked, way * shot + asked))
    parts = [
        known.logits(method, support[first : first + at_once], queries[first : first + at_once])
        for first in range(0, episodes, at_once)
    ]
    logits = torch.cat(parts).cpu()
    labels = torch.arange(way).repeat_interleave(query).expand(episodes, -1)
    return logits[:, : way * query], labels, logits[:, way * query :]


def read_calibration(path: Path) -> Calibration | None:
    """The calibration in a run folder, or None where none was measured."""
    if not path.is_file():
        return None
    try:
        return Calibration.from_json(json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}): measure it again") from error


def calibration_of(name_or_path: str | Path) -> Calibration | None:
    """The measured confidence of a shipped model, from its card, or of a run folder; None where none was measured."""
    path = model_path(str(name_or_path))
    if path.parent == shelf():
        table = shipped_models().get(path.stem, {}).get("calibration")
        return None if table is None else Calibration.from_json(table)
    return read_calibration(path.parent / CALIBRATION_FILE)
