"""A row of one of the paper's tables: its training and its evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.reproduce.paper import Published, published

HEADLINE_SEEDS = 3  # trainings of a headline figure
FIRST_STAGE = "first stage"  # group of the classifiers that other rows start from
LONG = "the paper's budget"  # group of the rows that are trained as long as the paper's
PLACE = ("device", "workers", "engine")  # keys that do not change what is computed


@dataclass(frozen=True)
class Measure:
    """Episodes of an evaluation, with running and batch statistics. The recipe sets their number."""

    split: str
    way: int
    shot: int
    query: int
    data: tuple[str, ...] = ()  # key=value words that change the recipe's data
    column: str = ""  # of the paper's table, if it has several for a way and shot

    @property
    def protocol(self) -> str:
        """The column, if there is one, and way and shot, such as 5w1s."""
        return f"{self.column} {self.way}w{self.shot}s".lstrip()

    @property
    def images(self) -> str:
        """The split, and the column if there is one."""
        return f"{self.split} {self.column}".rstrip()


@dataclass(frozen=True)
class Row:
    """One training and its evaluations. Rows of a group have the same number of training episodes for a protocol."""

    table: str
    group: str
    id: str
    label: str  # as in the paper, if it has such a row
    recipe: str  # name of a shipped recipe
    words: tuple[str, ...]  # key=value words that change the recipe
    measures: tuple[Measure, ...]
    beside: str = ""  # label of the paper's row to compare with, if it is not `label`
    against: tuple[str, ...] = ()  # ids of our rows to compare with
    start: str = ""  # id of the row whose run of the same seed gives the initial weights

    @property
    def headline(self) -> bool:
        """Whether it reproduces the paper's main model, so that several seeds are wanted. Long trainings do not count."""
        return (self.beside or self.label) == "SoSN(⊗)+SigmE" and self.group != LONG

    @property
    def name(self) -> str:
        return f"{self.table}/{self.id}"

    def resolve(self, seed: int, words: Sequence[str] = ()) -> Recipe:
        """Return the recipe for a seed, with further key=value words."""
        resolved = override(load_recipe(self.recipe), [*self.words, *words, f"seed={seed}"])
        return replace(resolved, title=f"{self.table} {self.id}: {self.label}")

    def paper(self, protocol: str) -> Published | None:
        return published(self.table, self.beside or self.label, protocol)


def words(text: str) -> tuple[str, ...]:
    """Split a text into key=value words."""
    return tuple(text.split())


def changes(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that change the result of a row."""
    return sorted(word for word in overrides if word.partition("=")[0].rpartition(".")[2] not in PLACE)
