"""Few-shot methods by name. Each takes an Episode and gives scores E×Q×L."""

from sosn.errors import UsageError
from sosn.method.base import Method
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
from sosn.method.timm_prototype import TimmPrototype
from sosn.util.spelling import nearest

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        SoSN, NearestPixels, RelationNet, PrototypicalNet, MatchingNet, SiameseNet, MAML, Baseline, BaselinePlusPlus,
        NearestPrototype, DeepBDC, CovaMNet, MetaLSTM,
    )
}  # fmt: skip
FROZEN: dict[str, type[Method]] = {TimmPrototype.name: TimmPrototype}  # used as they come: no recipe trains them


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}{nearest(name, METHODS)}; there are {', '.join(METHODS)}")
    return METHODS[name]


__all__ = [
    "FROZEN",
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
    "TimmPrototype",
    "method_class",
]
