"""Few-shot methods by name. Each takes an Episode and gives scores E×Q×L."""

from sosn.errors import UsageError
from sosn.method.base import Method
from sosn.method.pixels import NearestPixels
from sosn.method.sosn import SoSN
from sosn.spelling import nearest

METHODS: dict[str, type[Method]] = {method.name: method for method in (SoSN, NearestPixels)}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}{nearest(name, METHODS)}; there are {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "Method", "NearestPixels", "SoSN", "method_class"]
