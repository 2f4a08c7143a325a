"""The source of training episodes: drawn when needed, or read ahead by worker processes."""

import multiprocessing
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sosn.data.sampler import EpisodeSampler
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.recipe.recipe import Recipe
from sosn.util.seeding import generator

AHEAD = 4  # steps that each worker reads ahead

Pixels = tuple[Tensor, ...]  # support, query, labels and classes of an episode
Rows = tuple[Tensor, Tensor]  # of the bank: support (E, L, Z), query (E, Q)


class EpisodeSource:
    """Draws episodes by purpose and number, on a device. They do not depend on the number of workers.

    The main process draws the rows of the bank, from the generator of the purpose and number. Workers read the pixels of the
    next steps, so that a memory-mapped bank larger than memory does not slow training down. In distributed training, every
    process draws all episodes of a step and takes its share.
    """

    def __init__(self, sampler: EpisodeSampler, recipe: Recipe, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.sampler, self.recipe, self.device, self.share = sampler, recipe, device, slice(rank, None, world)
        if recipe.episodes.episodes_per_step % world:
            raise UsageError(
                f"episodes_per_step is {recipe.episodes.episodes_per_step}; {world} processes share each step, so it must be "
                f"a multiple of {world}"
            )
        self._ahead: Iterator[Pixels] | None = None
        self._next = -1  # the step that comes next from _ahead
        if recipe.data.workers and "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError("workers need a system that can fork processes, such as Linux: set workers=0")

    def draw(self, purpose: str, number: int) -> Episode:
        """Return the episodes of one step."""
        if purpose != "train" or not self.recipe.data.workers:
            return self.sampler.episode(*self._rows(purpose, number)).to(self.device)
        if self._ahead is None or number != self._next:
            self._ahead = self._read_ahead(number)
        self._next = number + 1
        return Episode(*next(self._ahead)).to(self.device)

    def close(self) -> None:
        """Stop the workers."""
        self._ahead = None

    def _rows(self, purpose: str, number: int) -> Rows:
        draw = generator(purpose, self.recipe.seed, number, device=self.device)
        support, query = self.sampler.indices(self.recipe.episodes.episodes_per_step, draw)
        return (support[self.share], query[self.share]) if purpose == "train" else (support, query)

    def _read_ahead(self, first: int) -> Iterator[Pixels]:
        numbers = range(first, self.recipe.training.steps)
        loader = DataLoader(
            _Pixels(self.sampler),
            batch_size=None,
            sampler=_Map(self, numbers),
            num_workers=self.recipe.data.workers,
            prefetch_factor=AHEAD,
            multiprocessing_context="fork",  # the bank is shared, not copied
            generator=generator("workers", self.recipe.seed),  # does not touch PyTorch's global generator
        )
        return iter(loader)


class _Map:
    """The rows of each step, drawn in the main process as the workers ask for them."""

    def __init__(self, source: EpisodeSource, numbers: range) -> None:
        self.source, self.numbers = source, numbers

    def __iter__(self) -> Iterator[Rows]:
        for number in self.numbers:
            support, query = self.source._rows("train", number)
            yield support.cpu(), query.cpu()

    def __len__(self) -> int:
        return len(self.numbers)


class _Pixels(Dataset[Pixels]):
    """Pixels of episodes, by their rows in the bank."""

    def __init__(self, sampler: EpisodeSampler) -> None:
        self.sampler = sampler

    def __getitem__(self, rows: Rows) -> Pixels:
        episode = self.sampler.episode(*rows)
        assert episode.labels is not None
        assert episode.classes is not None
        return episode.support, episode.query, episode.labels.contiguous(), episode.classes
