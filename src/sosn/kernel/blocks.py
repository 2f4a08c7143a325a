"""Run convolution blocks faster than layer by layer, with the same parameters and results."""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.kernel import enabled, on_triton
from sosn.kernel.batch_norm import Fixed, Running
from sosn.kernel.first_block import IMAGE_CHANNELS, SIDE_CHANNELS, first_pairs, first_pool, serves
from sosn.kernel.join_pool import Parameters, join_pool
from sosn.kernel.norm_pool import norm_pool_batch, norm_pool_fixed
from sosn.kernel.pair_pool import pair_pool_batch, pair_pool_fixed
from sosn.relation import stack_pairs


def block(inputs: int, outputs: int, padding: int, pool: bool) -> list[nn.Module]:
    """Return the layers of a block: 3×3 convolution, batch norm, 2×2 max-pooling if `pool`, ReLU.

    Pooling and ReLU commute; after pooling, ReLU has a quarter of the work.
    """
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.BatchNorm2d(outputs)]
    return [*layers, nn.MaxPool2d(2), nn.ReLU()] if pool else [*layers, nn.ReLU()]


def run(layers: nn.Sequential, maps: Tensor) -> Tensor:
    """Compute layers(maps), for layers made of blocks."""
    if not enabled():
        result: Tensor = layers(maps)
        return result
    with torch.cuda.device_of(maps):  # Triton launches on the current device, not on that of the tensors
        for part in _blocks(layers):
            maps = part.run(maps)
    return maps


def run_residual(layers: nn.Sequential, shortcut: nn.Sequential, maps: Tensor, leak: float, pool: bool) -> Tensor:
    """Compute the leaky ReLU of layers(maps) + shortcut(maps), pooled 2×2 if `pool`. Both must end in batch norm."""
    *before, last = _blocks(layers)
    (beside,) = _blocks(shortcut)
    training = last.norm.training and beside.norm.training
    if not (enabled() and on_triton(maps) and maps.numel() and training):
        maps = F.leaky_relu(run(layers, maps) + run(shortcut, maps), leak)
        return F.max_pool2d(maps, 2) if pool else maps
    with torch.cuda.device_of(maps):
        second = beside.convolve(maps)
        for part in before:
            maps = part.run(maps)
        norms = (last.parameters, beside.parameters)
        return join_pool(last.convolve(maps), second, norms, pool, leak, (last.running, beside.running))


