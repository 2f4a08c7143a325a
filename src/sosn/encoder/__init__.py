"""Encoders turn images (B, C, H, W) into feature maps (B, K, h, w)."""

from typing import Literal, get_args

from sosn.encoder.conv4 import Conv4
from sosn.encoder.conv4_pooled import Conv4Pooled
from sosn.errors import UsageError

EncoderName = Literal["conv4", "conv4_pooled"]


def build_encoder(name: EncoderName, channels: int, width: int, input_size: int) -> Conv4 | Conv4Pooled:
    """An encoder by name. Refuses images that are too small for it."""
    if name not in get_args(EncoderName):
        raise UsageError(f"encoder is {name!r}; choose {' or '.join(get_args(EncoderName))}")
    kind, least = (Conv4, 10) if name == "conv4" else (Conv4Pooled, 16)
    if kind.map_side(input_size) < 1:
        raise UsageError(f"input_size is {input_size}; {name} needs images of {least} pixels or more a side")
    return kind(channels, width)


__all__ = ["Conv4", "Conv4Pooled", "EncoderName", "build_encoder"]
