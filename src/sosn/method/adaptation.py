"""Gradient descent inside a method: weights of their own for each task, all tasks at once."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.encoder import Encoder, ResNet12
from sosn.errors import UsageError
from sosn.precision import full

Weights = Mapping[str, Tensor]
Moments = list[tuple[Tensor, Tensor]]  # mean and variance of the input of each batch norm


def chain(encoder: Encoder) -> nn.Sequential:
    """The blocks of an encoder whose weights can be other ones for each task. Refuses one that is no chain of blocks."""
    if isinstance(encoder, ResNet12):
        raise UsageError("encoder is 'resnet12'; a method that adapts its encoder to each task takes conv4 or conv4_pooled")
    return encoder.blocks


def check_chain(encoder: Encoder) -> None:
    """Refuse an encoder that is no chain of blocks, before anything is trained."""
    chain(encoder)


def for_each_episode(function: Callable[..., Any], *batches: Tensor) -> Any:
    """function of each episode's tensors, vectorised over the first axis of all of them.

    Works inside torch.inference_mode and torch.no_grad, where gradients of an inner loop are still needed.
    """
    with torch.inference_mode(False):
        ours = [batch.clone() if batch.is_inference() else batch for batch in batches]
        return torch.vmap(function)(*ours)


def start(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """The weights that descent starts from, as blocks.0.weight and so on; cut off from training where nothing is trained."""
    outside = torch.is_inference_mode_enabled() or not torch.is_grad_enabled()
    return {f"{prefix}{name}": weight.detach() if outside else weight for name, weight in module.named_parameters()}


def descend(loss: Callable[[Weights], Tensor], weights: Weights, rate: float, first_order: bool) -> Weights:
    """The weights after one step down the gradient of a loss. first_order leaves out the derivative of the gradient itself."""
    gradients = torch.func.grad(loss)(weights)
    if first_order:
        gradients = {name: gradient.detach() for name, gradient in gradients.items()}
    return {name: weight - rate * gradients[name] for name, weight in weights.items()}


def run_with(
    weights: Weights, prefix: str, layers: nn.Sequential, maps: Tensor, moments: Moments | None = None
) -> tuple[Tensor, Moments]:
    """What layers of convolution blocks give with other weights, and the moments that batch norm used.

    Batch norm uses the moments given, or those of the batch at hand; it remembers nothing.
    """
    used: Moments = []
    for name, layer in layers.named_children():
        if isinstance(layer, nn.Conv2d):
            weight, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
            maps = F.conv2d(maps, weight, bias, layer.stride, layer.padding)
        elif isinstance(layer, nn.BatchNorm2d):
            dtype, maps = maps.dtype, full(maps)
            if moments is None:
                variance, mean = torch.var_mean(maps, (0, 2, 3), correction=0)
            else:
                mean, variance = moments[len(used)]
            used.append((mean, variance))
            scale = weights[f"{prefix}{name}.weight"] * (variance + layer.eps).rsqrt()
            offset = weights[f"{prefix}{name}.bias"] - mean * scale
            maps = (maps * scale.view(-1, 1, 1) + offset.view(-1, 1, 1)).to(dtype)
        else:
            maps = cast(Tensor, layer(maps))
    return maps, used


def classify_with(
    weights: Weights, blocks: nn.Sequential, images: Tensor, moments: Moments | None = None
) -> tuple[Tensor, Moments]:
    """Logits (B, L) of images (B, C, H, W) by weights of blocks and of a linear head; and the moments as run_with has them."""
    maps, used = run_with(weights, "blocks.", blocks, images, moments)
    return full(F.linear(maps.flatten(1), weights["head.weight"], weights["head.bias"])), used


def running_moments(layers: nn.Sequential) -> Moments | None:
    """The running statistics of each batch norm in evaluation mode; None where the batch at hand is to be used."""
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    if any(norm.training for norm in norms):
        return None
    return [
        (norm.running_mean, norm.running_var)
        for norm in norms
        if norm.running_mean is not None and norm.running_var is not None
    ]
