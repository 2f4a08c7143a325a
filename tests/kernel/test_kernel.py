"""Fused kernels give what the plain formulas beside them give, in value, gradient and statistics."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sosn
from sosn.data.dataset import open_bank
from sosn.encoder import resnet12
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.kernel import MOST_ROWS, Engine, enabled, engine, first_block, join_pool, norm_pool, on_triton, pair_pool
from sosn.kernel import blocks as layers
from sosn.kernel.batch_norm import Fixed, Running
from sosn.method.base import batch_norms
from sosn.relation import stack_pairs
from sosn.util.seeding import generator

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 5e-2}


@pytest.fixture(params=["auto", "triton"])
def way_to_run(request: pytest.FixtureRequest) -> Iterator[str]:
    """The plain PyTorch algebra of the CPU, and the Triton kernels: on the GPU, or in Triton's interpreter."""
    if request.param == "triton":
        pytest.importorskip("triton")
    with engine(request.param):
        yield request.param


@pytest.fixture
def triton() -> Iterator[None]:
    pytest.importorskip("triton")
    with engine("triton"):
        yield


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    """Random tensors, the same in every run."""
    source = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=source, dtype=torch.float64)


def gradients(result: Tensor, weights: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((result.double() * weights.to(result.device)).sum(), inputs)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    scale = theirs.double().abs().max().clamp_min(1e-3)
    torch.testing.assert_close(ours.double().cpu() / scale.cpu(), theirs.double().cpu() / scale.cpu(), rtol=0, atol=tolerance)


def remembered(draw: Callable[..., Tensor], weight: Tensor, bias: Tensor) -> Fixed:
    """Batch norm in evaluation mode, with an eps that cannot be overlooked."""
    mean, var, offset = (draw(len(weight)).to(weight) for _ in range(3))
    return Fixed(weight, bias, mean, 0.2 + var.square(), offset, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "height", "width"), [(6, 6, 4), (5, 7, 5), (8, 3, 3), (70, 3, 2)])
