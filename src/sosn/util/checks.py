"""Checks of arguments that many constructors share."""

from collections.abc import Collection

from sosn.errors import UsageError


def at_least(least: int, **options: int) -> None:
    """Raise UsageError for an option below the minimum."""
    for name, value in options.items():
        if value < least:
            raise UsageError(f"{name} is {value}; it must be {least} or more")


def above_zero(**options: float) -> None:
    """Raise UsageError for an option that is not above 0."""
    for name, value in options.items():
        if not value > 0:
            raise UsageError(f"{name} is {value}; it must be above 0")


def one_of(choices: Collection[str], **options: str) -> None:
    """Raise UsageError for an option that is not one of the choices."""
    for name, value in options.items():
        if value not in choices:
            *others, last = choices
            raise UsageError(f"{name} is {value!r}; choose {', '.join(others)}{' or ' if others else ''}{last}")
