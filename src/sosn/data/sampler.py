"""Draw batches of episodes from a bank, on its device."""

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
EPISODES = 600  # default number of episodes of an evaluation
TRIES = 8  # random draws for a class with groups, before the safe choice of support


class EpisodeSampler:
    """Draw L-way Z-shot episodes with `query` queries per class. Support and query never share an image.

    In a bank with groups, images of one group are never split between support and query. within="alphabet" takes all classes
    of an episode from one alphabet: classes whose names agree up to the last slash (for Open MIC, one exhibition). Alphabets
    with fewer than `way` classes are skipped. within="drawers" also takes all support images from one drawer and all queries
    from another, see DrawerTasks. called: the names of way, shot and query in messages. Refuses a bank with too few classes,
    or with a class that has too few images.
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
            raise UsageError(f"EpisodeSampler takes a bank, not {type(bank).__name__}: open one with sosn.open_bank")
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
        self.labels = torch.arange(way, device=bank.device).repeat_interleave(query)  # the same for every episode
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
        """Default number of episodes of an evaluation."""
        return self._tasks.count if self._tasks else EPISODES

    def draw(self, count: int, generator: torch.Generator) -> Episode:
        """Draw a batch of episodes."""
        support, query = self.indices(count, generator)
        return self.episode(support, query)

    def episode(self, support: Tensor, query: Tensor) -> Episode:
        """Build episodes from rows of the bank: support (E, L, Z), query (E, Q)."""
        images = self.bank.images
        labels = self.labels.expand(len(support), -1)
        support = support.to(images.device)
        return Episode(images[support], images[query.to(images.device)], labels, self.bank.labels[support[..., 0]])

    def indices(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw rows of the bank: support (E, L, Z), query (E, L·query), ordered by class.

        They are on the device of the generator; a CPU generator draws the same rows for a bank on any device.
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
        """Draw support, then queries from the other groups; take the first of a few random supports that leaves enough."""
        device = generator.device
        groups = self._groups.to(device)[classes]  # (E, L, M)
        shape = (*present.shape[:2], TRIES, present.shape[2])
        keys = torch.rand(shape, generator=generator, device=device)
        support = _smallest(keys, present.unsqueeze(2).expand(shape), self.shot)  # (E, L, tries, Z)
        sure = self._sure.to(device)[classes].unsqueeze(2)  # (E, L, 1, Z): always works, so it comes last
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
        """Store group numbers by class and column (−1 for no image), and for each class a support that always works."""
        bank = self.bank
        table = torch.full((len(bank.names), len(self._columns)), -1)
        sure = torch.zeros(len(bank.names), self.shot, dtype=torch.int64)
        rows = groups.cpu().split(bank.counts.tolist())
        if sum(len(class_groups.unique()) for class_groups in rows) > len(groups.unique()):
            raise DataError("a group of images has several classes: give each group images of one class")
        for number, class_groups in enumerate(rows):
            count = len(class_groups)
            table[number, :count] = class_groups
            members = _fewest_images(class_groups.tolist(), self.shot)
            if count - len(members) < self.query:
                raise TooFewError(
                    f"class {bank.names[number]!r} has {count} images in {len(class_groups.unique())} groups, which are not "
                    f"split: too few for {self.shot}-shot with {self.query} queries: {way_out}, or drop the class"
                )
            sure[number] = torch.tensor(members[: self.shot])
        self._groups, self._sure = table.to(bank.device), sure.to(bank.device)  # so that drawing copies nothing


def alphabet_of(name: str) -> str:
    """Return the alphabet of a class: its name up to the last slash. Rotated characters have a separate alphabet."""
    parent, _, character = name.rpartition("/")
    rotation = re.search(r"(@(90|180|270))*$", character)
    return parent + rotation[0] if parent and rotation else parent


def alphabets(names: Sequence[str]) -> dict[str, int]:
    """Return the number of classes of each alphabet."""
    return dict(Counter(alphabet for name in names if (alphabet := alphabet_of(name))))


def _families(names: Sequence[str], way: int, within: str, called: str) -> Tensor:
    """Return which classes belong to each alphabet with at least `way` classes: (alphabets, classes)."""
    sizes = alphabets(names)
    if not sizes:
        raise DataError(f'within="{within}" needs classes that belong to alphabets, and these do not: leave out within')
    if max(sizes.values()) < way:
        largest = f"the largest of {len(sizes)} alphabets has {max(sizes.values())} classes"
        raise DataError(
            f'within="{within}" needs an alphabet with {way} classes, and {largest}: lower {called}, or leave out within'
        )
    large = [parent for parent, size in sizes.items() if size >= way]
    return torch.tensor([[alphabet_of(name) == parent for name in names] for parent in large])


def leave_out_small(bank: Bank, what: str, shot: int, query: int, say: Callable[[str], None] | None = None) -> Bank:
    """Return the bank without the classes that have too few images, or groups, for an episode; say how many were skipped.

    what: the split of the classes in messages, such as train. Refuses a bank in which no class is large enough.
    """
    rows = list(range(len(bank))) if bank.groups is None else bank.groups.tolist()
    names = []
    for name, start, count in zip(bank.names, bank.starts.tolist(), bank.counts.tolist(), strict=True):
        if count >= shot + query and count - len(_fewest_images(rows[start : start + count], shot)) >= query:
            names.append(name)
    if not names:
        raise TooFewError(f"none of {len(bank.names)} {what} classes has enough images for {shot}-shot with {query} queries")
    if say and len(names) < len(bank.names):
        small = f"{len(bank.names) - len(names)} of {len(bank.names)} {what} classes"
        say(f"skipped {small} with too few images for {shot}-shot with {query} queries")
    return bank.subset(names)


def _smallest(keys: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Return the columns of the `count` smallest allowed keys, a random draw: (…, M) → (…, count)."""
    return keys.masked_fill(~allowed, 2.0).topk(count, dim=-1, largest=False).indices


def _fewest_images(groups: list[int], least: int) -> list[int]:
    """Choose whole groups with at least `least` images in total, and as few as possible (subset sum); return the positions."""
    members: dict[int, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    best: dict[int, list[int]] = {0: []}  # total → positions
    for whole in members.values():
        for total, chosen in sorted(best.items(), reverse=True):
            if total < least:
                best.setdefault(total + len(whole), chosen + whole)
    return best[min(total for total in best if total >= least)]
