"""A training step as one CUDA graph: the GPU is handed the whole step at once, not kernel by kernel."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sosn.episode import Episode

FREE_STEPS = 3  # taken as they come, so that kernels are compiled, algorithms chosen and the optimiser's state is there


class CapturedStep:
    """A function of an episode, recorded after a few calls and played from then on, as long as the shapes stay the same.

    What it reads besides the episode must stay in place: weights, the optimiser's state, a learning rate in a tensor.
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
        with _nothing_cleared_away(), torch.cuda.graph(self.graph):
            self.loss = self.step(self.episode)

    @staticmethod
    def _tensors(episode: Episode) -> list[Tensor]:
        assert episode.labels is not None
        classes = [] if episode.classes is None else [episode.classes]
        return [episode.support, episode.query, episode.labels.contiguous(), *classes]


@contextmanager
def _nothing_cleared_away() -> Iterator[None]:
    """Python's garbage waits: a graph of an earlier training that is cleared away while another is recorded would spoil it."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
