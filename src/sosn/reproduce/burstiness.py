"""Burstiness: how much repeated textures in a query change its descriptor and scores."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.errors import UsageError
from sosn.evaluation.protocol import draw_indices, mean_ci95
from sosn.method import Method
from sosn.second_order import autocorrelation, trace_normalise
from sosn.util.seeding import generator

PATCH = 4  # patches along the side of an image
AT_ONCE = 10  # episodes
Change = Callable[[Tensor, torch.Generator], Tensor]


def repeat_patch(images: Tensor, times: int, generator: torch.Generator) -> Tensor:
    """Repeat a random patch, a quarter of the side, times × times in a random square of images (B, C, S, S)."""
    return _pasted(images, times, generator, repeat=True)


def replace_square(images: Tensor, times: int, generator: torch.Generator) -> Tensor:
    """Replace the same squares with those of another image: a control without repetition."""
    return _pasted(images, times, generator, repeat=False)


def _pasted(images: Tensor, times: int, generator: torch.Generator, repeat: bool) -> Tensor:
    count, _, size, _ = images.shape
    patch = size // PATCH

    def corner(side: int) -> Tensor:
        return torch.randint(size - side + 1, (count, 2, 1), generator=generator)

    source, target = corner(patch), corner(times * patch)
    inside = torch.arange(size) - target  # (B, 2, S): rows and columns, counted from the square's corner
    within = (inside >= 0) & (inside < times * patch)
    rows, columns = torch.where(within, source + inside % patch, torch.arange(size)).unbind(1)  # source of each pixel
    hit = (within[:, 0, :, None] & within[:, 1, None, :]).unsqueeze(1).to(images.device)
    if not repeat:
        return torch.where(hit, images.roll(count // 2, 0), images)  # shifted by half of the images: rarely the same class
    flat = (rows.unsqueeze(2) * size + columns.unsqueeze(1)).flatten(1).unsqueeze(1).to(images.device)
    moved = images.flatten(2).gather(2, flat.expand(-1, images.shape[1], -1)).view(images.shape)
    return torch.where(hit, moved, images)


def tile(images: Tensor, times: int) -> Tensor:
    """Shrink images (B, C, S, S) and repeat them times × times. Returns floats in 0…1."""
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    size = images.shape[-1]
    small = F.interpolate(images, (-(-size // times),) * 2, mode="bilinear", antialias=True, align_corners=False)
    return small.repeat(1, 1, times, times)[..., :size, :size]


def repeat_vector(maps: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Add copies of one random vector to feature maps (B, K, N), until they are this share of all vectors."""
    count, _, vectors = maps.shape
    copies = round(vectors * share / (1 - share))
    chosen = torch.randint(vectors, (count,), generator=generator).to(maps.device)
    vector = maps[torch.arange(count, device=maps.device), :, chosen]
    return torch.cat((maps, vector.unsqueeze(-1).expand(-1, -1, copies)), -1)


IMAGE_CHANGES: dict[str, Change] = {
    "patch 2×2": lambda images, random: repeat_patch(images, 2, random),
    "replaced 2×2": lambda images, random: replace_square(images, 2, random),
    "patch 3×3": lambda images, random: repeat_patch(images, 3, random),
    "replaced 3×3": lambda images, random: replace_square(images, 3, random),
    "tiled 2×2": lambda images, _: tile(images, 2),
}
MAP_CHANGES: dict[str, Change] = {
    "one feature vector, 25% of all": lambda maps, random: repeat_vector(maps, 0.25, random),
    "one feature vector, 50% of all": lambda maps, random: repeat_vector(maps, 0.5, random),
}


