"""Objects that record their constructor arguments, so that they can be saved and rebuilt."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


class Recorded:
    """Base class that stores the arguments of its constructor, including defaults, in `arguments`."""

    arguments: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    parameters = signature.parameters.values()
    variadic = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_KEYWORD]

    @wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        for name in variadic:
            given |= given.pop(name)
        known = self.__dict__.get("arguments", {})  # of a subclass whose constructor called this one
        object.__setattr__(self, "arguments", given | known)
        init(self, *args, **kwargs)

    return wrapped
