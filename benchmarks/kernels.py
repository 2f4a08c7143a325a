"""Time every Triton kernel at the shapes of a training step, on a GPU; --sweep searches for faster launches.

    python benchmarks/kernels.py                           µs and GB/s of each kernel, at 8 and 32 episodes
    python benchmarks/kernels.py --sweep --episodes 32     the fastest Launch of each kernel, within a time limit

GB/s counts the least that a kernel must read and write, not what it really moves.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
import triton
from torch import Tensor

from sosn.kernel.batch_norm import Running
from sosn.kernel.triton import first_backward as triton_first_backward
from sosn.kernel.triton import first_forward as triton_first_forward
from sosn.kernel.triton import join_pool as triton_join_pool
from sosn.kernel.triton import norm_pool as triton_norm_pool
from sosn.kernel.triton import pair_pool as triton_pair_pool
from sosn.kernel.triton.launch import Launch
from sosn.kernel.triton.patches import Layout, Moments

WIDTH = 64
WIDTHS = (64, 160, 320, 640)  # of ResNet-12's stages
SHAPES = {"5w1s15q 84²": (5, 75, 3, 84), "20w1s5q 28²": (20, 100, 1, 28)}  # way, queries, image channels, image side
ROWS, WARPS, STAGES, REGISTERS = (16, 32, 64, 128), (4, 8), (1, 2, 3), (None, 96, 128, 168)
PROGRAMS = (264, 528, 1056, 2112)


@dataclass(frozen=True)
class Case:
    """A function that launches a kernel, the bytes that it must move, and the name of its launch constant."""

    kernel: str
    where: str
    moved: int
    run: Callable[[], object]
    module: ModuleType | None = None
    constant: str = ""


def size(*tensors: Tensor | None) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def maps(*shape: int) -> Tensor:
    made = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return made.contiguous(memory_format=torch.channels_last)


def parameters(inputs: int) -> tuple[Tensor, Tensor, Tensor, Running]:
    weight = (torch.randn(WIDTH, inputs, 3, 3, device="cuda") / 3).contiguous(memory_format=torch.channels_last)
    one, zero = torch.ones(WIDTH, device="cuda"), torch.zeros(WIDTH, device="cuda")
    return weight, one, zero, Running(zero.clone(), one.clone(), torch.zeros((), device="cuda", dtype=torch.int64), 0.1)


def norm_cases(where: str, images: int, side: int, pool: bool) -> Iterator[Case]:
    """Yield the cases of norm_pool for one block."""
    module = triton_norm_pool
    given = maps(images, WIDTH, side, side)
    _, weight, bias, running = parameters(1)
    values = module.moments(given, weight, bias, bias, 1e-5, running)
    result = module.apply(given, (values[3], values[4]), pool, True)
    gradient = torch.randn_like(result)
    flat = "" if pool else "_FLAT"
    yield Case(
        "moments", where, size(given), lambda: module.moments(given, weight, bias, bias, 1e-5, running), module, "MOMENTS"
    )
    apply = lambda: module.apply(given, (values[3], values[4]), pool, True)  # noqa: E731
    yield Case("apply", where, size(given, result), apply, module, "APPLY" + flat)
    back = lambda: module.backward(given, result, gradient, values, weight, bias, pool, True)  # noqa: E731
    yield Case("reduce", where, size(result, gradient), back, module, "REDUCE")
    yield Case("reduce_rough", where, 0, back)
    yield Case("totals", where, 0, back)
    yield Case("spread", where, size(given, given, gradient), back, module, "SPREAD" + flat)


def join_cases(where: str, images: int, channels: int, side: int, pool: bool) -> Iterator[Case]:
    """Yield the cases of join_pool at the end of a stage of ResNet-12."""
    module = triton_join_pool
    first, second = maps(images, channels, side, side), maps(images, channels, side, side)
    one, zero = torch.ones(channels, device="cuda"), torch.zeros(channels, device="cuda")
    main, other = (triton_norm_pool.moments(given, one, zero, None, 1e-5, None) for given in (first, second))
    values = (main, other)
    result = module.apply(first, second, values, pool, 0.1)
    gradient = torch.randn_like(result)
    flat = "" if pool else "_FLAT"
    apply = lambda: module.apply(first, second, values, pool, 0.1)  # noqa: E731
    yield Case("apply", where, size(first, second, result), apply, module, "APPLY" + flat)
    back = lambda: module.backward(first, second, gradient, values, torch.float32, pool, 0.1)  # noqa: E731
    yield Case("reduce", where, size(first, second, gradient), back, module, "REDUCE")
    yield Case("totals", where, 0, back)
    yield Case("spread", where, 2 * size(first, second) + size(gradient), back, module, "SPREAD" + flat)


def first_cases(where: str, sides: list[Tensor], group: int, needed: list[bool]) -> Iterator[Case]:
    """Yield the cases of the first block, for images or pairs."""
    ahead, behind = triton_first_forward, triton_first_backward
    layout = Layout(group, 0, torch.bfloat16)
    weight, norm_weight, norm_bias, running = parameters(sides[0].shape[2] * len(sides))

    def collect() -> Moments:
        return ahead.statistics(sides, weight, norm_bias, norm_weight, norm_bias, layout, 1e-5, running)

    moments = collect()

    def forward() -> tuple[Tensor, Tensor]:
        return ahead.forward(sides, weight, moments.values[3], moments.values[4], layout, True)

    result, winners = forward()
    gradient = torch.randn_like(result)
    back = lambda: behind.backward(sides, weight, winners, moments, gradient, needed, layout)  # noqa: E731
    pairs = "_PAIRS" if len(sides) == 2 else ""
    inputs = size(*sides)
    yield Case("gram", where, inputs, collect, ahead, "GRAM")
    yield Case("settle", where, 0, collect)
    yield Case("forward", where, inputs + size(result, winners), forward, ahead, "FORWARD" + pairs)
    yield Case("collect", where, len(sides) * size(gradient, winners), back, behind, "COLLECT" + pairs)
    yield Case("finish", where, 0, back)
    if any(needed):
        high, across = layout.pooled(*sides[0].shape[3:])
        columns = sum(side.shape[0] * side.shape[1] * 16 * side.shape[2] * high * across * 4 for side in sides)
        yield Case("mix", where, 0, back)
        yield Case("fold", where, 2 * inputs + columns, back, behind, "FOLD")


def pair_cases(where: str, episodes: int, way: int, queries: int) -> Iterator[Case]:
    """Yield the cases of pair_pool, for first convolutions with many channels."""
    module = triton_pair_pool
    side = WIDTH - 2
    support, query = (
        torch.randn(episodes, count, side, side, WIDTH, device="cuda", dtype=torch.bfloat16).movedim(-1, -3)
        for count in (way, queries)
    )
    scale = torch.ones(WIDTH, device="cuda")
    result = module.forward(support, query, (scale, scale))
    gradient = torch.randn_like(result).movedim(-3, -1).contiguous()
    yield Case("side_moments", where, size(query), lambda: module.side_moments(query))
    yield Case("forward", where, size(support, query, result), lambda: module.forward(support, query, (scale, scale)))
    back = lambda: module.backward(support, query, gradient, scale, scale)  # noqa: E731
    yield Case("backward", where, 2 * size(gradient, support, query), back)


def cases(shape: str, episodes: int) -> Iterator[Callable[[], Iterator[Case]]]:
    """Yield functions that create one group of cases each, so that only one group is in memory."""
    way, queries, channels, side = SHAPES[shape]
    images = episodes * (way + queries)
    yield lambda: first_cases("encoder 1", [torch.randn(1, images, channels, side, side, device="cuda")], channels, [False])
    second = (side - 2) // 2 - 2  # side of the second block's map, before pooling
    yield lambda: norm_cases("encoder 2", images, second, True)
    yield lambda: norm_cases("encoder 3, 4", images, second // 2, False)
    yield lambda: first_cases(
        "similarity 1",
        [torch.rand(episodes, count, 1, WIDTH, WIDTH, device="cuda") for count in (way, queries)],
        1,
        [True, True],
    )
    yield lambda: norm_cases("similarity 2", episodes * way * queries, 29, True)
    yield lambda: norm_cases("similarity 3", episodes * way * queries, 12, True)
    yield lambda: pair_cases("pair_pool", episodes, way, queries)
    stages = list(enumerate(zip(WIDTHS, (side, side // 2, side // 4, side // 8), strict=True), 1))
    for number, (width, map_side) in stages:
        yield partial(join_cases, f"ResNet-12, {number}", images, width, map_side, number < len(stages))


def kernel_times(run: Callable[[], object], repeat: int = 5) -> dict[str, float]:
    """Return the µs of each kernel by name, for one call."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeat):
            run()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / repeat for event in profile.key_averages()}