@pytest.mark.parametrize(
    ("pool", "relu", "leak"), [(True, True, 0.0), (False, True, 0.0), (True, False, 0.0), (False, True, 0.1), (True, True, 0.3)]
)
@pytest.mark.usefixtures("triton")
def test_norm_pool_is_batch_norm_pooling_and_relu(
    draw: Callable[..., Tensor],
    dtype: torch.dtype,
    channels: int,
    height: int,
    width: int,
    pool: bool,
    relu: bool,
    leak: float,
) -> None:
    maps = (3 + 2 * draw(5, channels, height, width)).to(device(), dtype)
    weight, bias = draw(channels).to(device()), draw(channels).to(device())  # some weights are negative
    if dtype != torch.float64:
        weight, bias = weight.float(), bias.float()
    inputs = [tensor.requires_grad_() for tensor in (maps, weight, bias)]
    result, mean, var = norm_pool.norm_pool_batch(maps, weight, bias, torch.zeros_like(bias), 1e-5, pool, relu, None, leak)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = norm_pool.plain(exact[0], exact[1], exact[2], None, None, 1e-5, pool, relu, leak)
    close(result, expected, TOLERANCE[dtype])
    close(mean, exact[0].mean((0, 2, 3)), TOLERANCE[dtype])
    close(var, exact[0].var((0, 2, 3), correction=0), TOLERANCE[dtype])
    passing = draw(*expected.shape).to(device())
    for ours, theirs in zip(gradients(result, passing, *inputs), gradients(expected, passing, *exact), strict=True):
        close(ours, theirs, TOLERANCE[dtype])
    fixed = remembered(draw, weight.detach(), bias.detach())
    mean, var = (fixed.mean - fixed.offset).double(), fixed.var.double()
    expected = norm_pool.plain(exact[0], exact[1], exact[2], mean, var, fixed.eps, pool, relu, leak)
    close(norm_pool.norm_pool_fixed(maps.detach(), fixed, pool, relu, leak), expected, TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "bias"), [(0.0, 0.5), (1e-5, 0.0), (-0.01, 3.0), (0.3, 1.0), (-2.0, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("triton")
def test_norm_pool_finds_normalised_values_however_small_the_weight(
    draw: Callable[..., Tensor], dtype: torch.dtype, weight: float, bias: float
) -> None:
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    maps = draw(6, 3, 8, 8).to(device(), dtype)
    scale, shift = (torch.tensor(values, device=device(), dtype=kind) for values in ([1.0, weight, -0.5], [0.2, bias, -0.1]))
    inputs = [tensor.requires_grad_() for tensor in (maps, scale, shift)]
    result = norm_pool.norm_pool_batch(maps, scale, shift, None, 1e-5, True, True)[0]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = norm_pool.plain(exact[0], exact[1], exact[2], None, None, 1e-5, True, True)
    passing = draw(*expected.shape).bfloat16().double()
    for ours, theirs in zip(gradients(result, passing, *inputs), gradients(expected, passing, *exact), strict=True):
        close(ours, theirs, TOLERANCE[dtype] / 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "height", "width", "ties"), [(6, 6, 4, False), (5, 7, 5, False), (70, 3, 2, False), (6, 8, 6, True)]
)
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.usefixtures("triton")
def test_join_pool_is_a_sum_of_batch_norms_leaky_relu_and_pooling(
    draw: Callable[..., Tensor], dtype: torch.dtype, channels: int, height: int, width: int, ties: bool, pool: bool
) -> None:
    first, second = ((number + 2 * draw(5, channels, height, width)).to(device(), dtype) for number in (3, -1))
    if ties:  # values of 0 and 1: often several of four positions are highest
        first, second = ((maps > maps.mean()).to(dtype) for maps in (first, second))
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    parameters = [draw(channels).to(device(), kind) for _ in range(4)]  # some weights are negative
    parameters[0][2] = parameters[2][1] = 0
    inputs = [tensor.requires_grad_() for tensor in (first, second, *parameters)]

    def fresh(place: str) -> tuple[Running, Running]:
        nothing = torch.zeros(channels, device=place, dtype=kind)
        one, other = (Running(nothing.clone(), nothing + 1, torch.tensor(0, device=place), 0.3) for _ in range(2))
        return one, other

    def norms(first: Tensor, shift: Tensor, second: Tensor, other: Tensor) -> tuple[join_pool.Parameters, join_pool.Parameters]:
        return (first, shift, 1e-5), (second, other, 0.1)

    running = fresh(device())
    result = join_pool.join_pool(first, second, norms(*parameters), pool, 0.1, running)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = join_pool.plain(exact[0], exact[1], norms(*exact[2:]), pool, 0.1)
    close(result, expected, TOLERANCE[dtype])
    passing = draw(*expected.shape).bfloat16().double().to(device())
    for ours, theirs in zip(gradients(result, passing, *inputs), gradients(expected, passing, *exact), strict=True):
        assert ours.dtype in (dtype, kind)
        close(ours, theirs, TOLERANCE[dtype])
    for maps, own, plain in zip(exact[:2], running, fresh("cpu"), strict=True):
        mean, var = maps.detach().mean((0, 2, 3)).cpu(), maps.detach().var((0, 2, 3), correction=0).cpu()
        plain.update(mean, var, None, maps.numel() // channels)
        assert own.batches == 1
        close(own.mean, plain.mean, TOLERANCE[dtype])
        close(own.var, plain.var, TOLERANCE[dtype])


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.usefixtures("triton")
def test_a_residual_stage_is_the_same_with_either_engine(draw: Callable[..., Tensor], pool: bool, training: bool) -> None:
    results = []
    names: tuple[Engine, ...] = ("triton", "plain")
    maps = draw(3, 2, 7, 6).to(device())
    for name in names:
        torch.manual_seed(0)
        stage = resnet12.Stage(2, 5, pool).to(device(), torch.float64)
        with engine("plain"):
            stage(maps.square())  # so that running statistics are not those of a new net
        stage.train(training)
        with engine(name):
            own = maps.clone().requires_grad_()
            result = stage(own)
            result.square().sum().backward()
            with torch.no_grad():
                again = stage(own)
        results.append([result, again, own.grad, *(weight.grad for weight in stage.parameters()), *stage.buffers()])
    assert results[0][0].shape == ((3, 5, 3, 3) if pool else (3, 5, 7, 6))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_nan_comes_through_a_sum_of_batch_norms_where_it_is(draw: Callable[..., Tensor], pool: bool, leak: float) -> None:
    """With finite statistics, as those of a whole batch would not be."""
    from sosn.kernel.triton.join_pool import apply

    first, second = ((number + draw(2, 5, 6, 4)).float().to(device()) for number in (0, 1))
    first[0, 0, 3, 3], second[1, 2, 0, 1] = torch.nan, torch.nan
    scales, shifts = (draw(2, 5).float().to(device()) for _ in range(2))
    values = [torch.stack((*torch.zeros(3, 5, device=device()), scales[n], shifts[n])) for n in range(2)]
    maps = [norm_pool.channels_last(one) for one in (first, second)]
    normed = [maps[n] * scales[n].view(-1, 1, 1) + shifts[n].view(-1, 1, 1) for n in range(2)]
    expected = F.leaky_relu(normed[0] + normed[1], leak)
    expected = F.max_pool2d(expected, 2) if pool else expected
    assert 0 < expected.isnan().sum() < 3
    torch.testing.assert_close(apply(maps[0], maps[1], (values[0], values[1]), pool, leak), expected, equal_nan=True)


@pytest.mark.usefixtures("triton")
def test_a_residual_stage_with_one_frozen_batch_norm_is_the_same_with_either_engine(draw: Callable[..., Tensor]) -> None:
    maps, results = draw(3, 2, 6, 6).to(device()), []
    names: tuple[Engine, ...] = ("triton", "plain")
    for name in names:
        torch.manual_seed(0)
        stage = resnet12.Stage(2, 5, pool=True).to(device(), torch.float64)
        stage.shortcut.eval()
        with engine(name):
            results.append([stage(maps), *stage.buffers()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("triton")
def test_maps_that_are_too_small_to_be_pooled_are_refused_by_either_engine(draw: Callable[..., Tensor]) -> None:
    stage, maps = resnet12.Stage(2, 5, pool=True).to(device()), draw(3, 2, 1, 4).float().to(device())
    names: tuple[Engine, ...] = ("triton", "plain")
    for name in names:
        with engine(name), pytest.raises(RuntimeError, match="too small"):
            stage(maps)


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.usefixtures("triton")
def test_a_first_block_that_pools_leaks_what_it_should(draw: Callable[..., Tensor], slope: float) -> None:
    images = draw(4, 3, 8, 8).float().to(device())
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.LeakyReLU(slope)).to(device())
    expected = block(images)
    assert (expected < 0).any() == bool(slope)
    close(layers.run(block, images), expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("episodes", "way", "queries", "channels", "side"), [(2, 3, 5, 6, 6), (1, 2, 7, 4, 5), (2, 5, 2, 3, 4), (1, 40, 3, 2, 4)]
)
def test_pair_pool_is_batch_norm_pooling_and_relu_of_all_pairs(
    way_to_run: str,
    draw: Callable[..., Tensor],
    dtype: torch.dtype,
    episodes: int,
    way: int,
    queries: int,
    channels: int,
    side: int,
) -> None:
    place = device() if way_to_run == "triton" else "cpu"
    support = (2 + draw(episodes, way, channels, side, side)).to(place, dtype)
    query = (2 * draw(episodes, queries, channels, side, side) - 1).to(place, dtype)
    weight, bias = draw(channels).to(place), draw(channels).to(place)
    if dtype != torch.float64:
        weight, bias = weight.float(), bias.float()
    assert on_triton(support) == (way_to_run == "triton")
    inputs = [tensor.requires_grad_() for tensor in (support, query, weight, bias)]
    result, mean, var = pair_pool.pair_pool_batch(support, query, weight, bias, torch.zeros_like(bias), 1e-5)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = pair_pool.plain(exact[0], exact[1], exact[2], exact[3], None, None, 1e-5)
    pairs = exact[0].unsqueeze(1) + exact[1].unsqueeze(2)
    close(result, expected, TOLERANCE[dtype])
    close(mean, pairs.mean((0, 1, 2, 4, 5)), TOLERANCE[dtype])
    close(var, pairs.var((0, 1, 2, 4, 5), correction=0), TOLERANCE[dtype])
    passing = draw(*expected.shape).to(place)
    for ours, theirs in zip(gradients(result, passing, *inputs), gradients(expected, passing, *exact), strict=True):
        close(ours, theirs, TOLERANCE[dtype])
    fixed = remembered(draw, weight.detach(), bias.detach())
    mean, var = (fixed.mean - fixed.offset).double(), fixed.var.double()
    expected = pair_pool.plain(exact[0], exact[1], exact[2], exact[3], mean, var, fixed.eps)
    close(pair_pool.pair_pool_fixed(support.detach(), query.detach(), fixed), expected, TOLERANCE[dtype])


def test_the_first_of_equal_values_takes_the_gradient(way_to_run: str) -> None:
    place = device() if way_to_run == "triton" else "cpu"
    support = torch.ones(1, 2, 1, 2, 2, device=place, dtype=torch.float64)
    support[:, 1] = 3
    query = torch.zeros(1, 2, 1, 2, 2, device=place, dtype=torch.float64)
    scale = torch.ones(1, device=place, dtype=torch.float64)
    d_support, d_query, total, product = pair_pool._backward(
        support, query, torch.ones(1, 2, 2, 1, 1, 1, device=place, dtype=torch.float64), scale, 0 * scale
    )
    assert d_support.flatten().tolist() == [2, 0, 0, 0, 2, 0, 0, 0]
    assert d_query.flatten().tolist() == [2, 0, 0, 0, 2, 0, 0, 0]
    assert [total.item(), product.item()] == [4, 8]


def first_parameters(draw: Callable[..., Tensor], dtype: torch.dtype, channels: int, filters: int) -> list[Tensor]:
    """Weights that bfloat16 holds, and batch norms of either sign and one of 0."""
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    weight = draw(filters, channels, 3, 3).bfloat16().to(device(), kind, memory_format=torch.channels_last)
    offset, scale, shift = (draw(filters).to(device(), kind) for _ in range(3))
    scale[1] = 0
    return [tensor.requires_grad_() for tensor in (weight, offset, scale, shift)]


def check_first_block(
    dtype: torch.dtype, ours: tuple[Tensor, Tensor, Tensor], expected: Tensor, maps: Tensor, inputs: list[Tensor],
    exact: list[Tensor], passing: Tensor,
) -> None:  # fmt: skip
    """maps are those of the convolution without its bias; the gradient of that bias is 0."""
    result, mean, var = ours
    close(result, expected, TOLERANCE[dtype])
    close(mean, maps.mean((0, 2, 3)), TOLERANCE[dtype])
    close(var, maps.var((0, 2, 3), correction=0), TOLERANCE[dtype])
    passing = passing.bfloat16().double()
    for mine, theirs in zip(gradients(result, passing, *inputs), gradients(expected, passing, *exact), strict=True):
        assert mine.dtype == inputs[0].dtype or mine.shape != inputs[0].shape
        close(mine, theirs if theirs.abs().max() > 1e-8 else torch.zeros_like(theirs), TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "filters", "height", "width", "padding", "relu"),
    [(3, 6, 10, 8, 0, True), (1, 5, 9, 7, 1, True), (2, 8, 8, 9, 0, False), (1, 70, 6, 6, 1, True)],
)
@pytest.mark.usefixtures("triton")
def test_a_first_block_is_convolution_batch_norm_pooling_and_relu(
    draw: Callable[..., Tensor],
    dtype: torch.dtype,
    channels: int,
    filters: int,
    height: int,
    width: int,
    padding: int,
    relu: bool,
) -> None:
    if torch.cuda.is_available() and dtype != torch.bfloat16:
        pytest.skip("on a GPU these kernels serve half precision")
    maps = (0.5 + draw(3, channels, height, width)).to(device(), dtype).requires_grad_()
    inputs = [maps, *first_parameters(draw, dtype, channels, filters)]
    assert first_block.serves(maps, inputs[1], 3)
    ours = first_block.first_pool(*inputs, 1e-5, padding, relu)  # type: ignore[call-arg, arg-type]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = first_block.plain(*exact, 1e-5, padding, relu)  # type: ignore[call-arg, arg-type]
    convolved = nn.functional.conv2d(exact[0], exact[1], padding=padding)
    check_first_block(dtype, ours, expected, convolved, inputs, exact, draw(*expected.shape))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "episodes", "way", "queries", "permutations", "depth", "filters", "height", "width"),
    [
        (torch.float64, 2, 3, 4, 1, 1, 6, 8, 10),
        (torch.float32, 2, 3, 4, 1, 1, 6, 8, 10),
        (torch.bfloat16, 2, 3, 4, 1, 1, 6, 8, 10),
        (torch.bfloat16, 2, 1, 2, 1, 2, 3, 6, 7),
        (torch.float64, 1, 2, 2, 2, 2, 4, 5, 6),
    ],
)
@pytest.mark.usefixtures("triton")
def test_a_first_block_of_pairs_is_that_of_stacked_pairs(
    draw: Callable[..., Tensor],
    dtype: torch.dtype,
    episodes: int,
    way: int,
    queries: int,
    permutations: int,
    depth: int,
    filters: int,
    height: int,
    width: int,
) -> None:
    if torch.cuda.is_available() and dtype != torch.bfloat16:
        pytest.skip("on a GPU these kernels serve half precision")
    support = (draw(episodes, way, permutations, depth, height, width) + 1).to(device(), dtype).requires_grad_()
    query = (2 * draw(episodes, queries, permutations, depth, height, width)).to(device(), dtype).requires_grad_()
    inputs = [support, query, *first_parameters(draw, dtype, 2 * permutations * depth, filters)]
    ours = first_block.first_pairs(*inputs, 1e-5)  # type: ignore[call-arg, arg-type]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = first_block.plain_pairs(*exact, 1e-5)  # type: ignore[call-arg, arg-type]
    pairs = torch.cat(
        [
            torch.cat((left.unsqueeze(0), right.unsqueeze(0)), 2).flatten(1, 2)
            for one, other in zip(exact[0], exact[1], strict=True)
            for right in other
            for left in one
        ]
    )
    convolved = nn.functional.conv2d(pairs, exact[2])
    check_first_block(dtype, ours, expected, convolved, inputs, exact, draw(*expected.shape))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("inputs", [2, 12], ids=["first block", "any block"])
