"""Encoders by name. Each maps images (B, C, H, W) to feature maps (B, K, h, w)."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from sosn.encoder.base import Encoder
from sosn.encoder.conv4 import Conv4
from sosn.encoder.conv4_pooled import Conv4Pooled
from sosn.encoder.efficientnet_lite import EfficientNetLite
from sosn.encoder.resnet12 import ResNet12
from sosn.encoder.timm import TimmEncoder
from sosn.encoder.wrapped import WrappedEncoder
from sosn.errors import UsageError
from sosn.util.spelling import nearest
from sosn.util.typed import annotations, check_options

EncoderSpec = str | Mapping[str, Any] | nn.Module  # a name, a table with a name and options, or a module
ENCODERS: dict[str, type[Encoder]] = {
    encoder.name: encoder for encoder in (Conv4, Conv4Pooled, ResNet12, EfficientNetLite, TimmEncoder)
}
BUILT_IN = frozenset(ENCODERS)
E = TypeVar("E", bound=type[Encoder])


def register_encoder(kind: E) -> E:
    """Class decorator: register an encoder by its name, for recipes, saved models and `encoder=`."""
    if not kind.name:
        raise UsageError(f"{kind.__name__} has no name: give the class a name, as in name = 'my_encoder'")
    if kind.name in BUILT_IN:
        raise UsageError(f"encoder {kind.name!r} is one of sosn's own: choose another name")
    ENCODERS[kind.name] = kind
    return kind


def encoder_class(name: str) -> type[Encoder]:
    """Return the encoder class with this name. Refuses an unknown name."""
    if name not in ENCODERS:
        raise UsageError(f"there is no encoder {name!r}{nearest(name, ENCODERS)}; choose one of {', '.join(ENCODERS)}")
    return ENCODERS[name]


def encoder_options(name: str) -> dict[str, Any]:
    """Return the options of an encoder and their types."""
    return annotations(encoder_class(name), without=("channels",))


def build_encoder(spec: EncoderSpec, channels: int, image_side: int) -> Encoder:
    """Build an encoder from a name, a table or a module. Refuses unknown options, and images that are too small."""
    if isinstance(spec, Encoder):
        return spec
    if isinstance(spec, nn.Module):
        return WrappedEncoder(spec, channels, image_side)
    table = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = table.pop("name", "conv4")
    encoder = encoder_class(name)(channels=channels, **check_options(table, encoder_options(name), f"encoder {name!r}"))
    if encoder.map_side(image_side) < 1:
        least = next(side for side in range(1, 33) if encoder.map_side(side) > 0)
        raise UsageError(f"input_size is {image_side}; {name} needs images of {least} pixels or more per side")
    return encoder


__all__ = [
    "ENCODERS",
    "Conv4",
    "Conv4Pooled",
    "EfficientNetLite",
    "Encoder",
    "EncoderSpec",
    "ResNet12",
    "TimmEncoder",
    "build_encoder",
    "encoder_class",
    "encoder_options",
    "register_encoder",
]
