"""Gradient descent inside a method: separate weights for each task, all tasks in parallel.

The weights of E tasks have a leading axis E. The maps of B images of each task are concatenated along the channels,
(B, E·C, H, W), so that batch norm and layers without weights work unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.encoder import Encoder
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.util.precision import full

Weights = Mapping[str, Tensor]
Moments = list[tuple[Tensor, Tensor]]  # mean and variance of the input of each batch norm, (E·C,)
DENSE = 8  # up to this many tasks, a GPU runs one convolution with zeros between tasks, not a grouped one


def chain(encoder: Encoder) -> nn.Sequential:
    """Return the blocks of an encoder, to be run with weights for each task. Refuses one that is not a chain of blocks."""
    if encoder.chain is None:
        raise UsageError(
            f"encoder is {encoder.name or 'a module'!r}; a method that adapts its encoder to each task takes conv4 or "
            "conv4_pooled, which are chains of blocks"
        )
    return encoder.chain


@contextmanager
def descending() -> Iterator[None]:
    """Enable gradients, even inside torch.inference_mode or torch.no_grad."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def side_by_side(images: Tensor, episodes: int) -> Tensor:
    """Rearrange the images of all tasks, (E·B, C, H, W), to maps (B, E·C, H, W)."""
    normal = images.clone() if images.is_inference() else images
    maps: Tensor = normal.unflatten(0, (episodes, -1)).transpose(0, 1).flatten(1, 2)
    return maps


def start(module: nn.Module, prefix: str, episodes: int) -> dict[str, Tensor]:
    """Return the initial weights, the same for each task, named blocks.0.weight and so on.

    They are detached if gradients are off; call it outside `descending`.
    """
    outside = torch.is_inference_mode_enabled() or not torch.is_grad_enabled()
    with torch.inference_mode(False):
        named = ((name, weight.detach() if outside else weight) for name, weight in module.named_parameters())
        return {f"{prefix}{name}": weight.expand(episodes, *weight.shape) for name, weight in named}


def descend(loss: Callable[[Weights], Tensor], weights: Weights, rate: float, first_order: bool) -> Weights:
    """Return the weights after one step of gradient descent on each task's loss, (E,).

    first_order: do not differentiate through the gradient.
    """
    trained = any(weight.requires_grad for weight in weights.values())
    here = {name: weight if weight.requires_grad else weight.detach().requires_grad_() for name, weight in weights.items()}
    gradients = torch.autograd.grad(loss(here).sum(), list(here.values()), create_graph=trained and not first_order)
    return {name: weights[name] - rate * gradient for name, gradient in zip(here, gradients, strict=True)}


def convolve(maps: Tensor, weight: Tensor, bias: Tensor, layer: nn.Conv2d) -> Tensor:
    """Run a convolution with weights (E, O, C, k, k), one set per task: maps (B, E·C, H, W) → (B, E·O, h, w)."""
    if maps.is_cuda and len(weight) <= DENSE:
        return F.conv2d(maps, dense(weight), bias.flatten(), layer.stride, layer.padding)
    return F.conv2d(maps, weight.flatten(0, 1), bias.flatten(), layer.stride, layer.padding, groups=len(weight))


def dense(weight: Tensor) -> Tensor:
    """Merge the weights (E, O, C, k, k) of E convolutions into one, (E·O, E·C, k, k), with zeros between tasks."""
    episodes = len(weight)
    diagonal = torch.eye(episodes, dtype=weight.dtype, device=weight.device).view(episodes, 1, episodes, 1, 1, 1)
    return (weight.unsqueeze(2) * diagonal).flatten(2, 3).flatten(0, 1)


def run_with(
    weights: Weights, prefix: str, layers: nn.Sequential, maps: Tensor, moments: Moments | None = None
) -> tuple[Tensor, Moments]:
    """Run convolution blocks with the given weights, (B, E·C, H, W) → (B, E·K, h, w); also return batch norm's moments.

    Batch norm uses the given moments, or those of the batch; running statistics do not change.
    """
    used: Moments = []
    for name, layer in layers.named_children():
        if isinstance(layer, nn.Conv2d):
            maps = convolve(maps, weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"], layer)
        elif isinstance(layer, nn.BatchNorm2d):
            dtype, maps = maps.dtype, full(maps)
            if moments is None:
                variance, mean = torch.var_mean(maps, (0, 2, 3), correction=0)
            else:
                mean, variance = moments[len(used)]
            used.append((mean, variance))
            scale = weights[f"{prefix}{name}.weight"].flatten() * (variance + layer.eps).rsqrt()
            offset = weights[f"{prefix}{name}.bias"].flatten() - mean * scale
            maps = (maps * scale.view(-1, 1, 1) + offset.view(-1, 1, 1)).to(dtype)
        else:
            maps = cast(Tensor, layer(maps))
    return maps, used


def vectors(maps: Tensor, episodes: int) -> Tensor:
    """Flatten maps (B, E·K, h, w) to a vector for each image of each task, (E, B, K·h·w)."""
    flat: Tensor = maps.unflatten(1, (episodes, -1)).transpose(0, 1).flatten(2)
    return flat


def classify_with(weights: Weights, blocks: nn.Sequential, maps: Tensor, moments: Moments | None = None) -> Tensor:
    """Logits (E, B, L) of maps (B, E·C, H, W), with weights for the blocks and a linear head; moments as in run_with."""
    head, bias = weights["head.weight"], weights["head.bias"]  # (E, L, D), (E, L)
    maps, _ = run_with(weights, "blocks.", blocks, maps, moments)
    return full(torch.baddbmm(bias.unsqueeze(1), vectors(maps, len(head)), head.transpose(1, 2)))


def answer_with(weights: Weights, blocks: nn.Sequential, support: Tensor, query: Tensor, separately: bool) -> Tensor:
    """Logits (E, Q, L) of queries. Batch norm uses the moments of the support images, or with separately of the queries."""
    moments = None if separately else run_with(weights, "blocks.", blocks, support)[1]
    return classify_with(weights, blocks, query, moments)


def running_moments(layers: nn.Sequential, episodes: int) -> Moments | None:
    """Running statistics of each batch norm, repeated for each task; None in training mode, where the batch is used."""
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    if any(norm.training for norm in norms):
        return None
    return [
        (norm.running_mean.repeat(episodes), norm.running_var.repeat(episodes))
        for norm in norms
        if norm.running_mean is not None and norm.running_var is not None
    ]


def support_classes(episode: Episode, device: torch.device) -> Tensor:
    """Class of each support image of a task, (L·Z,), the same for all tasks."""
    return torch.arange(episode.way, device=device).repeat_interleave(episode.shot)


def task_losses(logits: Tensor, truth: Tensor) -> Tensor:
    """Cross-entropy of each task, (E,), from logits (E, B, L) and classes (B,) that all tasks share."""
    losses = F.cross_entropy(logits.flatten(0, 1), truth.repeat(len(logits)), reduction="none")
    means: Tensor = losses.unflatten(0, (len(logits), -1)).mean(1)
    return means