def run_pairs(layers: nn.Sequential, support: Tensor, query: Tensor, at_once: int = sys.maxsize) -> Tensor:
    """Compute layers([support ; query]) for every pair. The first block of layers must pool.

    support (E, L, P, S, K, K) and query (E, Q, P, S, K, K) are stacked for each of P permutations; result (E, Q, L, C, h, w).
    at_once: about how many pairs are in memory at a time, if batch norm uses running statistics.
    """
    first, *others = _blocks(layers)
    assert first.pool
    assert not first.leak
    episodes, way = support.shape[:2]
    classes, queries = way, query.shape[1]
    if not first.norm.training:  # nearly square parts, so that few maps are read for many pairs
        classes = min(way, max(1, math.isqrt(at_once // max(1, episodes))))
        queries = max(1, at_once // max(1, episodes * classes))

    def rest(joined: Tensor) -> Tensor:
        maps = joined.flatten(0, 2)
        for part in others:
            maps = part.run(maps)
        result: Tensor = maps.unflatten(0, joined.shape[:3])
        return result

    with torch.cuda.device_of(query):
        rows = [_join([rest(part) for part in row], 2) for row in first.run_pairs(support, query, classes, queries)]
    return _join(rows, 1)


def _join(parts: list[Tensor], dim: int) -> Tensor:
    """Concatenate the parts, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _channels_last(maps: Tensor) -> Tensor:
    """Convert to channels-last order, with unambiguous strides also for a single channel."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    return maps if maps.shape[1] > 1 else maps.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class _Block:
    """A convolution, its batch norm, and the layers up to the next convolution."""

    convolution: nn.Conv2d
    norm: nn.BatchNorm2d
    after: tuple[nn.Module, ...]  # max-pooling, (leaky) ReLU, both or neither

    @property
    def pool(self) -> bool:
        return any(isinstance(layer, nn.MaxPool2d) for layer in self.after)

    @property
    def relu(self) -> bool:
        return any(isinstance(layer, nn.ReLU | nn.LeakyReLU) for layer in self.after)

    @property
    def leak(self) -> float:
        return next((float(layer.negative_slope) for layer in self.after if isinstance(layer, nn.LeakyReLU)), 0.0)

    @property
    def parameters(self) -> Parameters:
        return self.norm.weight, self.norm.bias, self.norm.eps

    @property
    def running(self) -> Running | None:
        """Running statistics of batch norm, or None if it has none."""
        norm = self.norm
        if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
            return None
        assert norm.num_batches_tracked is not None
        return Running(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum)

    def convolve(self, maps: Tensor) -> Tensor:
        """Run the convolution without its bias, in channels-last order."""
        convolution = self.convolution
        return F.conv2d(_channels_last(maps), convolution.weight, None, convolution.stride, convolution.padding)

    def run(self, maps: Tensor) -> Tensor:
        convolution, norm = self.convolution, self.norm
        if not on_triton(maps) or not maps.numel() or (torch.is_grad_enabled() and not norm.training):
            if norm.training:
                maps = norm(convolution(maps))
            else:
                weight, bias = folded(convolution, norm)
                maps = F.conv2d(maps, weight, bias, convolution.stride, convolution.padding)
            for layer in self.after:
                maps = layer(maps)
            return maps
        if norm.training and self.pool and not self.leak and serves(maps, convolution.weight, IMAGE_CHANNELS):
            parameters = (convolution.weight, convolution.bias, norm.weight, norm.bias)
            padding = convolution.padding[0]
            assert isinstance(padding, int)
            return first_pool(maps, *parameters, norm.eps, padding, self.relu, self.running)[0]
        maps = self.convolve(maps)
        if not norm.training:
            return norm_pool_fixed(maps, fixed(convolution, norm), self.pool, self.relu, self.leak)
        after = (norm.eps, self.pool, self.relu, self.running, self.leak)
        return norm_pool_batch(maps, norm.weight, norm.bias, convolution.bias, *after)[0]

    def run_pairs(self, support: Tensor, query: Tensor, classes: int, queries: int) -> Iterator[Iterable[Tensor]]:
        """Run the block on every pair, (E, L, P, S, K, K), (E, Q, P, S, K, K) → (E, Q, L, C, h, w).

        Yields rows of `queries` queries, each in parts of `classes` classes.
        """
        convolution, norm, way = self.convolution, self.norm, support.shape[1]
        if not support.numel() or not query.numel():  # no pairs, so no statistics
            pairs = stack_pairs(support, query).flatten(3, 4)
            yield (self.run(pairs.flatten(0, 2)).unflatten(0, pairs.shape[:3]),)
            return
        maps = query.flatten(2, 3).flatten(0, 1)
        if on_triton(query) and norm.training and serves(maps, convolution.weight, SIDE_CHANNELS, way):
            parameters = (convolution.weight, convolution.bias, norm.weight, norm.bias)
            yield (first_pairs(support, query, *parameters, norm.eps, self.running)[0],)
            return
        weight = convolution.weight.unflatten(1, (support.shape[2], 2, support.shape[3]))

        def convolve(side: Tensor, number: int) -> Tensor:  # linear: once per image, not once per pair
            filters = _channels_last(weight[:, :, number].flatten(1, 2))
            convolved: Tensor = F.conv2d(_channels_last(side.flatten(2, 3).flatten(0, 1)), filters).unflatten(0, side.shape[:2])
            return convolved

        sides = convolve(support, 0).split(classes, 1)
        for part in query.split(queries, 1):
            convolved = convolve(part, 1)
            yield (self._join(side, convolved) for side in sides)

    def _join(self, support: Tensor, query: Tensor) -> Tensor:
        """Run the layers after the convolution on a_s + b_q of every pair: (E, Q, L, C, h, w)."""
        norm = self.norm
        if not norm.training:
            return pair_pool_fixed(support, query, fixed(self.convolution, norm))
        result, mean, var = pair_pool_batch(support, query, norm.weight, norm.bias, self.convolution.bias, norm.eps)
        if self.running is not None:
            self.running.update(mean, var, self.convolution.bias, query.numel() // len(mean) * support.shape[1])
        return result


def _blocks(layers: nn.Sequential) -> list[_Block]:
    """Split layers into blocks."""
    found: list[_Block] = []
    starts = [place for place, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    for start, end in itertools.pairwise([*starts, len(layers)]):
        convolution, norm, *after = layers[start:end]
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        assert all(isinstance(layer, nn.MaxPool2d | nn.ReLU | nn.LeakyReLU) for layer in after)
        found.append(_Block(convolution, norm, tuple(after)))
    return found


def fixed(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Fixed:
    """Return batch norm in evaluation mode, with the bias of the convolution before it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    offset = torch.zeros_like(norm.bias) if convolution.bias is None else convolution.bias
    return Fixed(norm.weight, norm.bias, norm.running_mean, norm.running_var, offset, norm.eps)


def folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Fold batch norm into the convolution before it: return the weight and bias of an equivalent convolution."""
    scale, shift = fixed(convolution, norm).affine()
    return convolution.weight * scale.view(-1, 1, 1, 1), shift
