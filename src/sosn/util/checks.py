"""Refusals that many constructors share."""

from collections.abc import Collection

from sosn.errors import UsageError


def at_least(least: int, **options: int) -> None:
    """Refuse options below this, by name."""
    for name, value in options.items():
        if value < least:
            raise UsageError(f"{name} is {value}; it must be {least} or more")


def above_zero(**options: float) -> None:
    """Refuse options that are not above 0, by name."""
    for name, value in options.items():
        if not value > 0:
            raise UsageError(f"{name} is {value}; it must be above 0")


def one_of(choices: Collection[str], **options: str) -> None:
    """Refuse options that are none of these words, by name."""
    for name, value in options.items():
        if value not in choices:
            *others, last = choices
            raise UsageError(f"{name} is {value!r}; choose {', '.join(others)}{' or ' if others else ''}{last}")
