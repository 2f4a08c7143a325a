"""The protocol: fixed seeded episodes, mean accuracy ± 95% confidence interval, paired comparison."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.dataset.lake import run_rows
from sosn.data.sampler import EpisodeSampler, Within
from sosn.errors import SosnError, SosnWarning, UsageError
from sosn.evaluation.cache import cache_features
from sosn.kernel import enabled
from sosn.method.base import Method, Statistics, TestTimeSpec
from sosn.util.seeding import generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BLOCK = 50  # episodes drawn from one key: the first 100 of 600 episodes are the first 100 of 100
TIES = 0.05  # a warning says so where a larger share of queries has no single best class
PAIRS = {"cpu": 1_000, "cuda": 8_000}  # support–query pairs scored at once


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a method on a number of episodes, as fractions."""

    accuracy: float
    ci95: float  # half of the width of the 95% confidence interval of the mean
    way: int
    shot: int
    query: int
    episodes: int
    statistics: Statistics
    seed: int
    per_episode: tuple[float, ...]
    fingerprint: str  # of the images of the episodes, in their order
    ties: float = 0.0  # share of queries for which several classes have the same highest score; the first of them counts

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.2f} ± {100 * self.ci95:.2f}%"

    def to_json(self) -> dict[str, Any]:
        """The figures, without the list of episodes."""
        names = ("accuracy", "ci95", "way", "shot", "query", "episodes", "statistics", "seed", "fingerprint", "ties")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Comparison:
    """Accuracy of one method minus that of another on the same episodes."""

    difference: float
    ci95: float
    p_value: float  # of a two-sided paired t-test: how likely such a difference is if there is none


def evaluate(
    method: Method,
    data: Bank,
    way: int = 5,
    shot: int = 1,
    query: int = 15,
    episodes: int | None = None,
    seed: int = 0,
    statistics: Statistics = "running",
    progress: Callable[[int, int], None] | None = None,
    within: Within = None,
    fabric: "Fabric | None" = None,
    test_time: TestTimeSpec = None,
) -> Evaluation:
    """Mean accuracy over episodes that depend on the data, the sizes and the seed alone, so every method sees the same.

    query counts images a class. statistics="running" uses what batch norm learnt in training; "batch" is the authors'
    transductive way. progress is called with the episodes done and their number. within="alphabet" takes the classes of each
    episode from one alphabet; within="drawers", its support from one drawer and its queries from another too, after Lake et
    al. There are 600 episodes unless told otherwise; of within="drawers", two of each of ten alphabets. With a fabric of
    several processes each takes its share of the episodes, and all get the same figures. test_time: a test-time augmentation
    in place of the method's own.
    """
    if episodes is not None and episodes < 2:
        raise UsageError(f"episodes is {episodes}; a confidence interval needs 2 or more")
    if statistics not in ("running", "batch"):
        raise UsageError(f"statistics is {statistics!r}; choose running or batch")
    if not isinstance(method, Method) or not isinstance(data, Bank):
        raise UsageError(f"evaluate takes a method and a bank, not {type(method).__name__} and {type(data).__name__}")
    sampler = EpisodeSampler(data, way, shot, query, within)
    rows = draw_indices(sampler, sampler.usual_count if episodes is None else episodes, seed)
    with evaluating(method, test_time):
        return _evaluate_rows(method, sampler, *rows, seed, statistics, progress, fabric)


