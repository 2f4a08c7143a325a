"""Values from files and the command line, checked against type annotations."""

import inspect
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sosn.errors import UsageError
from sosn.util.spelling import nearest


def parse(text: str) -> Any:
    """Parse a word of the command line: as a TOML value if possible, else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def coerce(value: Any, annotation: Any, where: str) -> Any:
    """Return the value as the annotated type; "none" means None if the type allows it. Refuses other types, naming where."""
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
    """Parameters of a function or class and their types, in order."""
    return {name: hint for name, hint in _annotated(function) if name not in without}


@cache
def _annotated(function: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    """Cached, because recipes ask for the same functions hundreds of times."""
    found: dict[str, Any] = {}
    for target in _constructors(function):
        hints = get_type_hints(target)
        found = {name: hints[name] for name in _named(target) if name in hints} | found
    return tuple(found.items())


def _constructors(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function itself; or the constructor of a class and, if it takes **options, of its bases, bases first."""
    if not inspect.isclass(function):
        return [function]
    found: list[Callable[..., Any]] = []
    for base in function.__mro__:
        if "__init__" in base.__dict__:
            found.insert(0, base.__dict__["__init__"])
            kinds = [parameter.kind for parameter in inspect.signature(found[0]).parameters.values()]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                break
    return found


def _named(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters of a function, without *args and **kwargs."""
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind not in variadic]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Default values of the parameters of a function or class."""
    found: dict[str, Any] = {}
    for target in _constructors(function):
        parameters = inspect.signature(target).parameters.values()
        found |= {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return found


def check_options(given: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check a table of options against their types. Refuses unknown names and values of a wrong type."""
    for name in given:
        if name not in known:
            raise UsageError(f"{where} has no key {name!r}{nearest(name, known)}; it has {', '.join(known)}")
    return {name: coerce(value, known[name], f"{where}.{name}".lstrip(".")) for name, value in given.items()}
