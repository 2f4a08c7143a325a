"""Time the contenders in turns, so that other load on the machine affects all of them alike."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sosn.bench.contenders import (
    Shape,
    Step,
    easyfsl_evaluation,
    easyfsl_step,
    evaluation_step,
    has_easyfsl,
    loop_step,
    training_step,
    whole_evaluation,
    whole_step,
)
from sosn.bench.tensors import Tensors
from sosn.kernel import engine
from sosn.training.cuda_graph import FREE_STEPS
from sosn.training.run import circumstances
from sosn.util.device import machine, resolve_device
from sosn.util.memory import free_memory

SHAPES = (Shape(5, 1, 15, 84), Shape(5, 5, 10, 84), Shape(20, 1, 5, 28, 1), Shape(20, 1, 10, 28, 1), Shape(5, 1, 5, 224))
QUICK = (Shape(5, 1, 1, 28, 1),)
GROWTH = {
    "way": [Shape(way, 1, 1, 28, 1) for way in (5, 10, 20, 50, 100)],
    "shot": [Shape(5, shot, 5, 28, 1) for shot in (1, 5, 10, 20)],
    "image side": [Shape(5, 1, 5, size) for size in (28, 56, 84, 112, 224)],
    "permutations": [Shape(5, 1, 5, 84, permutations=count) for count in (1, 3, 5, 10)],
}
EPISODES = {"cuda": 8, "cpu": 1}  # in a step of the vectorised contenders
EVALUATED = {"cuda": 200, "cpu": 20}  # episodes of a whole evaluation, fewer if they exceed EVALUATED_PAIRS
EVALUATED_PAIRS = 100_000
LONG = 20.0  # seconds: if a call takes longer, contenders have one turn instead of three
TURN = {"cuda": (0.4, 20), "cpu": (1.0, 2)}  # a turn: seconds in which calls start, and their largest number
WARM = {"training": FREE_STEPS + 2, "evaluation": 2}  # calls before the turns on a GPU, which compile and capture
MAPS = {"cuda": 6, "cpu": 8}  # copies of a pair's largest feature map that plain training holds
SHARE = 0.75  # of the free memory: contenders with a larger estimate are skipped
MANY = 32  # episodes in a step of the engine on a GPU, if episodes have few pairs


def run_bench(
    device: str = "auto",
    quick: bool = False,
    log: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure training, evaluation and growth on this machine.

    quick: measure one tiny shape only. log: called with progress messages. keep: called after every shape with the
    measurements so far.
    """
    place, began = resolve_device(device), time.monotonic()

    def timed_log(sentence: str) -> None:
        log(f"{time.monotonic() - began:5.0f} s  {sentence}")

    if not quick:
        log("this takes several minutes; --quick is a short version")

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():  # memory and synchronisation refer to it
            return _measure(place, quick, timed_log, keep)
    finally:
        torch.backends.cudnn.benchmark = before


