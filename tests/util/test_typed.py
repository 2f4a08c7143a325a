"""Words and TOML values become the types that code asks for, or are refused by name."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from sosn.errors import UsageError
from sosn.util.spelling import nearest
from sosn.util.typed import annotations, check_options, coerce, parse

Norm = Literal["gamma", "maxexp", "sigme"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1", -1),
        ("1_000", 1000),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("false", False),
        ("[0.5, 0.25]", [0.5, 0.25]),
        ('"quoted"', "quoted"),
        ("sigme", "sigme"),
        ("none", "none"),
        ("folder:/my photos/a#b", "folder:/my photos/a#b"),
        ("", ""),
        ("[1, 2", "[1, 2"),
    ],
)
def test_a_word_is_a_toml_value_where_it_is_one_and_else_itself(text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation", "result"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (0.5, float, 0.5),
        (True, bool, True),
        ("word", str, "word"),
        ("sigme", Norm, "sigme"),
        ([1, 0.5], Sequence[float], [1.0, 0.5]),
        ((1, 2), list[int], [1, 2]),
        ([], Sequence[float], []),
        (2, float | None, 2.0),
        ("sigme", Norm | None, "sigme"),
        ([1], Sequence[float] | None, [1.0]),
    ],
)
def test_a_value_of_the_right_type_is_kept_and_whole_numbers_serve_as_numbers(
    value: object, annotation: Any, result: object
) -> None:
    assert coerce(value, annotation, "key") == result
    assert type(coerce(value, annotation, "key")) is type(result)


@pytest.mark.parametrize("annotation", [int | None, float | None, str | None, Norm | None, Sequence[float] | None])
@pytest.mark.parametrize("value", ["none", None])
def test_none_in_words_or_in_fact_stands_for_nothing_where_that_is_allowed(value: str | None, annotation: Any) -> None:
    assert coerce(value, annotation, "key") is None


@pytest.mark.parametrize("annotation", [int, float, bool, Norm, Sequence[float]])
def test_none_is_refused_where_a_value_is_needed(annotation: Any) -> None:
    with pytest.raises(UsageError, match="key is 'none'"):
        coerce("none", annotation, "key")


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("3", int, "a whole number"),
        (3.0, int, "a whole number"),
        (True, int, "a whole number"),
        ("high", float, "a number"),
        (True, float, "a number"),
        (1, bool, "true or false"),
        ("yes", bool, "true or false"),
        (3, str, "text"),
        (0.5, Sequence[float], "a list of numbers"),
        ("ab", Sequence[float], "a list of numbers"),
        ([0.5, "x"], Sequence[float], "a number"),
        ("high", float | None, "a number"),
    ],
)
def test_a_value_of_another_type_is_refused_naming_the_key_and_the_type(value: object, annotation: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        coerce(value, annotation, "[training].key")
    assert str(refused.value).startswith("[training].key is ")
    assert str(refused.value).endswith(f"it must be {message}")


def test_a_choice_that_is_none_of_those_allowed_is_refused_with_the_nearest_and_all() -> None:
    with pytest.raises(UsageError) as refused:
        coerce("sigma", Norm, "power_norm")
    assert "power_norm is 'sigma' (did you mean 'sigme'?)" in str(refused.value)
    assert "choose one of 'gamma', 'maxexp', 'sigme'" in str(refused.value)


@pytest.mark.parametrize("value", [3, True, ["sigme"], {"a": 1}])
def test_a_choice_that_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="choose one of"):
        coerce(value, Norm, "power_norm")


def sample(path: str, size: int = 3, *, norm: Norm = "sigme", **rest: int) -> bool:
    return bool(path)


class Sample:
    def __init__(self, width: int, mean: Sequence[float] | None = None) -> None: ...


def test_annotations_are_the_parameters_of_a_function_in_their_order() -> None:
    assert list(annotations(sample, without=("path", "rest")).items()) == [("size", int), ("norm", Norm)]


def test_annotations_of_a_class_are_those_of_its_constructor() -> None:
    assert annotations(Sample) == {"width": int, "mean": Sequence[float] | None}


def test_options_are_held_against_annotations_one_by_one() -> None:
    known = annotations(Sample)
    assert check_options({"mean": [1], "width": 2}, known, "[model]") == {"mean": [1.0], "width": 2}
    assert check_options({"mean": "none"}, known, "[model]") == {"mean": None}
    assert check_options({}, known, "[model]") == {}


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as refused:
        check_options({"widht": 2}, annotations(Sample), "[model]")
    assert str(refused.value) == "[model] has no key 'widht' (did you mean 'width'?); it has width, mean"


def test_an_ill_typed_option_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"^\[model\]\.width is 'x'; it must be a whole number$"):
        check_options({"width": "x"}, annotations(Sample), "[model]")


def test_a_word_like_no_other_gets_no_suggestion() -> None:
    assert nearest("xyzzy", ["steps", "loss"]) == ""
    assert nearest("stps", ["steps", "loss"]) == " (did you mean 'steps'?)"
