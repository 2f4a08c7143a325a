"""Convolution blocks that run faster than their layers one by one, with the same parameters and the same values."""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn


def block(inputs: int, outputs: int, padding: int, pool: bool) -> list[nn.Module]:
    """3×3 convolution, batch norm, 2×2 max-pooling if asked for, ReLU.

    Pooling and ReLU commute; pooling first leaves ReLU a quarter of the work.
    """
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.BatchNorm2d(outputs)]
    return [*layers, nn.MaxPool2d(2), nn.ReLU()] if pool else [*layers, nn.ReLU()]


def run(layers: nn.Sequential, maps: Tensor) -> Tensor:
    """What layers(maps) gives; batch norm in evaluation mode is folded into the convolution before it."""
    remaining: Iterator[nn.Module] = iter(layers)
    for layer in remaining:
        if isinstance(layer, nn.Conv2d) and not (norm := next(remaining)).training:
            assert isinstance(norm, nn.BatchNorm2d)
            weight, bias = folded(layer, norm)
            maps = F.conv2d(maps, weight, bias, layer.stride, layer.padding)
        elif isinstance(layer, nn.Conv2d):
            maps = norm(layer(maps))
        else:
            maps = layer(maps)
    return maps


def folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the one convolution that does the work of a convolution and the batch norm after it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert convolution.bias is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()  # (C,)
    weight = convolution.weight * scale.view(-1, 1, 1, 1)
    return weight, (convolution.bias - norm.running_mean) * scale + norm.bias
