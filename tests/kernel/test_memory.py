"""No Triton kernel touches memory outside of the tensors it was given, or memory that another of its programs writes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sosn.kernel import engine, first_block, join_pool, norm_pool, pair_pool
from sosn.kernel.batch_norm import Fixed, Running
from tests.kernel.triton_memory import unwatchable, watched

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

from sosn.kernel.triton import first_backward as triton_first_backward  # noqa: E402
from sosn.kernel.triton import first_forward as triton_first_forward  # noqa: E402
from sosn.kernel.triton import join_pool as triton_join_pool  # noqa: E402
from sosn.kernel.triton import norm_pool as triton_norm_pool  # noqa: E402
from sosn.kernel.triton import pair_pool as triton_pair_pool  # noqa: E402
from sosn.kernel.triton import statistics as triton_statistics  # noqa: E402
from sosn.kernel.triton.launch import Launch  # noqa: E402

pytestmark = [pytest.mark.skipif(bool(unwatchable()), reason=unwatchable()), pytest.mark.usefixtures("one_thread")]
MODULES = (
    triton_first_forward, triton_first_backward, triton_join_pool, triton_norm_pool, triton_pair_pool, triton_statistics
)  # fmt: skip


@pytest.fixture
def _small_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program has several tiles of rows, and the last is not full."""
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, Launch) and value.programs:
                monkeypatch.setattr(module, name, Launch(16, 1, 1, 2))


@pytest.fixture
def memory() -> Iterator[set[str]]:
    """Kernels that stray raise an error; the names of those that ran."""
    with engine("triton"), watched() as seen:
        yield seen


