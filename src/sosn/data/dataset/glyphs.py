"""Glyphs: synthetic handwritten characters, the default dataset.

Every alphabet has a style. Every character is a small program of strokes. Every drawing runs that program with random
handwriting (slant, size, wobble, displaced strokes) and a random pen (width, ink). The same seed gives the same images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.errors import UsageError
from sosn.util.seeding import generator

STROKES, CONTROLS, POINTS = 5, 5, 72  # most strokes per character, control points and drawn points per stroke


def glyphs(
    split: str = "train",
    alphabets: int = 50,
    characters: int = 24,
    drawings: int = 20,
    size: int = 28,
    seed: int = 0,
) -> Bank:
    """Synthetic characters, grey, dark on white: 60% of the alphabets are train, 10% val, 30% test.

    Classes are named Alphabet/characterNN, and no alphabet is in two splits.
    """
    if alphabets < 10:
        raise UsageError(f"alphabets is {alphabets}; 10 or more are needed to fill train, val and test")
    for name, value, least in (("characters", characters, 1), ("drawings", drawings, 2), ("size", size, 12)):
        if value < least:
            raise UsageError(f"{name} is {value}; it must be {least} or more")
    bounds = {"train": (0, 0.6), "val": (0.6, 0.7), "test": (0.7, 1)}
    if split not in bounds:
        raise UsageError(f"split is {split!r}; glyphs have train, val and test")
    first, last = (round(alphabets * share) for share in bounds[split])
    names = alphabet_names(alphabets, seed)
    classes: dict[str, Tensor] = {}
    for index in range(first, last):
        strokes = draw_alphabet(characters, drawings, generator("glyphs", seed, index))
        images = strokes.render(size).unflatten(0, (characters, drawings))
        classes |= {f"{names[index]}/character{n + 1:02}": images[n] for n in range(characters)}
    return Bank.from_classes(classes)


@dataclass(frozen=True)
class Strokes:
    """Drawings. points: (B, S, T, 2) along strokes, in 0…1; drawn: (B, S) existing strokes; pen, ink: (B,) width, darkness."""

    points: Tensor
    drawn: Tensor
    pen: Tensor
    ink: Tensor

    def render(self, size: int) -> Tensor:
        """Render uint8 images (B, 1, size, size), with edges of the pen smoothed over one pixel."""
        axis = (torch.arange(size) + 0.5) / size
        nearest = torch.full((len(self.points), size, size), torch.inf)  # squared distance to the nearest point
        for stroke in range(self.points.shape[1]):
            for rows in self.drawn[:, stroke].nonzero().squeeze(1).split(32):  # fits in the cache
                x, y = (self.points[rows, stroke, :, None] - axis.view(-1, 1)).square().unbind(-1)  # (rows, T, size)
                distance = (x.unsqueeze(2) + y.unsqueeze(3)).amin(1)
                nearest[rows] = torch.minimum(nearest[rows], distance)
        cover = ((self.pen[:, None, None] - nearest.sqrt()) * size + 0.5).clamp(0, 1) * self.ink[:, None, None]
        return (255 * (1 - cover)).round().to(torch.uint8).unsqueeze(1)


def draw_alphabet(characters: int, drawings: int, draw: torch.Generator) -> Strokes:
    """Draw all drawings of all characters of one alphabet, character by character."""

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=draw)

    def normal(*shape: int, spread: float = 1.0) -> Tensor:
        return spread * torch.randn(shape, generator=draw)

    # The style: how many strokes, how curved, on which lattice, how upright.
    complexity = uniform(1, low=1.6, high=3.6)
    curl = uniform(1, low=0.0, high=0.9)
    lattice = int(torch.randint(3, 6, (1,), generator=draw))
    # The characters: strokes start on the lattice or on an earlier stroke and wander to other lattice points.
    count = (complexity + normal(characters, spread=0.8)).round().clamp(1, STROKES)
    drawn = torch.arange(STROKES) < count[:, None]  # (characters, S)
    corners = torch.randint(lattice, (characters, STROKES, 2, 2), generator=draw) / (lattice - 1)
    same = (corners[:, :, 0] - corners[:, :, 1]).abs().sum(-1, keepdim=True) < 0.4
    corners[:, :, 1] = torch.where(same, 1 - corners[:, :, 0] + normal(characters, STROKES, 2, spread=0.2), corners[:, :, 1])
    steps = torch.linspace(0, 1, CONTROLS).view(-1, 1)
    straight = corners[:, :, :1] + steps * (corners[:, :, 1:] - corners[:, :, :1])  # (characters, S, CONTROLS, 2)
    side = (corners[:, :, 1] - corners[:, :, 0]).flip(-1) * torch.tensor([-1.0, 1.0])
    bend = normal(characters, STROKES, spread=1.0) * curl
    wave = torch.where(uniform(characters, STROKES) < 0.3, 2.0, 1.0)
    arch = torch.sin(torch.pi * steps.view(1, 1, -1) * wave.unsqueeze(-1)) * bend.unsqueeze(-1)
    program = straight + arch.unsqueeze(-1) * side.unsqueeze(2)
    turn = 2 * torch.pi * (steps + uniform(characters, STROKES, 1, 1))  # (characters, S, CONTROLS, 1)
    radius = uniform(characters, STROKES, 1, 2, low=0.12, high=0.4)
    ring = corners.mean(2, keepdim=True) + radius * torch.cat((turn.cos(), turn.sin()), -1)
    program = torch.where(uniform(characters, STROKES, 1, 1) < 0.2 * curl, ring, program)
    joined = (uniform(characters, STROKES) < 0.55) & (torch.arange(STROKES) > 0)
    anchor_at = torch.randint(CONTROLS, (characters, STROKES), generator=draw)
    for stroke in range(1, STROKES):
        anchor = program[torch.arange(characters), stroke - 1, anchor_at[:, stroke]]
        move = torch.where(joined[:, stroke, None], anchor - program[:, stroke, 0], 0.0)
        program[:, stroke] += move.unsqueeze(1)
    program = _fit(program, drawn)
    # The handwriting and the pen of every drawing.
    total = characters * drawings
    program, drawn = program.repeat_interleave(drawings, 0), drawn.repeat_interleave(drawings, 0)
    reach = (program.amax(2, keepdim=True) - program.amin(2, keepdim=True)).norm(dim=-1, keepdim=True)
    controls = program + normal(total, STROKES, CONTROLS, 2, spread=0.045) * reach.clamp(0.15, 1)  # wobble
    controls = controls + normal(total, STROKES, 1, 2, spread=0.045)  # displaced strokes
    centre = controls.mean(2, keepdim=True)
    controls = centre + (controls - centre) * (1 + normal(total, STROKES, 1, 1, spread=0.12))
    angle = normal(total, 1, 1, spread=0.16)
    slant = normal(total, 1, 1, spread=0.18)
    stretch = 1 + normal(total, 1, 1, 2, spread=0.14)
    x, y = ((controls - 0.5) * stretch).unbind(-1)
    x = x + slant * y
    controls = torch.stack((x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()), -1)
    scale = uniform(total, 1, 1, 1, low=0.56, high=0.84)
    place = uniform(total, 1, 1, 2, low=-1, high=1) * (0.88 - scale) / 2
    points = _spline(controls * scale + 0.5 + place)
    pen = uniform(total, low=0.020, high=0.045)
    ink = uniform(total, low=0.75, high=1.0)
    return Strokes(points, drawn, pen, ink)


def _fit(program: Tensor, drawn: Tensor) -> Tensor:
    """Scale and move each character to fill the unit square, keeping its aspect ratio. The shape (B, S, C, 2) is kept."""
    mask = drawn[:, :, None, None]
    low = torch.where(mask, program, torch.inf).amin((1, 2), keepdim=True)
    high = torch.where(mask, program, -torch.inf).amax((1, 2), keepdim=True)
    extent = (high - low).amax(-1, keepdim=True).clamp_min(0.2)
    return (program - (low + high) / 2) / extent + 0.5


def _spline(controls: Tensor) -> Tensor:
    """Points of a Catmull–Rom spline through the control points: (B, S, C, 2) → (B, S, POINTS, 2)."""
    padded = torch.cat((2 * controls[:, :, :1] - controls[:, :, 1:2], controls,
                        2 * controls[:, :, -1:] - controls[:, :, -2:-1]), 2)  # fmt: skip
    position = torch.linspace(0, controls.shape[2] - 1 - 1e-4, POINTS)
    part = position.floor().long()
    t = (position - part).view(-1, 1)
    a, b, c, d = (padded[:, :, part + offset] for offset in range(4))
    return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)


def alphabet_names(count: int, seed: int) -> list[str]:
    """Return distinct pronounceable names."""
    draw = generator("glyph names", seed)
    starts, middles = (
        ["B", "D", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "T", "V", "Z", "Sh", "Th"],
        ["a", "e", "i", "o", "u", "ai", "ei"],
    )
    ends = ["n", "r", "l", "s", "k", "mi", "na", "ro", "ti", "vu"]
    names: list[str] = []
    while len(names) < count:
        pick = [int(torch.randint(len(part), (1,), generator=draw)) for part in (starts, middles, starts, middles, ends)]
        name = starts[pick[0]] + middles[pick[1]] + starts[pick[2]].lower() + middles[pick[3]] + ends[pick[4]]
        if name not in names:
            names.append(name)
    return names
