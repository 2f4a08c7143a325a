"""Timings: contenders take turns, so that what else the machine does falls on all of them alike."""

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
    has_easyfsl,
    evaluation_step,
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
EVALUATED = {"cuda": 200, "cpu": 20}  # episodes of a whole evaluation, fewer where they have more pairs than these in all
EVALUATED_PAIRS = 100_000
LONG = 20.0  # seconds of a call: where one is longer, contenders have one turn, not three
TURN = {"cuda": (0.4, 20), "cpu": (1.0, 2)}  # calls of a turn: as many as start within these seconds, and the most there may be
WARM = {"training": FREE_STEPS + 2, "evaluation": 2}  # calls before the turns on a GPU: the first compile, a later one captures
MAPS = {"cuda": 6, "cpu": 8}  # of a pair's largest map, that training with layers one by one holds
SHARE = 0.75  # of the memory that a contender may need by estimate; others are left out
MANY = 32  # episodes in a step of the engine on a GPU, where pairs are few


def run_bench(
    device: str = "auto",
    quick: bool = False,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure training, evaluation and growth on this machine. quick: one tiny shape, to see that it works.

    keep is given what has been measured so far, after every shape.
    """
    place, began = resolve_device(device), time.monotonic()

    def tell(sentence: str) -> None:
        say(f"{time.monotonic() - began:5.0f} s  {sentence}")

    if not quick:
        say("this takes several minutes; --quick shows what it does in seconds")

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():  # whose memory is read, which is waited for
            return _measure(place, quick, tell, keep)
    finally:
        torch.backends.cudnn.benchmark = before


def _measure(
    place: torch.device, quick: bool, tell: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All measurements, one after the other."""
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
    judged = shapes[:1] if place.type == "cpu" else shapes
    parts = iter(range(1, 1 + len(shapes) + len(judged) + len(GROWTH)))
    of = f"of {len(shapes) + len(judged) + len(GROWTH)}"
    for shape in shapes:
        tell(f"{next(parts)} {of}: training, {shape}")
        row = _training(shape, place, peak, quick)
        if row["left_out"]:
            tell(f"left out, there may not be memory enough: {', '.join(row['left_out'])}")
        document["training"].append(row)
        keep(document)
    for shape in judged:
        tell(f"{next(parts)} {of}: evaluation, {shape}")
        document["evaluation"].append(_evaluation(shape, place, quick))
        keep(document)
    for name, sizes in GROWTH.items():
        tell(f"{next(parts)} {of}: growth with {name}")
        fitting = [shape for shape in (sizes[:1] if quick else sizes) if _fits(shape, 1, place, place.type == "cuda", "engine")]
        document["growth"][name] = [told for shape in fitting if (told := _growth(shape, place, quick))]
        keep(document)
    return document


def _training(shape: Shape, device: torch.device, peak: float, quick: bool) -> dict[str, Any]:
    """Episodes a second of every contender, and what the engine gains over each."""
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
    """Seconds an episode: with encoding and from feature maps that are known, one at a time, and in a whole evaluation."""
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
    """How many times longer than the engine each other contender took for the same work, which its name ends with."""
    others = [name for name in seconds if not name.startswith("engine")]
    engines = {name: f"engine, {name.partition(', ')[2]}" for name in others}
    return {name: seconds[name] / seconds[ours] for name, ours in engines.items() if ours in seconds}


def written_rate(rate: float) -> str:
    """Three digits, or more where there are more before the point."""
    return f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"


def _growth(shape: Shape, device: torch.device, quick: bool) -> dict[str, Any] | None:
    """Milliseconds that the engine takes to train one episode; None where memory does not suffice."""
    makers = {"engine": partial(training_step, shape, 1, device, device.type == "cuda", "auto")}
    seconds, memory = _take_turns(makers, device, quick)
    if not seconds:
        return None
    return {"shape": str(shape), "ms_per_episode": 1e3 * seconds["engine"], "peak_gib": memory["engine"]}


def _take_turns(
    makers: Mapping[str, Callable[[], Step]], device: torch.device, quick: bool, kind: str = "training"
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Seconds a call (the median of the turns taken) and peak memory, of contenders that run one after the other.

    One for which the GPU's memory does not suffice beside those before it is left out.
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
        tensors = None if cuda or kind != "training" else Tensors()
        try:
            with tensors or nullcontext():
                steps[name], seconds = _warmed(maker, WARM[kind] if cuda else 1, cuda)
        except torch.OutOfMemoryError:  # what was made of it is gone with the call
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
    """A contender that was called so many times, and the seconds of the last."""
    step = maker()
    return step, [_timed(step, 1, cuda) for _ in range(calls)][-1]


def _timed(step: Step, calls: int, cuda: bool) -> float:
    """Seconds a call, of a few in a row."""
    began = time.perf_counter()
    for _ in range(calls):
        step()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def _fits(shape: Shape, episodes: int, device: torch.device, bf16: bool, name: str) -> bool:
    """Whether a contender has memory for its step, by estimate."""
    need = episodes * _memory(shape, device) / (1 + (bf16 and name != "loop"))
    return need / (3 if name.startswith("engine") else 1) <= SHARE * _available(device)  # the engine keeps pooled maps


def _memory(shape: Shape, device: torch.device) -> float:
    """Bytes, by estimate, that the maps of an episode's pairs take in training with layers one by one, in single precision."""
    return MAPS[device.type] * 4 * 64 * 62**2 * shape.pairs


def _available(device: torch.device) -> float:
    """Bytes of memory that nobody else uses."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    return free_memory()


def _work(shape: Shape, device: torch.device) -> float:
    """Floating-point operations of one training episode, forward and backward, as the plain layers do them.

    They grow by the same number with every query a class, so one and two are enough to know.
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
    """Operations a second of a large matrix product here, in the precision that training uses."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    size = size // 4 if quick else size
    matrix = torch.randn(size, size, device=device, dtype=dtype)

    def product() -> torch.Tensor:
        return matrix @ matrix

    seconds, _ = _take_turns({"product": lambda: product}, device, quick)
    return 2 * len(matrix) ** 3 / seconds["product"]
