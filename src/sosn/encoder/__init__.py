"""Encoders turn images (B, C, H, W) into feature maps (B, K, h, w)."""

from typing import Literal, get_args

from sosn.encoder.conv4 import Conv4
from sosn.encoder.conv4_pooled import Conv4Pooled
from sosn.encoder.drop_block import DropBlock
from sosn.encoder.resnet12 import ResNet12
from sosn.errors import UsageError

EncoderName = Literal["conv4", "conv4_pooled", "resnet12"]
Encoder = Conv4 | Conv4Pooled | ResNet12
ENCODER_EXTRAS = {  # with their defaults
    "conv4_pools": 2,
    "conv4_blocks": 4,
    "resnet12_width": 64,
    "resnet12_pools": 3,
    "resnet12_drop": 0.0,
}


def build_encoder(
    name: EncoderName,
    channels: int,
    width: int,
    input_size: int,
    features: Literal["relu", "linear"] = "relu",
    conv4_pools: int = 2,
    conv4_blocks: int = 4,
    resnet12_width: int = 64,
    resnet12_pools: int = 3,
    resnet12_drop: float = 0.0,
) -> Encoder:
    """An encoder by name, with `width` features a position (0 for as many as resnet12's stages have).

    Refuses options of another encoder, and images that are too small for it.
    """
    if name not in get_args(EncoderName):
        raise UsageError(f"encoder is {name!r}; choose {', '.join(get_args(EncoderName)[:-1])} or {get_args(EncoderName)[-1]}")
    least_width = 0 if name == "resnet12" else 1
    if width < least_width:
        raise UsageError(f"encoder_width is {width}; it must be {least_width} or more")
    given = dict(zip(ENCODER_EXTRAS, (conv4_pools, conv4_blocks, resnet12_width, resnet12_pools, resnet12_drop), strict=True))
    for option, value in given.items():
        if value != ENCODER_EXTRAS[option] and not option.startswith(f"{name}_"):
            raise UsageError(f"{option} is {value}, and the encoder is {name}: that option is of {option.split('_')[0]} alone")
    encoder: Encoder
    if name == "resnet12":
        encoder = ResNet12(channels, width, features, resnet12_width, resnet12_pools, resnet12_drop)
    elif name == "conv4_pooled":
        encoder = Conv4Pooled(channels, width)
    else:
        encoder = Conv4(channels, width, features, conv4_pools, conv4_blocks)
    if encoder.map_side(input_size) < 1:
        least = next(side for side in range(1, 33) if encoder.map_side(side) > 0)
        raise UsageError(f"input_size is {input_size}; {name} needs images of {least} pixels or more a side")
    return encoder


__all__ = ["ENCODER_EXTRAS", "Conv4", "Conv4Pooled", "DropBlock", "Encoder", "EncoderName", "ResNet12", "build_encoder"]