@pytest.mark.usefixtures("triton")
def test_running_statistics_are_those_of_batch_norm(draw: Callable[..., Tensor], momentum: float | None, inputs: int) -> None:
    def fresh() -> nn.Sequential:
        torch.manual_seed(2)
        made = nn.Sequential(nn.Conv2d(inputs, 5, 3), nn.BatchNorm2d(5, momentum=momentum), nn.MaxPool2d(2), nn.ReLU())
        return made.double().to(device())

    ours, theirs = fresh(), fresh()
    if torch.cuda.is_available() and inputs == 2:
        pytest.skip("on a GPU first blocks take these kernels in half precision")
    for step in range(3):
        maps = (draw(2, inputs, 7, 6) + step).to(device())
        layers.run(ours, maps)
        with engine("plain"):
            layers.run(theirs, maps)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
    before = [buffer.clone() for buffer in ours.buffers()]
    ours[1].track_running_stats = False  # type: ignore[assignment]
    layers.run(ours, maps)
    for buffer, same in zip(ours.buffers(), before, strict=True):
        assert buffer.equal(same)


def make_block(inputs: int, pool: bool = True) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(*layers.block(inputs, 5, 0, pool)).to(device())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inputs", [2, 12], ids=["first block", "any block"])
@pytest.mark.usefixtures("triton")
def test_a_value_of_nan_comes_through_pooling_and_relu(draw: Callable[..., Tensor], inputs: int, training: bool) -> None:
    block, maps = make_block(inputs).train(training), draw(2, inputs, 8, 8).float().to(device())
    maps[0, 0, 3, 3] = torch.nan
    with torch.no_grad(), torch.autocast(device(), torch.bfloat16, enabled=torch.cuda.is_available()):
        ours = layers.run(block, maps)
        with engine("plain"):
            assert ours.isnan().equal(layers.run(block, maps).isnan())
    assert ours.isnan().any()
    if training:
        assert all(buffer.isnan().all() for buffer in list(block.buffers())[:2])  # running mean and variance


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("depth", [1, 5], ids=["first block", "any block"])
@pytest.mark.usefixtures("triton")
def test_a_pair_of_nan_comes_through_pooling_and_relu(draw: Callable[..., Tensor], depth: int, training: bool) -> None:
    block = make_block(2 * depth).train(training)
    support, query = (draw(1, count, 1, depth, 8, 8).float().to(device()) for count in (2, 3))
    query[0, 1, 0, 0, 4, 4] = torch.nan
    with torch.no_grad(), torch.autocast(device(), torch.bfloat16, enabled=torch.cuda.is_available()):
        ours = layers.run_pairs(block, support, query).flatten(0, 2)
        with engine("plain"):
            expected = layers.run(block, stack_pairs(support, query).flatten(3, 4).flatten(0, 2))
    assert ours.isnan().equal(expected.isnan())
    assert ours.isnan().any()


