"""Encoders turn images (B, C, H, W) into feature maps (B, K, h, w)."""

from sosn.encoder.conv4 import Conv4

__all__ = ["Conv4"]
