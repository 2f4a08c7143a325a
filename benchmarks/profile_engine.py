"""Profile a training step and the evaluation of one episode, by operator or, on a GPU, by kernel.

    python benchmarks/profile_engine.py --out results/profile-cpu.json

Milliseconds are wall-clock times without a profiler, the median of several calls. The shares of operators, and on a GPU its
busy milliseconds, come from a profile of further calls. Small operators are added up.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from sosn.bench.contenders import Shape, Step, evaluation_step, training_step
from sosn.bench.measure import EPISODES
from sosn.cli.process import keep_freed_memory
from sosn.training.run import circumstances
from sosn.util.device import machine, resolve_device

SHAPE = Shape(5, 1, 15, 84)
CALLS, WARM, SHOWN = 8, 6, 8
LONGEST = 90  # letters of a kernel's name


def contenders(device: torch.device) -> dict[str, Callable[[], Step]]:
    episodes, half = EPISODES[device.type], device.type == "cuda"
    return {
        f"training, {episodes} episode{'s' * (episodes > 1)} a step, engine": lambda: training_step(
            SHAPE, episodes, device, half, "auto"
        ),
        "evaluation with encoding, plain": lambda: evaluation_step(SHAPE, device, "plain", False),
        "evaluation with encoding, engine": lambda: evaluation_step(SHAPE, device, "auto", False),
        "evaluation, features known, plain": lambda: evaluation_step(SHAPE, device, "plain", True),
        "evaluation, features known, engine": lambda: evaluation_step(SHAPE, device, "auto", True),
    }


def look(name: str, step: Step, cuda: bool) -> dict[str, Any]:
    """Return one row: wall-clock time and profile."""

    def call() -> float:
        began = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    for _ in range(WARM):
        call()
    seconds = statistics.median(call() for _ in range(CALLS))
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiled:
        for _ in range(CALLS):
            call()
    events = profiled.key_averages()
    if cuda:
        used = [(one.key, one.self_device_time_total, one.count) for one in events if one.device_type.name == "CUDA"]
    else:
        used = [(one.key, one.self_cpu_time_total, one.count) for one in events]
    used = sorted((one for one in used if one[1]), key=lambda one: -one[1])
    whole = sum(time for _, time, _ in used)
    parts = [{"name": name[:LONGEST], "share": time / whole, "calls": count / CALLS} for name, time, count in used[:SHOWN]]
    rest = {
        "name": "others",
        "share": sum(one[1] for one in used[SHOWN:]) / whole,
        "calls": sum(one[2] for one in used[SHOWN:]) / CALLS,
    }
    busy = {"gpu_ms": whole / CALLS / 1e3} if cuda else {}
    return {"what": name, "ms": 1e3 * seconds, **busy, "parts": [*parts, rest]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    keep_freed_memory()
    device = resolve_device(wanted.device)
    torch.backends.cudnn.benchmark = True
    rows = []
    for name, make in contenders(device).items():
        rows.append(look(name, make(), device.type == "cuda"))
        busy = f", the GPU at work for {rows[-1]['gpu_ms']:.2f}" if "gpu_ms" in rows[-1] else ""
        first = rows[-1]["parts"][0]
        print(f"{name}: {rows[-1]['ms']:.2f} ms{busy}; {100 * first['share']:.0f}% {first['name']}", flush=True)
    document = {"machine": machine(device), "versions": circumstances()["versions"], "shape": str(SHAPE), "rows": rows}
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