@pytest.mark.parametrize("inputs", [2, 12], ids=["first block", "any block"])
def test_no_images_and_no_pairs_give_nothing_and_leave_statistics_alone(way_to_run: str, inputs: int) -> None:
    place = device() if way_to_run == "triton" else "cpu"
    block = make_block(inputs).to(place)
    assert layers.run(block, torch.empty(0, inputs, 8, 8, device=place)).shape == (0, 5, 3, 3)
    for episodes, way, queries in ((0, 2, 3), (2, 0, 3), (2, 2, 0)):
        support, query = (torch.empty(episodes, count, 1, inputs // 2, 8, 8, device=place) for count in (way, queries))
        assert layers.run_pairs(block, support, query).shape == (episodes, queries, way, 5, 3, 3)
    assert [buffer.tolist() for buffer in block.buffers()][:2] == [[0] * 5, [1] * 5]


@pytest.mark.usefixtures("triton")
def test_a_single_value_has_no_statistics_with_either_engine() -> None:
    block, maps = make_block(12, pool=False), torch.ones(1, 12, 3, 3, device=device())
    names: tuple[Engine, ...] = ("triton", "plain")
    for name in names:
        with engine(name), pytest.raises(ValueError, match=r"more than 1 value per channel.*\[1, 5, 1, 1\]"):
            layers.run(block, maps)


@pytest.mark.usefixtures("triton")
def test_a_single_value_of_two_maps_has_no_statistics() -> None:
    maps, one = torch.ones(1, 5, 1, 1, device=device()), torch.ones(5, device=device())
    with pytest.raises(ValueError, match=r"more than 1 value per channel.*\[1, 5, 1, 1\]"):
        join_pool.join_pool(maps, maps, ((one, one, 1e-5), (one, one, 1e-5)), False, 0.1)


@pytest.mark.usefixtures("triton")
def test_a_weight_may_be_a_part_of_another_tensor(draw: Callable[..., Tensor]) -> None:
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float64
    maps, whole = draw(2, 3, 8, 8).to(device(), dtype), draw(6, 4, 3, 3).bfloat16().to(device(), dtype)
    weight, offset, scale, shift = whole[:, :3], *(draw(6).to(device(), dtype) for _ in range(3))
    weight.requires_grad_()
    exact = [tensor.detach().double().requires_grad_() for tensor in (maps, weight, offset, scale, shift)]
    expected = first_block.plain(*exact, 1e-5, 0, True)  # type: ignore[call-arg, arg-type]
    passing = draw(*expected.shape).bfloat16().double()
    result = first_block.first_pool(maps, weight, offset, scale, shift, 1e-5, 0, True)[0]
    close(gradients(result, passing, weight)[0], gradients(expected, passing, exact[1])[0], TOLERANCE[dtype])


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("triton_compile.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=plain | {"TRITON_CACHE_DIR": str(tmp_path)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    compiled = {name: int(size) for name, size in (line.split() for line in done.stdout.splitlines())}
    launched = {
        f"sosn.kernel.triton.{path.stem}.{name}"
        for path in Path(first_block.__file__).parent.glob("triton/*.py")
        for name in re.findall(r"(_\w+)\[\(", path.read_text("utf-8"))
    }
    assert len(launched) > 10
    assert compiled.keys() == launched
    assert all(compiled.values())


@pytest.mark.slow
@pytest.mark.usefixtures("triton")
def test_results_do_not_depend_on_how_kernels_are_launched(
    draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sosn.kernel.triton import first_backward as triton_first_backward
    from sosn.kernel.triton import first_forward as triton_first_forward
    from sosn.kernel.triton import join_pool as triton_join_pool
    from sosn.kernel.triton import norm_pool as triton_norm_pool
    from sosn.kernel.triton.launch import Launch

    maps, query = draw(10, 2, 11, 12).to(device()), draw(2, 5, 1, 1, 12, 12).to(device())
    if torch.cuda.is_available():
        maps, query = maps.bfloat16(), query.bfloat16()

    def results() -> list[Tensor]:
        net = nn.Sequential(*make_block(2), *layers.block(5, 5, 0, False), *layers.block(5, 5, 1, True)).to(maps.dtype)
        stages = [resnet12.Stage(2, 5, pool).to(maps) for pool in (True, False)]
        (layers.run(net[:-4], maps).square().sum() + layers.run_pairs(net, query, query).square().sum()).backward()
        for stage in stages:
            stage(maps).square().sum().backward()
        return [parameter.grad for part in (net, *stages) for parameter in part.parameters() if parameter.grad is not None]

    before, taken = results(), set()

    class Few(Launch):
        """Programs that take several tiles each."""

        def grid(self, rows: int) -> int:
            taken.add(rows)
            return super().grid(rows)

    for module in (triton_first_forward, triton_first_backward, triton_norm_pool, triton_join_pool):
        for name, value in vars(module).items():
            if isinstance(value, Launch) and value.programs:
                monkeypatch.setattr(module, name, Few(16, 4, 1, 2))
    for ours, theirs in zip(results(), before, strict=True):
        close(ours, theirs, TOLERANCE[maps.dtype])
    assert min(taken) > 2 * 16  # or a program had a single tile


@pytest.mark.slow
@pytest.mark.usefixtures("triton")
def test_kernels_are_launched_where_their_tensors_are(draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def device_of(tensor: Tensor) -> nullcontext[None]:
        asked.append(tuple(tensor.shape))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    block, query = make_block(2).cpu(), draw(1, 2, 1, 1, 8, 8).float()
    layers.run(block, torch.ones(2, 2, 8, 8))
    layers.run_pairs(block, query, query)
    assert asked == [(2, 2, 8, 8), (1, 2, 1, 1, 8, 8)]


@pytest.mark.usefixtures("triton")
def test_under_autocast_a_first_block_rounds_its_factors_alone() -> None:
    torch.manual_seed(1)
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.ReLU()).to(device())
    images = torch.randn(4, 3, 12, 12, device=device())
    with torch.autocast(device(), torch.bfloat16):
        result = layers.run(block, images)
    assert result.dtype == torch.bfloat16
    with engine("plain"):
        close(result.detach(), layers.run(block, images).detach(), TOLERANCE[torch.bfloat16])
    assert not first_block.serves(torch.empty(2, 9, 8, 8), torch.empty(8, 9, 3, 3), first_block.SIDE_CHANNELS)


def glyph_episode(episodes: int = 2, way: int = 3, shot: int = 2) -> Episode:
    bank = open_bank("glyphs", "val", alphabets=10, characters=6, drawings=8)
    return sosn.EpisodeSampler(bank, way, shot, 1).draw(episodes, generator("kernel test"))


def small_model(**options: object) -> sosn.SoSN:
    torch.manual_seed(0)
    model = sosn.SoSN(channels=1, input_size=28, encoder={"width": 48}, **options)  # type: ignore[arg-type]
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.5)
    return model.double()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"permutations": 3}, {"permutations": 2, "streams": 2}, {"relation": "or_like"}, {"relation": "hadamard"}],
    ids=str,
)
@pytest.mark.parametrize("fast_way", ["auto", "triton"])
def test_a_training_step_is_the_same_with_either_engine(options: dict[str, object], fast_way: Engine) -> None:
    if fast_way == "triton":
        pytest.importorskip("triton")
        if options:
            pytest.skip("the interpreter is slow: one model is enough")
    episode = glyph_episode(*((1, 2, 1) if fast_way == "triton" else (2, 3, 2)))
    results = []
    ways: tuple[Engine, ...] = (fast_way, "plain")
    for way in ways:
        model = small_model(**options).train()
        with engine(way):
            loss = model.loss(episode)
            loss.backward()
        results.append((loss, model))
    (ours, fast), (theirs, slow) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for (name, one), other in zip(fast.named_parameters(), slow.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-10, msg=name)
    for (name, buffer), other_buffer in zip(fast.named_buffers(), slow.buffers(), strict=True):
        torch.testing.assert_close(buffer, other_buffer, rtol=1e-9, atol=1e-12, msg=name)


