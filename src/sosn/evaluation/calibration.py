"""Calibration: a temperature for probabilities and thresholds for "none of these", fitted on validation classes."""

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
PERCENTS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)  # of known queries that a threshold may reject
OTHERS = 5  # unknown classes of an episode, at most
BINS = 15  # of the calibration error
AT_ONCE = {"cpu": 2_000, "cuda": 8_000}  # pairs compared, or images looked up
SURE = 0.999  # share of resamples in which a threshold keeps its percent; high, because all sizes of a card must hold
RESAMPLES = 2_000
VALUES = 5_000_000  # resampled at once
Rows = tuple[Tensor, Tensor]  # of a bank: support (E, L, Z) and queries (E, Q) of episodes


@dataclass(frozen=True)
class Confidence:
    """Calibration for tasks of one size, `way` classes with `shot` images each.

    Known queries are of these classes, unknown queries of others. The temperature and the thresholds were fitted on episodes
    of one seed; the other figures were measured on as many episodes of another seed.
    """

    way: int
    shot: int
    temperature: float  # minimises the cross-entropy of softmax(logits / temperature)
    thresholds: tuple[float, ...]  # on the highest logit, one for each of PERCENTS
    queries: int  # known queries that the following figures were measured on
    accuracy: float  # of known queries
    ece: float  # expected calibration error of the probabilities
    ece_before: float  # the same with temperature 1
    auroc: float  # of the highest logit: known queries against unknown
    refused: float  # share of known queries that the 5% threshold rejects
    detected: float  # share of unknown queries that it rejects
    episodes: int = 0  # that the figures were measured on; it was fitted on as many. 0: not recorded


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model on one dataset, for several sizes of tasks."""

    data: str
    split: str
    sizes: tuple[Confidence, ...]
    classes: tuple[str, ...] = ()  # if it holds for these alone, as that of a model that was tuned on them

    def at(self, way: int, shot: int) -> Confidence:
        """Return the nearest measured size with no more classes and no more shots, if there is one.

        With more classes, the highest logit of a known query can only rise, so the threshold rejects no more of them.
        """
        ways = [one.way for one in self.sizes]
        return self._with(max((one for one in ways if one <= way), default=min(ways)), shot)

    def expected(self, way: int, shot: int) -> Confidence | None:
        """Return the measured size whose accuracy may be expected, or None if only single classes were measured.

        It is the nearest size that is not easier: no fewer classes and no more shots, if there is one.
        """
        ways = [one.way for one in self.sizes if one.way > 1]
        return self._with(min((one for one in ways if one >= way), default=max(ways)), shot) if ways else None

    def _with(self, way: int, shot: int) -> Confidence:
        """Return, of the sizes with this many classes, the one with the most shots up to `shot`, or else the fewest."""
        sizes = sorted((one for one in self.sizes if one.way == way), key=lambda one: one.shot)
        return ([one for one in sizes if one.shot <= shot] or sizes[:1])[-1]

    def temperature(self, way: int, shot: int) -> float:
        """Return the temperature of the size that `at` returns. Several classes never use that of a single class."""
        found = self.at(way, shot)
        if found.way > 1 or way == 1:
            return found.temperature
        several = tuple(one for one in self.sizes if one.way > 1)
        return replace(self, sizes=several).at(way, shot).temperature if several else found.temperature

    def threshold(self, way: int, shot: int, reject: float) -> float:
        """Return the logit below which a query is none of these, so that at most the share `reject` of known ones is rejected.

        It is the threshold of the largest measured share up to `reject`.
        """
        check_reject(reject)
        places = [place for place, percent in enumerate(PERCENTS) if percent <= round(100 * reject, 6)]
        return self.at(way, shot).thresholds[places[-1]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Calibration":
        try:
            sizes = tuple(Confidence(**one | {"thresholds": tuple(one["thresholds"])}) for one in table["sizes"])
            if not sizes or any(len(one.thresholds) != len(PERCENTS) for one in sizes):
                raise ValueError(f"every size needs {len(PERCENTS)} thresholds")
            return cls(table["data"], table["split"], sizes, tuple(table.get("classes", ())))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the calibration is damaged ({error}): measure it again") from error


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(logits / T) over classes, (…, L)."""
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
    log: Callable[[str], None] | None = None,
) -> Calibration:
    """Fit temperatures and thresholds on episodes of a bank and evaluate them on other episodes of the same classes.

    episodes: their number at 5 classes; every size has as many queries. Up to five classes of an episode are not in its
    support: their queries are the unknown ones. Sizes for which the bank has too few classes or images are skipped. log
    receives a line for each size. Every image is encoded once, on the method's device. Refuses a bank that is too small for
    every size.
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
        raise DataError(f"the {len(bank.names)} {split} classes of {data} are too few, or have too few images, to calibrate")
    with torch.inference_mode():
        cache = cache_features(method, bank, *(rows for both in drawn.values() for part in both for rows in part))
    if cache is None:
        raise UsageError(
            f"method {method.name!r} cannot be calibrated: it does not encode images one by one, or the images of {episodes} "
            "episodes take too much memory"
        )
    sizes = []
    for (way, shot), (first, second) in drawn.items():
        fitted = fit_confidence(*_compare(method, cache, first, query), shot)
        sizes.append(evaluate_confidence(fitted, *_compare(method, cache, second, query)))
        if log:
            figures = ", ".join(f"{name} {getattr(sizes[-1], name):.3f}" for name in ("ece", "auroc", "refused", "detected"))
            log(f"{way}-way {shot}-shot, {sizes[-1].episodes:,} episodes: {figures}")
    return Calibration(data, split, tuple(sizes))


def fit_confidence(known: Tensor, labels: Tensor, unknown: Tensor, shot: int) -> Confidence:
    """Fit a temperature and thresholds to logits, and evaluate them on the same logits.

    known: logits (E, n, L) of queries of the support's classes. labels: their labels (E, n). unknown: logits (E, m, L) of
    queries of other classes.
    """
    temperature = fit_temperature(known.flatten(0, 1), labels.flatten())
    fitted = Confidence(known.shape[-1], shot, temperature, safe_thresholds(known.amax(-1)), 0, 0, 0, 0, 0, 0, 0)
    return evaluate_confidence(fitted, known, labels, unknown)


def safe_thresholds(top: Tensor) -> tuple[float, ...]:
    """Return, for each of PERCENTS, the highest safe threshold, from the highest logits (E, n) of known queries.

    A threshold is safe if it rejects no more than its percent of queries in 99.9% of 2,000 resamples. Whole episodes are
    resampled, because queries of one episode are correlated. A resample has E/2 episodes: its variance is then twice that of
    all E, which is that of the difference to E new episodes.
    """
    values, order = (part[: top.numel() // 2 + 1] for part in top.double().flatten().sort())  # no threshold is above the median
    episode = order // top.shape[1]  # of each value
    draws = max(1, len(top) // 2)
    allowed = torch.tensor([percent * draws * top.shape[1] // 100 for percent in PERCENTS], dtype=torch.int32)
    source, at_once = generator("thresholds"), max(1, VALUES // len(values))
    found = []
    for first in range(0, RESAMPLES, at_once):
        drawn = torch.randint(len(top), (min(at_once, RESAMPLES - first), draws), generator=source)
        times = torch.zeros(len(drawn), len(top), dtype=torch.int32)  # how often an episode is in a resample
        times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.int32))
        upto = times[:, episode].cumsum(1, dtype=torch.int32)
        places = torch.searchsorted(upto, allowed.repeat(len(drawn), 1), right=True)
        found.append(values[places.clamp(max=len(values) - 1)])
    lowest = torch.cat(found).sort(0).values[int((1 - SURE) * RESAMPLES)]
    return tuple(math.floor(1e5 * one) / 1e5 for one in lowest.tolist())


def evaluate_confidence(fitted: Confidence, known: Tensor, labels: Tensor, unknown: Tensor) -> Confidence:
    """Measure the figures of a temperature and thresholds on other logits. The arguments are as in fit_confidence."""
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


def check_reject(reject: float) -> None:
    """Refuse a share of known images that may be rejected outside 0.01…0.5."""
    if not PERCENTS[0] / 100 <= round(reject, 8) <= PERCENTS[-1] / 100:
        raise UsageError(f"reject is {reject}; it is the share of known images that may be rejected, from 0.01 to 0.5")


def fit_temperature(logits: Tensor, labels: Tensor, usual: float = 1.0, weight: float = 0.0) -> float:
    """Return the temperature that minimises the cross-entropy of logits (n, L) and labels (n,); 1 for a single class.

    usual: the temperature that is expected; a temperature e times as high or low costs `weight` (in nats, over all images).
    """
    if logits.shape[-1] == 1:
        return 1.0
    from scipy.optimize import minimize_scalar

    logits = logits.double()

    def cost(log: float) -> float:
        entropy = F.cross_entropy(logits / math.exp(log), labels, reduction="sum")
        return float(entropy) + weight * (log - math.log(usual)) ** 2

    found = minimize_scalar(cost, bounds=(-4, 4), method="bounded")
    return round(float(np.exp(found.x)), 4)


def calibration_error(chances: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error: |accuracy − mean confidence| in 15 equal bins, weighted by their sizes."""
    top, answers = chances.double().max(-1)
    right = (answers == labels).double()
    bins = (top * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right - top)
    return float(gaps.abs().sum() / len(top))