def parameters(channels: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Bias of a convolution, and weight and bias of a batch norm: one weight is 0, which takes a kernel of its own."""
    offset, weight, bias = (torch.randn(channels, dtype=dtype).requires_grad_() for _ in range(3))
    weight.data[1] = 0
    return offset, weight, bias


def running(channels: int, momentum: float | None = None) -> Running:
    return Running(torch.zeros(channels), torch.ones(channels), torch.tensor(0), momentum)


def fixed(offset: Tensor, weight: Tensor, bias: Tensor) -> Fixed:
    offset, weight, bias = offset.detach(), weight.detach(), bias.detach()
    return Fixed(weight, bias, torch.randn_like(bias), torch.rand_like(bias), offset, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "relu"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("channels", "height", "width"), [(5, 7, 5), (18, 4, 6), (3, 3, 8), (70, 2, 3)])
@pytest.mark.usefixtures("memory", "_small_launches")
def test_norm_pool_stays_within_its_tensors(channels: int, height: int, width: int, pool: bool, relu: bool) -> None:
    maps = torch.randn(3, channels, height, width).bfloat16().requires_grad_()
    offset, weight, bias = parameters(channels)
    norm_pool.norm_pool_batch(maps, weight, bias, offset, 1e-5, pool, relu, running(channels))[0].float().sum().backward()
    norm_pool.norm_pool_fixed(maps.detach(), fixed(offset, weight, bias), pool, relu)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize(("channels", "height", "width"), [(5, 7, 5), (70, 2, 3)])
@pytest.mark.usefixtures("memory", "_small_launches")
def test_join_pool_stays_within_its_tensors(channels: int, height: int, width: int, pool: bool) -> None:
    first, second = (torch.randn(3, channels, height, width).bfloat16().requires_grad_() for _ in range(2))
    (_, weight, bias), (_, other, shift) = parameters(channels), parameters(channels)
    norms = ((weight, bias, 1e-5), (other, shift, 1e-5))
    kept = (running(channels), running(channels, 0.1))
    join_pool.join_pool(first, second, norms, pool, 0.1, kept).float().sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("episodes", "way", "queries", "channels", "height", "width"), [(2, 3, 4, 6, 6, 4), (1, 2, 3, 5, 7, 5), (2, 1, 1, 3, 4, 11)]
)
@pytest.mark.usefixtures("memory")
def test_pair_pool_stays_within_its_tensors(
    episodes: int, way: int, queries: int, channels: int, height: int, width: int
) -> None:
    support, query = (torch.randn(episodes, count, channels, height, width).requires_grad_() for count in (way, queries))
    offset, weight, bias = parameters(channels)
    pair_pool.pair_pool_batch(support, query, weight, bias, offset, 1e-5)[0].sum().backward()
    with torch.no_grad():
        pair_pool.pair_pool_fixed(support, query, fixed(offset, weight, bias))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "filters", "height", "width", "padding", "relu", "needed"),
    [
        (1, 5, 7, 9, 1, True, True),
        (1, 70, 6, 6, 0, True, True),
        (2, 6, 8, 5, 0, False, False),
        (3, 9, 6, 8, 1, True, True),
        (3, 4, 5, 5, 0, True, False),
    ],
)
@pytest.mark.usefixtures("memory", "_small_launches")
def test_first_blocks_of_images_stay_within_their_tensors(
    channels: int, filters: int, height: int, width: int, padding: int, relu: bool, needed: bool
) -> None:
    maps = torch.randn(3, channels, height, width).bfloat16().requires_grad_(needed)
    weight = torch.randn(filters, channels, 3, 3).requires_grad_()
    result = first_block.first_pool(maps, weight, *parameters(filters), 1e-5, padding, relu, running(filters, 0.1))[0]
    result.float().sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("episodes", "way", "queries", "permutations", "depth", "filters", "height", "width", "needed"),
    [
        (2, 2, 3, 1, 1, 5, 8, 6, (True, True)),
        (1, 3, 2, 2, 1, 6, 5, 7, (False, True)),
        (1, 2, 2, 1, 3, 70, 6, 6, (False, False)),
        (2, 1, 2, 3, 1, 7, 6, 5, (True, True)),
    ],
)
@pytest.mark.usefixtures("memory", "_small_launches")
def test_first_blocks_of_pairs_stay_within_their_tensors(
    episodes: int,
    way: int,
    queries: int,
    permutations: int,
    depth: int,
    filters: int,
    height: int,
    width: int,
    needed: tuple[bool, bool],
) -> None:
    support, query = (
        torch.randn(episodes, count, permutations, depth, height, width).bfloat16().requires_grad_(wanted)
        for count, wanted in zip((way, queries), needed, strict=True)
    )
    weight = torch.randn(filters, 2 * permutations * depth, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    result = first_block.first_pairs(support, query, weight, *parameters(filters), 1e-5, running(filters))[0]
    result.float().sum().backward()


@pytest.mark.slow
def test_every_kernel_is_watched(memory: set[str]) -> None:
    test_norm_pool_stays_within_its_tensors(3, 4, 4, True, True)
    test_join_pool_stays_within_its_tensors(3, 2, 2, True)
    test_pair_pool_stays_within_its_tensors(1, 1, 1, 3, 2, 2)
    test_first_blocks_of_pairs_stay_within_their_tensors(1, 1, 1, 1, 1, 3, 4, 4, (True, True))
    for module in MODULES:
        launched = re.findall(r"(\b_\w+)\[\(", Path(str(module.__file__)).read_text("utf-8"))
        assert launched
        assert {f"{module.__name__}.{name}" for name in launched} <= memory


@triton.jit  # type: ignore[untyped-decorator]
def _copy(numbers, result, read, write, each, count: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy numbers from read on to write on, each program a step further."""
    place = tl.arange(0, count)
    tl.store(result + write + each * tl.program_id(0) + place, tl.load(numbers + read + place))


@pytest.mark.parametrize(
    ("read", "write", "each", "message"),
    [
        (1, 0, 8, "_copy reads 1 of 8 numbers outside of its tensors, 32 bytes from the start of numbers"),
        (0, -1, 8, "_copy writes 1 of 8 numbers outside of its tensors, -4 bytes from the start of result"),
        (0, 9, 8, "_copy writes 1 of 8 numbers outside of its tensors, 64 bytes from the start of result"),
        (0, 0, 4, "_copy writes what another program writes, in result"),
    ],
)
@pytest.mark.usefixtures("memory")
def test_a_kernel_that_strays_is_caught(read: int, write: int, each: int, message: str) -> None:
    rows = torch.zeros(3, 8)  # what follows the numbers is a tensor of the kernel too
    with pytest.raises(InterpreterError, match=message):
        _copy[(2,)](rows[0], rows[1:], read, write, each, 8)


@pytest.mark.usefixtures("memory")
def test_a_kernel_that_reads_between_rows_or_what_another_program_writes_is_caught() -> None:
    rows = torch.zeros(3, 8)
    with pytest.raises(InterpreterError, match="_copy reads 4 of 8 numbers outside"):
        _copy[(2,)](torch.zeros(4, 4)[:, :2], rows[1:], 0, 0, 8, 8)
    with pytest.raises(InterpreterError, match="_copy reads what another program writes, in numbers"):
        _copy[(2,)](rows, rows, 0, 0, 8, 8)


@pytest.mark.usefixtures("memory")
def test_a_kernel_that_does_not_stray_runs_as_ever() -> None:
    rows = torch.arange(24.0).view(3, 8)
    _copy[(2,)](rows[0], rows[1:], 0, 0, 8, 8)
    assert rows.equal(torch.arange(8.0).repeat(3, 1))
