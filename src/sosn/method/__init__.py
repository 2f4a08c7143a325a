"""Few-shot methods by name. Each takes an Episode and returns scores E×Q×L."""

from typing import Any, TypeVar

from sosn.errors import UsageError
from sosn.method.base import SHARED, Method
from sosn.method.baseline import Baseline, BaselinePlusPlus
from sosn.method.covamnet import CovaMNet
from sosn.method.deep_bdc import DeepBDC
from sosn.method.maml import MAML
from sosn.method.matching import MatchingNet
from sosn.method.meta_lstm import MetaLSTM
from sosn.method.nearest_prototype import NearestPrototype
from sosn.method.pixels import NearestPixels
from sosn.method.prototypical import PrototypicalNet
from sosn.method.relation_net import RelationNet
from sosn.method.siamese import SiameseNet
from sosn.method.sosn import SoSN
from sosn.method.two_orders import TwoOrders
from sosn.util.spelling import nearest
from sosn.util.typed import annotations

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        SoSN, NearestPixels, RelationNet, PrototypicalNet, MatchingNet, SiameseNet, MAML, Baseline, BaselinePlusPlus,
        NearestPrototype, TwoOrders, DeepBDC, CovaMNet, MetaLSTM,
    )
}  # fmt: skip
BUILT_IN = frozenset(METHODS)
M = TypeVar("M", bound=type[Method])


def register_method(kind: M) -> M:
    """Class decorator: register a method by its name, for recipes and saved models."""
    if not getattr(kind, "name", ""):
        raise UsageError(f"{kind.__name__} has no name: give the class a name, as in name = 'my_method'")
    if kind.name in BUILT_IN:
        raise UsageError(f"method {kind.name!r} is one of sosn's own: choose another name")
    METHODS[kind.name] = kind
    return kind


def method_class(name: str) -> type[Method]:
    """Return the method class with this name. Refuses an unknown name."""
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}{nearest(name, METHODS)}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method and their types, without those that all methods share."""
    return annotations(method_class(name), without=SHARED)


__all__ = [
    "MAML",
    "METHODS",
    "Baseline",
    "BaselinePlusPlus",
    "CovaMNet",
    "DeepBDC",
    "MatchingNet",
    "MetaLSTM",
    "Method",
    "NearestPixels",
    "NearestPrototype",
    "PrototypicalNet",
    "RelationNet",
    "SiameseNet",
    "SoSN",
    "TwoOrders",
    "method_class",
    "method_options",
    "register_method",
]