def auroc(high: Tensor, low: Tensor) -> float:
    """Return the probability that a value of `high` is above one of `low`; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(torch.cat((high, low)).double().numpy())
    return float((ranks[: len(high)].sum() - len(high) * (len(high) + 1) / 2) / (len(high) * len(low)))


@torch.inference_mode()
def _compare(method: Method, cache: FeatureCache, rows: Rows, query: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (E, n, L) of known queries, their labels (E, n), and logits (E, m, L) of unknown queries."""
    support, queries = rows
    episodes, way, shot = support.shape
    count = queries.shape[1]
    at_once = max(1, AT_ONCE.get(method.device.type, AT_ONCE["cpu"]) // max(way * count, way * shot + count))
    parts = [
        cache.logits(method, support[first : first + at_once], queries[first : first + at_once])
        for first in range(0, episodes, at_once)
    ]
    logits = torch.cat(parts).cpu()
    labels = torch.arange(way).repeat_interleave(query).expand(episodes, -1)
    return logits[:, : way * query], labels, logits[:, way * query :]


def read_calibration(path: Path) -> Calibration | None:
    """Read a calibration file, or return None if there is none."""
    if not path.is_file():
        return None
    try:
        return Calibration.from_json(json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}): measure it again") from error


def calibration_of(name_or_path: str | Path) -> Calibration | None:
    """Return the calibration of a shipped model, from its card, or of a run folder, or None if there is none."""
    path = model_path(str(name_or_path))
    if path.parent == shelf():
        table = shipped_models().get(path.stem, {}).get("calibration")
        return None if table is None else Calibration.from_json(table)
    return read_calibration(path.parent / CALIBRATION_FILE)