def time_of(case: Case) -> float:
    return sum(used for name, used in kernel_times(case.run).items() if name.strip("_") == case.kernel)


@contextmanager
def launched(case: Case, launch: Launch) -> Iterator[None]:
    assert case.module is not None
    before = getattr(case.module, case.constant)
    setattr(case.module, case.constant, launch)
    try:
        yield
    finally:
        setattr(case.module, case.constant, before)


def plain(shapes: list[str], counts: list[int]) -> None:
    for shape in shapes:
        for episodes in counts:
            print(f"\n{shape}, {episodes} episodes")
            print(f"{'where':14} {'kernel':14} {'µs':>9} {'GB/s':>7}  launch")
            whole = 0.0
            for group in cases(shape, episodes):
                times: dict[Callable[[], object], dict[str, float]] = {}
                for case in group():
                    if case.run not in times:
                        times[case.run] = kernel_times(case.run)
                    used = sum(value for name, value in times[case.run].items() if name.strip("_") == case.kernel)
                    speed = f"{case.moved / used / 1e3:7.0f}" if case.moved and used else " " * 7
                    launch = getattr(case.module, case.constant) if case.module else ""
                    print(f"{case.where:14} {case.kernel:14} {used:9.1f} {speed}  {launch}", flush=True)
                    whole += used
                torch.cuda.empty_cache()
            print(f"{'':14} {'all':14} {whole:9.1f}")