def _measure(
    place: torch.device, quick: bool, log: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run all measurements."""
    peak = _peak(place, quick)
    shapes = QUICK if quick else SHAPES
    document: dict[str, Any] = {
        "machine": machine(place),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": circumstances()["versions"],
        "peak_tflops": peak / 1e12,
        "easyfsl": has_easyfsl(),
        "training": [],
        "evaluation": [],
        "growth": {},
    }
    evaluated = shapes[:1] if place.type == "cpu" else shapes
    parts = iter(range(1, 1 + len(shapes) + len(evaluated) + len(GROWTH)))
    of = f"of {len(shapes) + len(evaluated) + len(GROWTH)}"
    for shape in shapes:
        log(f"{next(parts)} {of}: training, {shape}")
        row = _training(shape, place, peak, quick)
        if row["left_out"]:
            log(f"skipped, because memory may not suffice: {', '.join(row['left_out'])}")
        document["training"].append(row)
        keep(document)
    for shape in evaluated:
        log(f"{next(parts)} {of}: evaluation, {shape}")
        document["evaluation"].append(_evaluation(shape, place, quick))
        keep(document)
    for name, sizes in GROWTH.items():
        log(f"{next(parts)} {of}: growth with {name}")
        fitting = [shape for shape in (sizes[:1] if quick else sizes) if _fits(shape, 1, place, place.type == "cuda", "engine")]
        document["growth"][name] = [found for shape in fitting if (found := _growth(shape, place, quick))]
        keep(document)
    return document


def _training(shape: Shape, device: torch.device, peak: float, quick: bool) -> dict[str, Any]:
    """Measure the episodes per second of every contender, and the speed-up of the engine over each."""
    episodes, bf16 = EPISODES[device.type], device.type == "cuda"
    makers: dict[str, tuple[int, Callable[[], Step]]] = {
        "loop": (1, partial(loop_step, shape, device)),
        "vectorised": (episodes, partial(training_step, shape, episodes, device, bf16, "plain")),
        "engine": (episodes, partial(training_step, shape, episodes, device, bf16, "auto")),
    }
    makers["engine, in sosn train"] = (episodes, partial(whole_step, shape, episodes, device, bf16))
    if device.type == "cuda" and shape.pairs <= 1_000:
        makers["engine, many episodes"] = (MANY, partial(training_step, shape, MANY, device, bf16, "auto"))
    if has_easyfsl():
        makers["easyfsl"] = (1, partial(easyfsl_step, shape, device))
    wanted = list(makers)
    makers = {name: maker for name, maker in makers.items() if name == "easyfsl" or _fits(shape, maker[0], device, bf16, name)}
    seconds, memory = _take_turns({name: maker for name, (_, maker) in makers.items()}, device, quick)
    rates = {name: makers[name][0] / duration for name, duration in seconds.items()}
    work = _work(shape, device)
    return {
        "shape": str(shape),
        "ratios": {
            f"engine / {name}": rates["engine"] / rate
            for name, rate in rates.items()
            if "engine" in rates and not name.startswith("engine")
        },
        "episodes_per_second": rates,
        "pairs_per_second": {name: rate * shape.pairs for name, rate in rates.items()},
        "episodes_per_step": {name: makers[name][0] for name in rates},
        "peak_gib": memory,
        "gflop_per_episode": work / 1e9,
        "left_out": [name for name in wanted if name not in rates],
        "share_of_floor": {name: rate * work / peak for name, rate in rates.items() if name != "easyfsl"},
    }


def _evaluation(shape: Shape, device: torch.device, quick: bool) -> dict[str, Any]:
    """Measure the seconds per episode: with encoding, from precomputed feature maps, and in a whole evaluation."""
    makers: dict[str, Callable[[], Step]] = {}
    episodes = 2 if quick else max(2, min(EVALUATED[device.type], EVALUATED_PAIRS // shape.pairs))
    for known, label in ((False, "with encoding"), (True, "features known")):
        makers[f"plain, {label}"] = partial(evaluation_step, shape, device, "plain", known)
        makers[f"engine, {label}"] = partial(evaluation_step, shape, device, "auto", known)
        if has_easyfsl():
            makers[f"easyfsl, {label}"] = partial(easyfsl_evaluation, shape, device, known)
    whole: dict[str, Callable[[], Step]] = {
        "plain, whole evaluation": partial(whole_evaluation, shape, device, "plain", episodes),
        "engine, whole evaluation": partial(whole_evaluation, shape, device, "auto", episodes),
    }
    seconds, _ = _take_turns(makers | whole, device, quick, "evaluation")
    seconds |= {name: seconds[name] / episodes for name in whole if name in seconds}
    return {"shape": str(shape), "ratios": evaluation_ratios(seconds), "seconds_per_episode": seconds, "episodes": episodes}


def evaluation_ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the time of each contender divided by that of the engine for the same work, which its name ends with."""
    others = [name for name in seconds if not name.startswith("engine")]
    engines = {name: f"engine, {name.partition(', ')[2]}" for name in others}
    return {name: seconds[name] / seconds[ours] for name, ours in engines.items() if ours in seconds}


def written_rate(rate: float) -> str:
    """Format a rate with three digits, or as an integer from 1000 on."""
    return f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"


def _growth(shape: Shape, device: torch.device, quick: bool) -> dict[str, Any] | None:
    """Measure the milliseconds that the engine needs to train one episode. Returns None if memory does not suffice."""
    makers = {"engine": partial(training_step, shape, 1, device, device.type == "cuda", "auto")}
    seconds, memory = _take_turns(makers, device, quick)
    if not seconds:
        return None
    return {"shape": str(shape), "ms_per_episode": 1e3 * seconds["engine"], "peak_gib": memory["engine"]}


def _take_turns(
    makers: Mapping[str, Callable[[], Step]], device: torch.device, quick: bool, work: str = "training"
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the seconds per call (the median over turns) and the peak memory of each contender.

    Contenders run in turns. One that does not fit into the GPU's memory beside those before it is skipped.
    """
    cuda = device.type == "cuda"
    memory: dict[str, float | None] = {}
    steps: dict[str, Step] = {}
    calls: dict[str, int] = {}
    slowest = 0.0
    span, most = TURN[device.type]
    for name, maker in makers.items():
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if cuda else 0
        tensors = None if cuda or work != "training" else Tensors()
        try:
            with tensors or nullcontext():
                steps[name], seconds = _warmed(maker, WARM[work] if cuda else 1, cuda)
        except torch.OutOfMemoryError:  # its tensors are freed when the call returns
            continue
        slowest = max(slowest, seconds)
        calls[name] = 1 if quick else min(most, math.ceil(span / seconds))
        if cuda:
            memory[name] = (torch.cuda.max_memory_allocated() - held) / 2**30
        else:
            memory[name] = tensors.most / 2**30 if tensors else None
    turns: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 if quick or slowest > LONG else 3):
        for name, step in steps.items():
            turns[name].append(_timed(step, calls[name], cuda))
    return {name: statistics.median(times) for name, times in turns.items()}, memory


def _warmed(maker: Callable[[], Step], calls: int, cuda: bool) -> tuple[Step, float]:
    """Create a contender, call it this number of times, and return it with the seconds of the last call."""
    step = maker()
    return step, [_timed(step, 1, cuda) for _ in range(calls)][-1]


def _timed(step: Step, calls: int, cuda: bool) -> float:
    """Return the mean seconds per call."""
    began = time.perf_counter()
    for _ in range(calls):
        step()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def _fits(shape: Shape, episodes: int, device: torch.device, bf16: bool, name: str) -> bool:
    """Return whether the estimated memory of a contender's step is available."""
    need = episodes * _memory(shape, device) / (1 + (bf16 and name != "loop"))
    return need / (3 if name.startswith("engine") else 1) <= SHARE * _available(device)  # the engine keeps pooled maps


def _memory(shape: Shape, device: torch.device) -> float:
    """Estimate the bytes that the feature maps of an episode's pairs take in plain training, in single precision."""
    return MAPS[device.type] * 4 * 64 * 62**2 * shape.pairs


def _available(device: torch.device) -> float:
    """Return the bytes of free memory."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    return free_memory()


def _work(shape: Shape, device: torch.device) -> float:
    """Count the floating-point operations of one training episode, forward and backward, with plain layers.

    They grow linearly with the queries per class, so one and two are measured.
    """
    counts = []
    for query in (1, 2):
        small = replace(shape, query=query)
        model, episode = small.model(device).train(), small.episode(1, device)
        with FlopCounterMode(display=False) as counter, engine("plain"):
            model.loss(episode).backward()
        counts.append(float(counter.get_total_flops()))
    return counts[0] + (shape.query - 1) * (counts[1] - counts[0])


def _peak(device: torch.device, quick: bool) -> float:
    """Measure the operations per second of a large matrix product, in the precision of training."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    size = size // 4 if quick else size
    matrix = torch.randn(size, size, device=device, dtype=dtype)

    def product() -> torch.Tensor:
        return matrix @ matrix

    seconds, _ = _take_turns({"product": lambda: product}, device, quick)
    return 2 * len(matrix) ** 3 / seconds["product"]
