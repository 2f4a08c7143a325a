"""Episodes of one alphabet, with support images by one drawer and queries by another (Lake et al., 2015)."""

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.errors import DataError, UsageError

ALPHABETS = 10  # per round of tasks, as in the published tasks
TASKS = 2  # per alphabet


class DrawerTasks:
    """Tasks of characters of one alphabet, with support images by one drawer and queries by another.

    Tasks come in rounds. A round takes ten random alphabets, or all if there are fewer, one after the other. The next round
    takes the same alphabets with two other drawers each, while there are any, and new random characters.
    families: (alphabets, classes), which classes belong to each alphabet. Refuses a bank without drawers, shot or query other
    than 1, and alphabets without two drawers of all characters.
    """

    def __init__(self, bank: Bank, families: Tensor, way: int, shot: int, query: int) -> None:
        if (shot, query) != (1, 1):
            raise UsageError(
                f'shot is {shot} and query {query}; within="drawers" needs shot=1 and query=1, because each person drew a '
                "character once"
            )
        if bank.drawers is None:
            raise DataError(
                'within="drawers" needs the drawer of each image, as in Omniglot\'s file names (0709_17.png): use '
                'within="alphabet"'
            )
        self.way, self.families = way, families
        people, numbers = bank.drawers.cpu().unique(return_inverse=True)
        self.rows = torch.full((len(bank.names), len(people)), -1)  # row of the bank, by class and drawer
        self.rows[bank.labels.cpu(), numbers] = torch.arange(len(bank))
        lacking = families.to(torch.int64) @ (self.rows < 0).to(
            torch.int64
        )  # (alphabets, drawers) number of missing characters
        self.able = lacking == 0
        self.pairs = self.able.sum(1) // 2  # pairs of drawers, per alphabet
        if not self.pairs.all():
            name = bank.names[int(families[int(self.pairs.argmin())].int().argmax())]
            raise DataError(
                f"the alphabet of {name!r} has no two people who drew all its characters: add the missing drawings, "
                "or drop the incomplete classes"
            )

    @property
    def count(self) -> int:
        """Number of tasks of the protocol: two for each of ten alphabets, or for all if there are fewer."""
        return TASKS * min(ALPHABETS, len(self.families))

    def indices(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw rows of the bank: support (E, L, 1), query (E, L)."""
        device = generator.device
        rows, families, able, pairs = (table.to(device) for table in (self.rows, self.families, self.able, self.pairs))
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
