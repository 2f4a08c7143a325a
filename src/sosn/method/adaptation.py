"""Gradient descent inside a method: weights of their own for each task, all tasks at once."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.precision import full

Weights = Mapping[str, Tensor]
Moments = list[tuple[Tensor, Tensor]]  # mean and unbiased variance of the input of each batch norm


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


def descend(loss: Callable[[Weights], Any], weights: Weights, rate: float, first_order: bool) -> tuple[Weights, Any]:
    """One step down the gradient of a loss that also gives something else: the new weights, and that.

    first_order leaves out the derivative of the gradient itself.
    """
    gradients, other = torch.func.grad(loss, has_aux=True)(weights)
    if first_order:
        gradients = {name: gradient.detach() for name, gradient in gradients.items()}
    return {name: weight - rate * gradients[name] for name, weight in weights.items()}, other


def run_with(weights: Weights, prefix: str, layers: nn.Sequential, maps: Tensor) -> tuple[Tensor, Moments]:
    """What layers of convolution blocks give with other weights, and the moments that batch norm in training mode saw.

    Batch norm in training mode uses the batch at hand and changes nothing; otherwise its running statistics.
    """
    moments: Moments = []
    for name, layer in layers.named_children():
        if isinstance(layer, nn.Conv2d):
            maps = F.conv2d(
                maps, weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"], layer.stride, layer.padding
            )
        elif isinstance(layer, nn.BatchNorm2d):
            dtype, maps = maps.dtype, full(maps)
            if layer.training:
                variance, mean = torch.var_mean(maps, (0, 2, 3), correction=0)
                count = maps.numel() // maps.shape[1]
                moments.append((mean.detach(), variance.detach() * (count / max(count - 1, 1))))
            else:
                assert layer.running_mean is not None
                assert layer.running_var is not None
                mean, variance = layer.running_mean, layer.running_var
            scale = weights[f"{prefix}{name}.weight"] * (variance + layer.eps).rsqrt()
            offset = weights[f"{prefix}{name}.bias"] - mean * scale
            maps = (maps * scale.view(-1, 1, 1) + offset.view(-1, 1, 1)).to(dtype)
        else:
            maps = cast(Tensor, layer(maps))
    return maps, moments


@torch.no_grad()
def remember(norms: list[nn.BatchNorm2d], moments: Moments) -> None:
    """Move running statistics towards these moments as batch norm itself does; where it is told not to track, do nothing."""
    for norm, (mean, variance) in zip(norms, moments, strict=True):
        if not norm.track_running_stats:
            continue
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        share = norm.momentum if norm.momentum is not None else 1 / int(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
        norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)