def changes(now: Launch, what: str) -> list[Launch]:
    """Return launches that differ from this one in one setting."""
    if what == "block":
        near = sorted(ROWS, key=lambda block: abs(block - now.block))
        return [now._replace(block=block, warps=warps) for block in near for warps in WARPS]
    if what == "programs":
        return [now._replace(programs=programs) for programs in PROGRAMS] if now.programs else []
    if what == "stages":
        return [now._replace(stages=stages) for stages in STAGES]
    return [now._replace(registers=registers) for registers in REGISTERS]


def better(case: Case, end: float) -> tuple[Launch, float, float]:
    """Search for the best launch, one change at a time, until the time is up; return it with the µs before and after."""
    best: Launch = getattr(case.module, case.constant)
    first = fastest = time_of(case)
    tried = {best}
    for what in ("block", "programs", "stages", "registers"):
        for launch in changes(best, what):
            if launch in tried or time.monotonic() > end:
                continue
            tried.add(launch)
            try:
                with launched(case, launch):
                    used = time_of(case)
            except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError, RuntimeError) as error:
                print(f"    {launch}: {type(error).__name__}")
                continue
            if used < fastest:
                best, fastest = launch, used
    return best, first, fastest


def sweep(shape: str, episodes: int, limit: float) -> None:
    """Print faster launches of each kernel. Every group of kernels gets a share of the time, and the time others left."""
    print(f"{shape}, {episodes} episodes")
    start, groups = time.monotonic(), list(cases(shape, episodes))
    for number, group in enumerate(groups):
        found = [case for case in group() if case.module is not None]
        for place, case in enumerate(found):
            now = time.monotonic()
            left = start + limit * (number + 1) / len(groups) - now
            best, first, fastest = better(case, now + left / (len(found) - place))
            speed = f"{case.moved / max(fastest, 1e-3) / 1e3:5.0f} GB/s"
            print(
                f"{case.where:13} {case.kernel:8} {first:8.1f} → {fastest:8.1f} µs {speed}  {case.constant} = {best}",
                flush=True,
            )
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--shape", choices=list(SHAPES), nargs="+", default=list(SHAPES))
    parser.add_argument(
        "--sweep", action="store_true", help="look for faster launches, at the first shape and number of episodes"
    )
    parser.add_argument("--limit", type=float, default=80, help="seconds for the sweep")
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.sweep:
        sweep(given.shape[0], given.episodes[0], given.limit)
    else:
        plain(given.shape, given.episodes)


if __name__ == "__main__":
    main()
