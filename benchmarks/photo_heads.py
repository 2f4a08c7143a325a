"""Train heads for photos on episodes of some sets, and test them on another. Writes results/photo-heads.json.

    python benchmarks/photo_heads.py FOLDER [--also FOLDER] [--out results/photo-heads.json]

FOLDER as in benchmarks/photos.py. Each set is left out in turn: the heads are trained on all classes of the others, and of the
sets of --also, on frozen maps of EfficientNet-Lite0, and tested on its validation classes. "frozen" is the shipped model.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from photos import QUERY, WAY, Photos, accuracy, build, cosines, describe, draw, read
from torch import Tensor, nn

from sosn.method.sosn import SoSN
from sosn.method.two_orders import SCALE, TwoOrders
from sosn.second_order import upper_triangle
from sosn.util.device import machine, resolve_device
from sosn.util.files import write_atomically
from sosn.util.seeding import generator

WIDTH = 64  # channels of the reduced map
EPISODES, ASKED = 16, 6  # episodes of a step, queries of a class


class Head(nn.Module):
    """A learned reduction to 64 channels, SoSN's matrix, and its similarity net or a cosine; with the frozen model or not."""

    def __init__(self, net: bool, power_norm: str = "sigme", frozen: bool = False) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(320, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
        sosn = SoSN(power_norm=power_norm)
        self.relation, self.similarity, self.net, self.frozen = sosn.relation, sosn.similarity, net, frozen
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, maps: Tensor, vectors: Tensor, support: Tensor, queries: Tensor) -> Tensor:
        """Logits (E, Q, 5) of episodes, given by rows: support (E, 5, Z) and queries (E, Q)."""
        rows = torch.cat((support.flatten(), queries.flatten()))
        reduced = self.reduce(maps[rows].float()).flatten(2)
        shots, asked = reduced.split((support.numel(), queries.numel()))
        classes = self.relation.describe_support(shots.unflatten(0, support.shape)).unsqueeze(2)
        described = self.relation.describe_query(asked.unflatten(0, queries.shape)).unsqueeze(2)
        if self.net:
            logits: Tensor = self.similarity.pairs(classes, described)
        else:
            left, right = (F.normalize(upper_triangle(one[:, :, 0, 0], True), dim=-1) for one in (classes, described))
            logits = self.scale * right @ left.mT
        return logits + cosines(vectors, support, queries) if self.frozen else logits


HEADS: dict[str, dict[str, Any]] = {
    "SoSN's similarity net, SigmE": {"net": True},
    "SoSN's similarity net, none": {"net": True, "power_norm": "none"},
    "second-order cosine": {"net": False},
    "SoSN's similarity net + frozen": {"net": True, "frozen": True},
    "second-order cosine + frozen": {"net": False, "frozen": True},
}


def train(head: Head, sets: list[tuple[Photos, Tensor]], steps: int) -> Head:
    """Train a head on episodes of all classes of some sets."""
    optimiser = torch.optim.AdamW(head.parameters(), 1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps)
    labels = torch.arange(WAY, device=head.scale.device).repeat_interleave(ASKED).repeat(EPISODES)
    for step in range(steps):
        source = generator("heads", step)
        photos, vectors = sets[int(torch.randint(len(sets), (), generator=source))]
        shot = 1 if step % 2 else 5
        rows = torch.stack([_episode(photos, shot + ASKED, source) for _ in range(EPISODES)])
        logits = head.train()(photos.maps, vectors, rows[..., :shot], rows[..., shot:].flatten(1))
        loss = F.cross_entropy(logits.flatten(0, 1), labels)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return head.eval()


def _episode(photos: Photos, images: int, source: torch.Generator) -> Tensor:
    """Rows (5, images) of five classes."""
    counts = photos.labels.bincount()
    starts = counts.cumsum(0) - counts
    enough = (counts >= images).nonzero().flatten()
    chosen = enough[torch.randperm(len(enough), generator=source)[:WAY]]
    picked = [starts[one] + torch.randperm(int(counts[one]), generator=source)[:images] for one in chosen]
    return torch.stack(picked)


@torch.inference_mode()
def test(head: Head | None, photos: Photos, vectors: Tensor, episodes: int) -> dict[int, tuple[float, float]]:
    found = {}
    for shot in (1, 5):
        drawn = draw(photos, 0, shot, episodes)
        assert drawn is not None
        support, queries = drawn[0], drawn[1][:, :WAY].flatten(1)
        if head is None:
            logits = cosines(vectors, support, queries)
        else:
            parts = zip(support.split(20), queries.split(20), strict=True)
            logits = torch.cat([head(photos.maps, vectors, *part) for part in parts])
        found[shot] = accuracy(logits)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--also", type=Path, help="folder of more sets to train on")
    parser.add_argument("--out", type=Path, default=Path("results/photo-heads.json"))
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--episodes", type=int, default=500)
    wanted = parser.parse_args()
    device = resolve_device("auto")
    model: TwoOrders = build("lite0").to(device)
    folders = [folder for folder in (wanted.folder, wanted.also) if folder]
    places = [(entry, folder == wanted.folder) for folder in folders for entry in sorted(folder.iterdir())]
    sets = [(read(entry, model), mine) for entry, mine in places]
    known = [(photos, describe(model, photos), mine) for photos, mine in sets]
    document: dict[str, Any] = {"machine": machine(), "steps": wanted.steps, "episodes": wanted.episodes, "query": QUERY}
    found: dict[str, Any] = {"frozen": {}} | {name: {} for name in HEADS}
    for left, vectors, mine in known:
        if not mine:
            continue
        found["frozen"][left.name] = test(None, left, vectors, wanted.episodes)
        for name, options in HEADS.items():
            torch.manual_seed(0)
            others = [(photos, one) for photos, one, _ in known if photos is not left]
            head = train(Head(**options).to(device), others, wanted.steps)
            found[name][left.name] = test(head, left, vectors, wanted.episodes)
            print(left.name, name, found[name][left.name], "frozen", found["frozen"][left.name], flush=True)
    document |= {"accuracy": found, "trained_with": [photos.name for photos, _, mine in known if not mine], "scale": SCALE}
    document["parameters"] = {name: sum(one.numel() for one in Head(**options).parameters()) for name, options in HEADS.items()}
    write_atomically(wanted.out, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