@torch.inference_mode()
def burstiness(method: Method, bank: Bank, way: int, shot: int, query: int, episodes: int, seed: int) -> list[dict[str, Any]]:
    """Measure, for each change of the queries, the change of descriptors, scores and answers, and the loss of accuracy.

    descriptor: ‖ψ′−ψ‖/‖ψ‖ of the query's matrix after power normalisation. descriptor_share: ‖ψ′−ψ‖ divided by the distance to
    the descriptor of another query. unnormalised: both for the matrix divided by its trace, without power normalisation.
    score: mean |change| divided by the standard deviation of all scores before. Intervals are over episodes. Refuses a method
    without second-order matrices.
    """
    relation = method.second_order
    if relation is None:
        raise UsageError(f"burstiness needs a method with second-order matrices, such as SoSN, not {method.name!r}")
    method.eval()
    sampler = EpisodeSampler(bank, way, shot, query)
    rows = draw_indices(sampler, episodes, seed)
    figures: dict[str, list[dict[str, Tensor]]] = {}
    spread: list[Tensor] = []
    for first in range(0, episodes, AT_ONCE):
        episode = sampler.episode(*(part[first : first + AT_ONCE] for part in rows)).to(method.device)
        support = method.encode(episode.support.flatten(0, 2)).unflatten(0, episode.support.shape[:3])
        images, labels = episode.query.flatten(0, 1), sampler.labels.to(method.device)
        maps = method.encode(images)
        before = _scores(method, support, maps)
        spread.append(before.flatten())
        changed = {name: method.encode(change(images, _random(name, seed, first))) for name, change in IMAGE_CHANGES.items()}
        changed |= {name: change(maps, _random(name, seed, first)) for name, change in MAP_CHANGES.items()}
        for name, other in changed.items():
            figures.setdefault(name, []).append(_figures(method, support, labels, maps, other, before))
    deviation = torch.cat(spread).std().item()
    results = []
    for name, parts in figures.items():
        row: dict[str, Any] = {"change": name}
        for key in parts[0]:
            values = torch.cat([part[key].double().cpu() for part in parts]) / (deviation if key == "score" else 1)
            row[key], row[f"{key}_ci95"] = mean_ci95(values)
        results.append(row)
    return results


def _figures(
    method: Method, support: Tensor, labels: Tensor, maps: Tensor, other: Tensor, before: Tensor
) -> dict[str, Tensor]:  # fmt: skip
    """Measure the changes, episode by episode, when other feature maps replace those of the queries."""
    relation = method.second_order
    assert relation is not None
    after = _scores(method, support, other)
    right, still = ((scores.argmax(-1) == labels).double().mean(1) for scores in (before, after))
    normed, share = moved(maps, other, relation.describe_query, len(before))
    plain, plain_share = moved(maps, other, lambda one: trace_normalise(autocorrelation(one, relation.shift)), len(before))
    return {
        "descriptor": normed,
        "descriptor_share": share,
        "unnormalised": plain,
        "unnormalised_share": plain_share,
        "score": (after - before).abs().mean((1, 2)),
        "answers": (after.argmax(-1) != before.argmax(-1)).double().mean(1),
        "accuracy": still,
        "lost": right - still,
    }


def _random(name: str, seed: int, first: int) -> torch.Generator:
    """Return a generator that gives the same places for a patch and its control."""
    return generator("burst", name.partition(" ")[2], seed, first)


def _scores(method: Method, support: Tensor, maps: Tensor) -> Tensor:
    return method.score(method.compare_features(support, maps.unflatten(0, (len(support), -1))).double())


def moved(maps: Tensor, other: Tensor, describe: Callable[[Tensor], Tensor], episodes: int) -> tuple[Tensor, Tensor]:
    """Return the change of descriptors divided by their norm, and by the distance to another query, averaged by episode."""
    before, after = (describe(one).double().flatten(1) for one in (maps, other))
    queries = len(before) // episodes
    change = (after - before).norm(dim=1)
    others = before.unflatten(0, (episodes, queries)).roll(queries // 2, 1).flatten(0, 1)
    sizes = (before.norm(dim=1), (others - before).norm(dim=1))
    relative, share = ((change / size.clamp_min(1e-12)).unflatten(0, (episodes, queries)).mean(1) for size in sizes)
    return relative, share
