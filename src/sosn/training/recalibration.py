"""The weights that are validated: a moving average over steps, with recomputed statistics of batch norm."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sosn.encoder.drop_block import DropBlock
from sosn.episode import Episode
from sosn.method.base import Method, batch_norms


def update_average(average: dict[str, Tensor], module: nn.Module, decay: float, step: int) -> None:
    """Update a moving average of the parameters in place: a ← d·a + (1−d)·w, with a smaller d in the first steps."""
    warm = min(decay, (1 + step) / (10 + step))
    weights = dict(module.named_parameters())
    with torch.no_grad():
        torch._foreach_lerp_([average[name] for name in weights], list(weights.values()), 1 - warm)


@torch.no_grad()
def recalibrate(method: Method, episodes: Iterable[Episode]) -> None:
    """Set batch norm's running statistics to their average over these episodes, and leave the method in evaluation mode.

    During training, the moving statistics lag behind weights that change fast.
    """
    layers = batch_norms(method)
    momentum = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over all batches
    method.train()
    for module in method.modules():
        if isinstance(module, DropBlock):  # the statistics are for evaluation, which drops nothing
            module.eval()
    for episode in episodes:
        method.logits(episode)
    method.eval()
    for layer, before in zip(layers, momentum, strict=True):
        layer.momentum = before
