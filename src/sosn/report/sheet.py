"""Contact sheets: many small images in one."""

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from sosn.data.bank import Bank


def contact_sheet(rows: Sequence[Tensor], gap: int = 2) -> Image.Image:
    """Rows of images (n, C, H, W) uint8, all of one size, as one picture on white."""
    channels, height, width = rows[0].shape[1:]
    columns = max(len(row) for row in rows)
    sheet = torch.full((channels, len(rows) * (height + gap) - gap, columns * (width + gap) - gap), 255, dtype=torch.uint8)
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            top, left = y * (height + gap), x * (width + gap)
            sheet[:, top : top + height, left : left + width] = image
    return Image.fromarray(sheet.squeeze(0).numpy() if channels == 1 else sheet.permute(1, 2, 0).numpy())


def class_rows(bank: Bank, classes: int, images: int) -> list[Tensor]:
    """The first images of classes spread evenly over a bank."""
    step = max(1, len(bank.names) // classes)
    return [bank.class_images(name)[:images].cpu() for name in bank.names[::step][:classes]]
