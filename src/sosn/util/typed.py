"""Values from files and command lines, held against type annotations."""

import inspect
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sosn.errors import UsageError
from sosn.util.spelling import nearest


def parse(text: str) -> Any:
    """What a word of the command line means: a TOML value where it is one, else itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def coerce(value: Any, annotation: Any, where: str) -> Any:
    """Return the value as the annotated type, or refuse it, naming the place. "none" stands for None where allowed."""
    origin, choices = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        if value in choices:
            return value
        guess = nearest(str(value), map(str, choices))
        raise UsageError(f"{where} is {value!r}{guess}; choose one of {', '.join(map(repr, choices))}")
    if origin in (types.UnionType, Union):
        if value is None or value == "none":
            return None
        (inner,) = (choice for choice in choices if choice is not type(None))
        return coerce(value, inner, where)
    if origin is Sequence or origin in (list, tuple):
        if isinstance(value, list | tuple):
            return [coerce(item, choices[0], where) for item in value]
    elif annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is annotation:
        return value
    raise UsageError(f"{where} is {value!r}; it must be {_describe(annotation)}")


def _describe(annotation: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(annotation, "a list of numbers")


def annotations(function: Callable[..., Any], *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Annotated parameters of a function or class, in their order."""
    return {name: hint for name, hint in _annotated(function) if name not in without}


@cache
def _annotated(function: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    """Kept, since recipes ask for the same ones hundreds of times."""
    found: dict[str, Any] = {}
    for target in _constructors(function):
        hints = get_type_hints(target)
        found = {name: hints[name] for name in _named(target) if name in hints} | found
    return tuple(found.items())


def _constructors(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, or of a class its constructor and, where that passes **options on, those of its bases; bases first."""
    if not inspect.isclass(function):
        return [function]
    found: list[Callable[..., Any]] = []
    for kind in function.__mro__:
        if "__init__" in kind.__dict__:
            found.insert(0, kind.__dict__["__init__"])
            kinds = [one.kind for one in inspect.signature(found[0]).parameters.values()]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                break
    return found


def _named(function: Callable[..., Any]) -> list[str]:
    """Parameters of a function that have names of their own."""
    gathered = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind not in gathered]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Default values of a function's or class's parameters."""
    found: dict[str, Any] = {}
    for target in _constructors(function):
        parameters = inspect.signature(target).parameters.values()
        found |= {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    return found


def check_options(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Hold a table against annotations: unknown names and ill-typed values are refused."""
    for name in given:
        if name not in known:
            raise UsageError(f"{where} has no key {name!r}{nearest(name, known)}; it has {', '.join(known)}")
    return {name: coerce(value, known[name], f"{where}.{name}".lstrip(".")) for name, value in given.items()}
