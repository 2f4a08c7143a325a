"""The evaluation protocol: seeded episodes, mean accuracy ± 95% confidence interval, paired comparison."""

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

BLOCK = 50  # episodes drawn from one key, so that the first 100 of 600 episodes equal those of 100
TIES = 0.05  # share of queries without a single best class above which evaluate warns
PAIRS = {"cpu": 1_000, "cuda": 8_000}  # support–query pairs scored at once


@dataclass(frozen=True)
class Evaluation:
    """The accuracy of a method on a number of episodes; accuracies are fractions."""

    accuracy: float
    ci95: float  # half the width of the 95% confidence interval of the mean
    way: int
    shot: int
    query: int
    episodes: int
    statistics: Statistics
    seed: int
    per_episode: tuple[float, ...]
    fingerprint: str  # of the images of the episodes, in their order
    ties: float = 0.0  # share of queries whose highest score several classes share; the first class is the answer

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.2f} ± {100 * self.ci95:.2f}%"

    def to_json(self) -> dict[str, Any]:
        """Return the figures, without the accuracies of single episodes."""
        names = ("accuracy", "ci95", "way", "shot", "query", "episodes", "statistics", "seed", "fingerprint", "ties")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Comparison:
    """The accuracy of one method minus that of another on the same episodes."""

    difference: float
    ci95: float
    p_value: float  # of a two-sided paired t-test


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
    """Measure the mean accuracy over episodes that depend only on the data, the sizes and the seed.

    query: images per class. episodes: 600 by default; with within="drawers", two for each of ten alphabets.
    statistics: "running" uses the statistics of batch norm from training; "batch" is transductive, as in the authors' code.
    progress: called with the number of finished episodes and their total. within: "alphabet" takes the classes of an episode
    from one alphabet; "drawers" also takes the support from one drawer and the queries from another, as Lake et al. do.
    fabric: with several processes, each evaluates a share of the episodes, and all return the same figures.
    test_time: replaces the method's test-time augmentation. Refuses fewer than 2 episodes.
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
    """Measure the mean accuracy over the published tasks of Lake et al., which read_runs opens."""
    support, queries = run_rows(runs)
    sampler = EpisodeSampler(runs, support.shape[1], 1, 1, "alphabet")
    return _evaluate_rows(method, sampler, support, queries, 0, statistics, progress)


def _evaluate_rows(
    method: Method, sampler: EpisodeSampler, support: Tensor, queries: Tensor, seed: int, statistics: Statistics,
    progress: Callable[[int, int], None] | None, fabric: "Fabric | None" = None,
) -> Evaluation:  # fmt: skip
    """Measure the mean accuracy over episodes, given by their rows of the sampler's bank."""
    episodes = len(support)
    if fabric is None or fabric.world_size == 1:
        results = _answers(sampler, method, support, queries, statistics, progress)
    else:
        results = torch.zeros(episodes, 2, dtype=torch.float64, device=fabric.device)
        share = slice(fabric.global_rank, None, fabric.world_size)
        results[share] = _answers(sampler, method, support[share], queries[share], statistics, progress)
        results = cast(
            Tensor, fabric.all_reduce(results, reduce_op="sum")
        )  # one process evaluates an episode, the others add 0
    accuracies, tied = results.cpu().unbind(1)
    mean, half = mean_ci95(accuracies)
    ties = tied.mean().item()
    if ties > TIES:
        warnings.warn(
            f"for {100 * ties:.0f}% of the queries, several classes share the highest score: the model may need more training "
            "or was trained on different images, or its scores are saturated",
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
    """Return the accuracy and the share of ties of each episode (E, 2), in evaluation mode."""
    episodes = len(support)
    if not episodes:  # a process without a share
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
                raise SosnError("scores are not finite: the weights or the images contain NaN or infinite values")
            highest, answers = logits.max(-1)
            tied = (logits == highest.unsqueeze(-1)).sum(-1) > 1
            parts.append(torch.stack(((answers == labels).double().mean(1), tied.double().mean(1)), 1))
            if progress:
                progress(min(first + at_once, episodes), episodes)
    return torch.cat(parts)


@contextmanager
def evaluating(method: Method, test_time: TestTimeSpec = None) -> Iterator[None]:
    """Put a method into evaluation mode, with another test-time augmentation if one is given, and restore it afterwards."""
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
    """Draw the rows of the bank for all episodes, on the CPU, so that they are the same on every device."""
    blocks = [sampler.indices(BLOCK, generator("evaluation", seed, block)) for block in range(math.ceil(episodes / BLOCK))]
    support, query = (torch.cat(parts)[:episodes] for parts in zip(*blocks, strict=True))
    return support, query


def _fingerprint(data: Bank, support: Tensor, query: Tensor) -> str:
    """Return a digest of the images of the episodes, which is equal for the same episodes."""
    digest = hashlib.blake2b(data.fingerprint.encode(), digest_size=8)
    for rows in (support, query):
        digest.update(rows.contiguous().numpy().tobytes())
    return digest.hexdigest()


def mean_ci95(values: Tensor) -> tuple[float, float]:
    """Return the mean and 1.96 standard errors."""
    return values.mean().item(), 1.96 * values.std().item() / math.sqrt(len(values))


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Compare two methods, episode by episode. Refuses evaluations on different episodes."""
    for one in (first, second):
        if not isinstance(one, Evaluation):
            raise UsageError(f"compare takes results of evaluate, not {type(one).__name__}: evaluate both models first")
    if first.fingerprint != second.fingerprint:
        raise UsageError("the two evaluations used different episodes: give both the same data, way, shot, query and seed")
    from scipy import stats

    differences = torch.tensor(first.per_episode, dtype=torch.float64) - torch.tensor(second.per_episode, dtype=torch.float64)
    mean, half = mean_ci95(differences)
    if half == 0:  # the same difference in every episode: the t-test is not defined
        return Comparison(mean, 0.0, 1.0 if mean == 0 else 0.0)
    return Comparison(mean, half, float(stats.ttest_rel(first.per_episode, second.per_episode).pvalue))
