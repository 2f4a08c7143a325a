"""Episodes drawn from a bank, a whole batch in one go, on the bank's own device."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.drawers import DrawerTasks
from sosn.episode import Episode
from sosn.errors import DataError, TooFewError, UsageError
from sosn.util.seeding import check_generator

Within = Literal["alphabet", "drawers"] | None
EPISODES = 600  # of an evaluation, unless it is told or the episodes have a number of their own
TRIES = 8  # draws a grouped class gets before its surest choice of support is taken


class EpisodeSampler:
    """Draws L-way Z-shot episodes with a number of queries a class; no image is ever on both sides of one episode.

    Refuses a bank with too few classes, or with a class that has too few images. In a bank with groups, images of one
    group are never split between support and query. within="alphabet" takes all classes of an episode from one alphabet, that
    is, with the same name up to the last slash (for Open MIC, one exhibition); alphabets with fewer than `way` are left out.
    within="drawers" takes, besides, all support images from one drawer and all queries from another, as DrawerTasks says.
    called: what way, shot and query are called where they come from, for messages.
    """

    def __init__(
        self,
        bank: Bank,
        way: int,
        shot: int,
        query: int,
        within: Within = None,
        called: tuple[str, str, str] = ("way", "shot", "query"),
    ) -> None:
        if not isinstance(bank, Bank):
            raise UsageError(f"EpisodeSampler takes a bank, not {type(bank).__name__}: sosn.open_bank opens one")
        for name, value, least in zip(called, (way, shot, query), (2, 1, 1), strict=True):
            if value < least:
                raise UsageError(f"{name} is {value}; it must be {least} or more")
        if way > len(bank.names):
            raise TooFewError(f"{way}-way episodes need {way} classes and there are {len(bank.names)}: lower {called[0]}")
        self.bank, self.way, self.shot, self.query = bank, way, shot, query
        if within not in (None, "alphabet", "drawers"):
            raise UsageError(f"within is {within!r}; choose alphabet or drawers, or leave it out")
        self._families = None if within is None else _families(bank.names, way, within, called[0])
        self._tasks: DrawerTasks | None = None
        if within == "drawers" and self._families is not None:
            self._tasks = DrawerTasks(bank, self._families, way, shot, query)
        self._columns = torch.arange(int(bank.counts.max()), device=bank.device)
        self.labels = torch.arange(way, device=bank.device).repeat_interleave(query)  # of the queries of every episode
        smallest = int(bank.counts.argmin())
        if int(bank.counts[smallest]) < shot + query:
            need = shot + query
            raise TooFewError(
                f"class {bank.names[smallest]!r} has {int(bank.counts[smallest])} images; {shot}-shot with {query} queries "
                f"needs {need}: lower {called[1]} or {called[2]}, or drop such classes with min_images={need}"
            )
        if bank.groups is not None:
            self._prepare_groups(bank.groups, f"lower {called[1]} or {called[2]}")

    @property
    def usual_count(self) -> int:
        """How many episodes an evaluation has if it is not told."""
        return self._tasks.count if self._tasks else EPISODES

    def draw(self, count: int, generator: torch.Generator) -> Episode:
        """A batch of episodes."""
        support, query = self.indices(count, generator)
        return self.episode(support, query)

    def episode(self, support: Tensor, query: Tensor) -> Episode:
        """The episode of these rows of the bank: support (E, L, Z), query (E, Q)."""
        images = self.bank.images
        labels = self.labels.expand(len(support), -1)
        support = support.to(images.device)
        return Episode(images[support], images[query.to(images.device)], labels, self.bank.labels[support[..., 0]])

    def indices(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows of the bank: support (E, L, Z), query (E, L·query) in the order of the classes.

        They come from the generator's device; a CPU generator gives the same rows wherever the bank is.
        """
        check_generator(generator)
        if self._tasks:
            return self._tasks.indices(count, generator)
        device = generator.device
        counts, starts = self.bank.counts.to(device), self.bank.starts.to(device)
        keys = torch.rand(count, len(counts), generator=generator, device=device)
        if self._families is not None:
            families = self._families.to(device)  # (families, classes)
            chosen = torch.randint(len(families), (count,), generator=generator, device=device)
            keys = keys.masked_fill(~families[chosen], -1.0)
        classes = keys.topk(self.way, dim=1).indices  # (E, L) distinct
        present = self._columns.to(device) < counts[classes].unsqueeze(-1)  # (E, L, M)
        if self.bank.groups is None:
            keys = torch.rand(present.shape, generator=generator, device=device)
            chosen = _smallest(keys, present, self.shot + self.query)
            support, query = chosen.split((self.shot, self.query), dim=-1)
        else:
            support, query = self._draw_grouped(classes, present, generator)
        first = starts[classes].unsqueeze(-1)
        return first + support, (first + query).flatten(1)

    def _draw_grouped(self, classes: Tensor, present: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Support at random, queries at random from the groups it left untouched: the first of a few tries that works."""
        device = generator.device
        groups = self._groups.to(device)[classes]  # (E, L, M)
        shape = (*present.shape[:2], TRIES, present.shape[2])
        keys = torch.rand(shape, generator=generator, device=device)
        support = _smallest(keys, present.unsqueeze(2).expand(shape), self.shot)  # (E, L, tries, Z)
        sure = self._sure.to(device)[classes].unsqueeze(2)  # (E, L, 1, Z): works for certain, so it is tried last
        support = torch.cat((support, sure), 2)
        taken = groups.unsqueeze(2).expand(-1, -1, TRIES + 1, -1).gather(-1, support)
        free = present.unsqueeze(2) & ~(groups[:, :, None, :, None] == taken.unsqueeze(-2)).any(-1)
        works = free.sum(-1) >= self.query  # (E, L, tries + 1)
        first = works.int().argmax(-1)[..., None, None]  # the first that works
        support = support.gather(2, first.expand(-1, -1, 1, self.shot)).squeeze(2)
        free = free.gather(2, first.expand(-1, -1, 1, free.shape[-1])).squeeze(2)
        keys = torch.rand(free.shape, generator=generator, device=device)
        return support, _smallest(keys, free, self.query)

    def _prepare_groups(self, groups: Tensor, way_out: str) -> None:
        """Group numbers by class and column (−1 where there is no image), and for each class a support that works."""
        bank = self.bank
        table = torch.full((len(bank.names), len(self._columns)), -1)
        sure = torch.zeros(len(bank.names), self.shot, dtype=torch.int64)
        rows = groups.cpu().split(bank.counts.tolist())
        if sum(len(own.unique()) for own in rows) > len(groups.unique()):
            raise DataError("a group of images has several classes: number groups so that each belongs to one class")
        for number, own in enumerate(rows):
            table[number, : len(own)] = own
            members = _fewest_images(own.tolist(), self.shot)
            if len(own) - len(members) < self.query:
                raise TooFewError(
                    f"class {bank.names[number]!r} has {len(own)} images in {len(own.unique())} groups that stay together, "
                    f"too few for {self.shot}-shot with {self.query} queries: {way_out}, or drop the class"
                )
            sure[number] = torch.tensor(members[: self.shot])
        self._groups, self._sure = table.to(bank.device), sure.to(bank.device)  # drawing waits for no copy


def alphabet_of(name: str) -> str:
    """The alphabet of a class: its name up to the last slash. That of rotated characters is one of its own."""
    parent, _, own = name.rpartition("/")
    changed = re.search(r"(@(90|180|270))*$", own)
    return parent + changed[0] if parent and changed else parent


def alphabets(names: Sequence[str]) -> dict[str, int]:
    """How many classes each alphabet has."""
    return dict(Counter(alphabet for name in names if (alphabet := alphabet_of(name))))


def _families(names: Sequence[str], way: int, within: str, called: str) -> Tensor:
    """Which classes belong to each alphabet that has enough of them: (alphabets, classes)."""
    sizes = alphabets(names)
    if not sizes:
        raise DataError(f'within="{within}" is for classes that belong to alphabets, and these do not: leave out within')
    if max(sizes.values()) < way:
        largest = f"the largest of {len(sizes)} alphabets has {max(sizes.values())} classes"
        raise DataError(
            f'within="{within}" needs an alphabet with {way} classes, and {largest}: lower {called}, or leave out within'
        )
    large = [parent for parent, size in sizes.items() if size >= way]
    return torch.tensor([[alphabet_of(name) == parent for name in names] for parent in large])


def leave_out_small(bank: Bank, what: str, shot: int, query: int, say: Callable[[str], None] | None = None) -> Bank:
    """The bank of the classes with enough images, and groups if any, to fill an episode. How many were left out is said.

    what: what the classes are, such as train. Refuses a bank of which none remains.
    """
    rows = list(range(len(bank))) if bank.groups is None else bank.groups.tolist()
    names = []
    for name, start, count in zip(bank.names, bank.starts.tolist(), bank.counts.tolist(), strict=True):
        if count >= shot + query and count - len(_fewest_images(rows[start : start + count], shot)) >= query:
            names.append(name)
    if not names:
        raise TooFewError(f"none of {len(bank.names)} {what} classes has enough images for {shot}-shot with {query} queries")
    if say and len(names) < len(bank.names):
        left_out = f"{len(bank.names) - len(names)} of {len(bank.names)} {what} classes"
        say(f"{left_out} have too few images for {shot}-shot with {query} queries and are skipped")
    return bank.subset(names)


def _smallest(keys: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Columns of the smallest keys among those allowed: `count` distinct ones at random, (…, M) → (…, count)."""
    return keys.masked_fill(~allowed, 2.0).topk(count, dim=-1, largest=False).indices


def _fewest_images(groups: list[int], least: int) -> list[int]:
    """Members of the whole groups that hold at least so many images, and as few as possible (subset sums by size)."""
    members: dict[int, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    best: dict[int, list[int]] = {0: []}  # total → positions
    for whole in members.values():
        for total, chosen in sorted(best.items(), reverse=True):
            if total < least:
                best.setdefault(total + len(whole), chosen + whole)
    return best[min(total for total in best if total >= least)]
