"""Objects that remember how they were made, so that they can be saved and made again."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


class Recorded:
    """Keeps the arguments of its constructor, defaults included, as `arguments`. Subclasses need to do nothing for it."""

    arguments: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    gathering = [one.name for one in signature.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD]

    @wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        for name in gathering:
            given |= given.pop(name)
        known = self.__dict__.get("arguments", {})  # those of a subclass, whose constructor calls this one
        object.__setattr__(self, "arguments", given | known)
        init(self, *args, **kwargs)

    return wrapped