def test_evaluation_gives_the_same_scores_with_either_engine() -> None:
    episode, model = glyph_episode(), small_model()
    for layer in batch_norms(model):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        nn.init.uniform_(layer.running_mean, -1, 1)
        nn.init.uniform_(layer.running_var, 0.5, 2)
    model.eval()
    with engine("plain"):
        expected = model(episode)
    torch.testing.assert_close(model(episode), expected, rtol=1e-9, atol=1e-12)
    with torch.inference_mode():
        torch.testing.assert_close(model(episode), expected, rtol=1e-9, atol=1e-12)
    with torch.random.fork_rng(), engine("plain"):
        once = model(episode, "batch")
    torch.testing.assert_close(model(episode, "batch"), once, rtol=1e-9, atol=1e-12)


def test_pairs_in_parts_are_all_pairs_and_each_class_is_convolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block = make_block(2).cpu().eval()
    support, query = torch.randn(2, 3, 1, 1, 8, 8), torch.randn(2, 7, 1, 1, 8, 8)
    convolved: list[int] = []
    conv2d = torch.nn.functional.conv2d

    def watched(maps: Tensor, *others: Any) -> Tensor:
        convolved.append(len(maps))
        return conv2d(maps, *others)

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    with torch.no_grad():
        expected = layers.run_pairs(block, support, query)
        assert convolved == [6, 14]
        del convolved[:]
        parts = layers.run_pairs(block, support, query, at_once=12)  # of two classes and three queries
    torch.testing.assert_close(parts, expected)
    assert convolved == [6, 6, 6, 2]
    whole = layers.run_pairs(block.train(), support, query, at_once=12)  # statistics are those of all pairs
    with engine("plain"):
        pairs = stack_pairs(support, query).flatten(3, 4).flatten(0, 2)
        torch.testing.assert_close(whole.flatten(0, 2), layers.run(block, pairs), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("triton")
def test_gradients_pass_in_evaluation_mode_and_scores_stay_without_them() -> None:
    episode, model = glyph_episode(1), small_model().eval()
    model.loss(episode).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        scores = model(episode)
    with engine("plain"):
        torch.testing.assert_close(scores, model(episode), rtol=1e-9, atol=1e-12)


def test_an_engine_is_chosen_by_name_and_for_a_while() -> None:
    assert enabled()
    with engine("plain"):
        assert not enabled()
    assert enabled()
    with pytest.raises(UsageError, match="choose auto, plain, triton"), engine("fast"):  # type: ignore[arg-type]
        pass


def test_more_positions_than_kernels_can_number_go_another_way() -> None:
    from triton import language

    from sosn.kernel.triton.launch import index

    weight, one = torch.empty(64, 1, 3, 3), torch.empty(1).expand(2**9, 1, 2**10, 2**10)  # no memory is taken
    assert first_block.serves(one, weight, 3, 2)
    assert not first_block.serves(one, weight, 3, 4)
    assert not first_block.serves(torch.empty(1).expand(2**11, 1, 2**10, 2**10), weight, 3)
    assert index(MOST_ROWS - 1) is language.int32
    assert index(MOST_ROWS) is language.int64
