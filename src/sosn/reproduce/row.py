"""A row of one of the paper's tables: what is trained for it, and on what the model is then judged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sosn.recipe.recipe import Recipe, load_recipe, override
from sosn.reproduce.paper import Published, published

HEADLINE_SEEDS = 3  # trainings that a headline figure is the mean of
FIRST_STAGE = "first stage"  # the group of classifiers that others start from
LONG = "the paper's budget"  # the group of rows that are trained as long as the paper's
PLACE = ("device", "workers", "engine")  # keys that decide where and how a run is computed, not what


@dataclass(frozen=True)
class Measure:
    """Episodes on which a trained model is judged, with running and with batch statistics; their number is the recipe's."""

    split: str
    way: int
    shot: int
    query: int

    @property
    def protocol(self) -> str:
        return f"{self.way}w{self.shot}s"


@dataclass(frozen=True)
class Row:
    """One training and what is read from it. Rows of one group have one budget of training episodes a protocol."""

    table: str
    group: str
    id: str
    label: str  # as the paper prints it, where it has such a row
    recipe: str  # a shipped one
    words: tuple[str, ...]  # key=value, over the recipe
    measures: tuple[Measure, ...]
    beside: str = ""  # label of the paper's row that it stands beside, where that is not its own
    against: tuple[str, ...] = ()  # ids of rows of the table that it differs from as its label says
    start: str = ""  # id of the row of the table whose run of the same seed gives the first weights

    @property
    def headline(self) -> bool:
        """Whether it is the paper's own model or stands beside it, so that several seeds are wanted; not of long trainings."""
        return (self.beside or self.label) == "SoSN(⊗)+SigmE" and self.group != LONG

    @property
    def name(self) -> str:
        return f"{self.table}/{self.id}"

    def resolve(self, seed: int, words: Sequence[str] = ()) -> Recipe:
        """The recipe of one seed, with further key=value words."""
        resolved = override(load_recipe(self.recipe), [*self.words, *words, f"seed={seed}"])
        return replace(resolved, title=f"{self.table} {self.id}: {self.label}")

    def paper(self, protocol: str) -> Published | None:
        return published(self.table, self.beside or self.label, protocol)


def words(text: str) -> tuple[str, ...]:
    """key=value words of a text."""
    return tuple(text.split())


def changes(overrides: Sequence[str]) -> list[str]:
    """Words that make a run another one than its row says."""
    return sorted(word for word in overrides if word.partition("=")[0].rpartition(".")[2] not in PLACE)
