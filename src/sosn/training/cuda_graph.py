"""Replay a training step as one CUDA graph, instead of launching its kernels one by one."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sosn.episode import Episode

FREE_STEPS = 3  # not captured: they compile kernels, choose algorithms and create the optimiser's state


class CapturedStep:
    """Capture a function of an episode after a few calls and replay it from then on. Shapes must stay the same.

    Everything else that the function reads must keep its memory address: weights, the optimiser's state, and the learning
    rate, which must be a tensor.
    """

    def __init__(self, step: Callable[[Episode], Tensor]) -> None:
        self.step = step
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.episode: Episode | None = None
        self.loss: Tensor | None = None

    def __call__(self, episode: Episode) -> Tensor:
        self.calls += 1
        if self.calls <= FREE_STEPS:
            return self.step(episode)
        if self.graph is None:
            self._record(episode)
        assert self.graph is not None
        assert self.episode is not None
        assert self.loss is not None
        for ours, given in zip(self._tensors(self.episode), self._tensors(episode), strict=True):
            ours.copy_(given)
        self.graph.replay()
        return self.loss.clone()

    def _record(self, episode: Episode) -> None:
        self.episode = Episode(*(tensor.clone() for tensor in self._tensors(episode)))
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with _no_garbage_collection(), torch.cuda.graph(self.graph):
            self.loss = self.step(self.episode)

    @staticmethod
    def _tensors(episode: Episode) -> list[Tensor]:
        assert episode.labels is not None
        classes = [] if episode.classes is None else [episode.classes]
        return [episode.support, episode.query, episode.labels.contiguous(), *classes]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: freeing the graph of an earlier training during a capture would make the capture fail."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
