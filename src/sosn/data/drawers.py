"""Episodes of one alphabet in which one person drew the support and another the queries (Lake et al., 2015)."""

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.errors import DataError, UsageError

ALPHABETS = 10  # that a round of tasks takes, as the published tasks do
TASKS = 2  # of each of them


class DrawerTasks:
    """Tasks of characters of one alphabet, each shown by one drawer and asked for by another.

    They go round: a random ten of the alphabets, or all if there are fewer, one after the other. The next round takes the
    alphabets in the same order with two other drawers each, as long as there are some, and characters drawn anew.
    families: (alphabets, classes), which classes belong to each alphabet.
    """

    def __init__(self, bank: Bank, families: Tensor, way: int, shot: int, query: int) -> None:
        if (shot, query) != (1, 1):
            raise UsageError(
                f'shot is {shot} and query {query}; within="drawers" needs shot=1 and query=1, as a person drew each character '
                "once"
            )
        if bank.drawers is None:
            raise DataError(
                'within="drawers" needs images that say who drew them, as Omniglot\'s files do (0709_17.png): use '
                'within="alphabet" for others'
            )
        self.way, self.families = way, families
        people, numbers = bank.drawers.cpu().unique(return_inverse=True)
        self.rows = torch.full((len(bank.names), len(people)), -1)  # of the bank, by class and drawer
        self.rows[bank.labels.cpu(), numbers] = torch.arange(len(bank))
        lacking = families.to(torch.int64) @ (self.rows < 0).to(torch.int64)  # (alphabets, drawers) characters not drawn
        self.able = lacking == 0
        self.pairs = self.able.sum(1) // 2  # of drawers, in each alphabet
        if not self.pairs.all():
            name = bank.names[int(families[int(self.pairs.argmin())].int().argmax())]
            raise DataError(
                f"the alphabet of {name!r} has no two people who drew all its characters: add the drawings that are missing, "
                "or drop the classes that lack some"
            )

    @property
    def count(self) -> int:
        """How many tasks the protocol has: two of each of ten alphabets, or of as many as there are."""
        return TASKS * min(ALPHABETS, len(self.families))

    def indices(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows of the bank: support (E, L, 1), query (E, L)."""
        device = generator.device
        rows, families, able, pairs = (one.to(device) for one in (self.rows, self.families, self.able, self.pairs))
        taken = torch.randperm(len(families), generator=generator, device=device)[:ALPHABETS]
        number = torch.arange(count, device=device)
        alphabet, turn = taken[number % len(taken)], number // len(taken)
        keys = torch.rand(count, families.shape[1], generator=generator, device=device)
        classes = keys.masked_fill(~families[alphabet], -1.0).topk(self.way, dim=1).indices  # (E, L)
        keys = torch.rand(able.shape, generator=generator, device=device)
        people = keys.masked_fill(~able, -1.0).argsort(1, descending=True)[alphabet]  # (E, drawers) in random order
        first = 2 * (turn % pairs[alphabet]).unsqueeze(1)
        support, query = (rows[classes, people.gather(1, first + place)] for place in (0, 1))
        return support.unsqueeze(-1), query
