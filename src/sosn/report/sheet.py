"""Contact sheets: many small images in one."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler, leave_out_small
from sosn.util.seeding import generator


def contact_sheet(rows: Sequence[Tensor], gap: int = 2) -> Image.Image:
    """Arrange rows of uint8 images (n, C, H, W), all of one size, as one image on white."""
    channels, height, width = rows[0].shape[1:]
    columns = max(len(row) for row in rows)
    sheet = torch.full((channels, len(rows) * (height + gap) - gap, columns * (width + gap) - gap), 255, dtype=torch.uint8)
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            top, left = y * (height + gap), x * (width + gap)
            sheet[:, top : top + height, left : left + width] = image
    return Image.fromarray(sheet.squeeze(0).numpy() if channels == 1 else sheet.permute(1, 2, 0).numpy())


def class_rows(bank: Bank, classes: int, images: int) -> list[Tensor]:
    """Return the first images of classes that are spread evenly over a bank."""
    step = max(1, len(bank.names) // classes)
    return [bank.class_images(name)[:images].cpu() for name in bank.names[::step][:classes]]


def save_sheets(bank: Bank, out: Path, stem: str, way: int, shot: int) -> list[Path]:
    """Write a contact sheet of a bank and one episode of it (support left, queries right) as PNG, and return their paths."""
    bank = leave_out_small(bank, "its", shot, 1)
    query = 1 if bank.groups is not None else min(4, int(bank.counts.min()) - shot)
    sampler = EpisodeSampler(bank, way, shot, query)
    episode = sampler.draw(1, generator("show", 0, device=bank.device))
    blank = torch.full_like(episode.support[0, 0, :1], 255)
    queries = episode.query[0].unflatten(0, (way, -1))
    rows = [torch.cat((episode.support[0, label], blank, queries[label])).cpu() for label in range(way)]
    out.mkdir(parents=True, exist_ok=True)
    pictures = {"classes": contact_sheet(class_rows(bank, 20, 20)), "episode": contact_sheet(rows)}
    paths = [out / f"{stem}-{name}.png" for name in pictures]
    for path, picture in zip(paths, pictures.values(), strict=True):
        scale = max(1, round(1000 / picture.width))
        picture.resize((scale * picture.width, scale * picture.height), Image.Resampling.NEAREST).save(path)
    return paths
