"""The initialisation of the authors' script (the paper does not describe one)."""

import math

from torch import nn


def initialise(module: nn.Module) -> None:
    """Convolutions N(0, √(2/(k·k·C_out))), bias 0; linear layers N(0, 0.01), bias 1; batch norm scale 1, offset 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            area = math.prod(layer.kernel_size)
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / (area * layer.out_channels)))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01)
            nn.init.ones_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