def evaluate_runs(
    method: Method, runs: Bank, statistics: Statistics = "running", progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Mean accuracy over tasks as Lake et al. give them out, which read_runs opens."""
    support, queries = run_rows(runs)
    sampler = EpisodeSampler(runs, support.shape[1], 1, 1, "alphabet")
    return _evaluate_rows(method, sampler, support, queries, 0, statistics, progress)


def _evaluate_rows(
    method: Method, sampler: EpisodeSampler, support: Tensor, queries: Tensor, seed: int, statistics: Statistics,
    progress: Callable[[int, int], None] | None, fabric: "Fabric | None" = None,
) -> Evaluation:  # fmt: skip
    """Mean accuracy over the episodes of these rows of the sampler's bank."""
    episodes = len(support)
    if fabric is None or fabric.world_size == 1:
        results = _answers(sampler, method, support, queries, statistics, progress)
    else:
        results = torch.zeros(episodes, 2, dtype=torch.float64, device=fabric.device)
        own = slice(fabric.global_rank, None, fabric.world_size)
        results[own] = _answers(sampler, method, support[own], queries[own], statistics, progress)
        results = cast(Tensor, fabric.all_reduce(results, reduce_op="sum"))  # an episode is one process's, the others add 0
    accuracies, tied = results.cpu().unbind(1)
    mean, half = mean_ci95(accuracies)
    ties = tied.mean().item()
    if ties > TIES:
        warnings.warn(
            f"{100 * ties:.0f}% of the queries have the same highest score for several classes: the model was trained too "
            "little, or on other kinds of images, or it is as sure of them as it can be",
            SosnWarning,
            stacklevel=3,
        )
    sizes = (sampler.way, sampler.shot, sampler.query, episodes)
    fingerprint = _fingerprint(sampler.bank, support, queries)
    return Evaluation(mean, half, *sizes, statistics, seed, tuple(accuracies.tolist()), fingerprint, ties)


def _answers(
    sampler: EpisodeSampler, method: Method, support: Tensor, queries: Tensor, statistics: Statistics,
    progress: Callable[[int, int], None] | None,
) -> Tensor:  # fmt: skip
    """For each episode of these rows, the share of right answers and of ties (E, 2), in evaluation mode."""
    episodes = len(support)
    if not episodes:  # of a process whose share is none
        return torch.zeros(0, 2, dtype=torch.float64, device=method.device)
    at_once = max(1, PAIRS.get(method.device.type, 1_000) // (sampler.way**2 * sampler.query))
    parts = []
    with evaluating(method), torch.inference_mode():
        cache = None
        if statistics == "running" and enabled():
            cache = cache_features(method, sampler.bank, support, queries, one_shot=sampler.shot == 1)
        for first in range(0, episodes, at_once):
            rows = slice(first, first + at_once)
            labels = sampler.labels.expand(len(support[rows]), -1).to(method.device)
            if cache is None:
                logits = method.logits(sampler.episode(support[rows], queries[rows]).to(method.device), statistics)
            else:
                logits = cache.logits(method, support[rows], queries[rows])
            if not torch.isfinite(logits).all():
                raise SosnError("scores are not finite: the weights or the images hold NaN or infinite values")
            highest, answers = logits.max(-1)
            tied = (logits == highest.unsqueeze(-1)).sum(-1) > 1
            parts.append(torch.stack(((answers == labels).double().mean(1), tied.double().mean(1)), 1))
            if progress:
                progress(min(first + at_once, episodes), episodes)
    return torch.cat(parts)


@contextmanager
def evaluating(method: Method, test_time: TestTimeSpec = None) -> Iterator[None]:
    """The method in evaluation mode, with another test-time augmentation if one is given; afterwards as it was before."""
    modes, before = {module: module.training for module in method.modules()}, method.test_time
    if test_time is not None:
        method.use_test_time(test_time)
    method.eval()
    try:
        yield
    finally:
        method.test_time = before
        for module, training in modes.items():
            module.training = training


def draw_indices(sampler: EpisodeSampler, episodes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of the bank for all episodes, drawn on the CPU so that they are the same on every device."""
    blocks = [sampler.indices(BLOCK, generator("evaluation", seed, block)) for block in range(math.ceil(episodes / BLOCK))]
    support, query = (torch.cat(parts)[:episodes] for parts in zip(*blocks, strict=True))
    return support, query


def _fingerprint(data: Bank, support: Tensor, query: Tensor) -> str:
    """A digest of which classes and images the episodes use: equal for the same episodes, whatever the method."""
    digest = hashlib.blake2b(data.fingerprint.encode(), digest_size=8)
    for rows in (support, query):
        digest.update(rows.contiguous().numpy().tobytes())
    return digest.hexdigest()


def mean_ci95(values: Tensor) -> tuple[float, float]:
    """Mean, and 1.96 standard errors of it."""
    return values.mean().item(), 1.96 * values.std().item() / math.sqrt(len(values))


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Paired comparison of two methods. Refuses evaluations that were not made on the same episodes."""
    for one in (first, second):
        if not isinstance(one, Evaluation):
            raise UsageError(f"compare takes what evaluate gave, not {type(one).__name__}: evaluate both models first")
    if first.fingerprint != second.fingerprint:
        raise UsageError("the two evaluations used different episodes: give both the same data, way, shot, query and seed")
    from scipy import stats

    differences = torch.tensor(first.per_episode, dtype=torch.float64) - torch.tensor(second.per_episode, dtype=torch.float64)
    mean, half = mean_ci95(differences)
    if half == 0:  # the same difference everywhere: no spread to test against
        return Comparison(mean, 0.0, 1.0 if mean == 0 else 0.0)
    return Comparison(mean, half, float(stats.ttest_rel(first.per_episode, second.per_episode).pvalue))
