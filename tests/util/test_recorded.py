"""Objects remember the arguments that made them."""

import copy

import pytest

from sosn.util.recorded import Recorded


class Base(Recorded):
    def __init__(self, size: int = 3, colour: str = "grey") -> None:
        self.size, self.colour = size, colour


class Child(Base):
    def __init__(self, depth: int, *, drop: float = 0.5, **shared: object) -> None:
        super().__init__(**shared)  # type: ignore[arg-type]


class Fixed(Base):
    def __init__(self, colour: str = "red") -> None:
        super().__init__(7, colour)


class Silent(Child):
    """A class without a constructor."""


def test_positional_keyword_and_default_arguments_are_recorded() -> None:
    assert Base().arguments == {"size": 3, "colour": "grey"}
    assert Base(5).arguments == {"size": 5, "colour": "grey"}
    assert Base(colour="blue").arguments == {"size": 3, "colour": "blue"}


def test_arguments_of_the_base_class_are_recorded_with_defaults() -> None:
    assert Child(2, colour="blue").arguments == {"depth": 2, "drop": 0.5, "size": 3, "colour": "blue"}
    assert Silent(2, drop=0.1).arguments == {"depth": 2, "drop": 0.1, "size": 3, "colour": "grey"}


def test_arguments_that_only_the_base_class_has_are_recorded() -> None:
    assert Fixed().arguments == {"size": 7, "colour": "red"}


def test_arguments_make_the_same_object_again() -> None:
    for one in (Base(5), Child(2, size=4)):
        again = type(one)(**one.arguments)
        assert (again.size, again.colour, again.arguments) == (one.size, one.colour, one.arguments)


def test_arguments_stand_there_while_the_constructor_runs_and_in_a_copy() -> None:
    class Looking(Recorded):
        def __init__(self, size: int = 3) -> None:
            self.seen = dict(self.arguments)

    assert Looking(4).seen == {"size": 4}
    assert copy.deepcopy(Child(2)).arguments == Child(2).arguments


def test_wrong_arguments_are_refused_by_the_name_of_the_class() -> None:
    with pytest.raises(TypeError, match=r"Base.*unexpected keyword argument 'sise'"):
        Base(sise=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Child.*missing.*'depth'"):
        Child()  # type: ignore[call-arg]
