"""The contenders of the benchmark: training steps and evaluations of the same images."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.data.bank import Bank
from sosn.encoder import Conv4
from sosn.episode import Episode
from sosn.errors import MissingSplitError, SosnWarning
from sosn.evaluation.protocol import Evaluation, evaluate
from sosn.kernel import Engine, engine
from sosn.method import SoSN
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.training.cuda_graph import CapturedStep
from sosn.training.progress import Silent
from sosn.training.run import Run
from sosn.training.trainer import Trainer


@dataclass(frozen=True)
class Shape:
    """The sizes of an episode."""

    way: int
    shot: int
    query: int  # per class
    size: int
    channels: int = 3
    permutations: int = 1

    def __str__(self) -> str:
        more = f" P={self.permutations}" if self.permutations > 1 else ""
        return f"{self.way}w{self.shot}s{self.query}q {self.size}²{more}"

    @property
    def pairs(self) -> int:
        return self.way * self.way * self.query

    def episode(self, episodes: int, device: torch.device) -> Episode:
        """Return episodes of random pixels."""
        draw = torch.Generator(device).manual_seed(0)
        image = (self.channels, self.size, self.size)
        support, query = (
            torch.randint(0, 256, (episodes, *count, *image), device=device, dtype=torch.uint8, generator=draw)
            for count in ((self.way, self.shot), (self.way * self.query,))
        )
        labels = torch.arange(self.way, device=device).repeat_interleave(self.query).repeat(episodes, 1)
        return Episode(support, query, labels)

    def bank(self, classes: int, images: int, device: torch.device) -> Bank:
        """Return a bank of random pixels with this number of classes and of images per class."""
        draw = torch.Generator(device).manual_seed(0)
        sizes = (classes * images, self.channels, self.size, self.size)
        pixels = torch.randint(0, 256, sizes, device=device, dtype=torch.uint8, generator=draw)
        labels = torch.arange(classes, device=device).repeat_interleave(images)
        return Bank(pixels, labels, tuple(f"class {number}" for number in range(classes)))

    def model(self, device: torch.device) -> SoSN:
        images = {"mean": [0.5] * self.channels, "std": [0.5] * self.channels}
        model = SoSN(self.channels, input_size=self.size, preprocessing=images, permutations=self.permutations)
        return model.to(device)


Step = Callable[[], object]


def training_step(shape: Shape, episodes: int, device: torch.device, bf16: bool, name: Engine) -> Step:
    """Return a vectorised training step on a batch of episodes, with plain PyTorch layers or with the engine."""
    model, episode = shape.model(device).train(), shape.episode(episodes, device)
    cuda = device.type == "cuda"
    optimiser = torch.optim.Adam(
        model.parameters(), torch.tensor(1e-3, device=device) if cuda else 1e-3, fused=cuda, capturable=cuda
    )

    def step(batch: Episode) -> Tensor:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = model.loss(batch)
        loss.backward()
        optimiser.step()
        return loss.detach()

    learn = CapturedStep(step) if cuda and name == "auto" else step

    def run() -> Tensor:
        with engine(name):
            return learn(episode)

    return run


def whole_step(shape: Shape, episodes: int, device: torch.device, bf16: bool) -> Step:
    """Return a full step of `sosn train`: draw and augment images, set the learning rate, train, average the weights."""
    words = f"way={shape.way} shot={shape.shot} query={shape.query} episodes_per_step={episodes} device={device} steps=1000000"
    more = f"precision={'bf16' if bf16 else 'fp32'} permutations={shape.permutations} flip=true translate=0.1 jitter=0.3"
    recipe = override(load_recipe("glyphs-5w1s"), [*words.split(), *more.split()])

    def opened(recipe: Recipe, split: str, say: Callable[[str], None]) -> Bank:
        if split != "train":
            raise MissingSplitError("random pixels have no other split")
        return shape.bank(64, 2 * (shape.shot + shape.query), device)

    return Trainer(recipe, Run(Path()), Silent(), opened=opened).advance


def loop_step(shape: Shape, device: torch.device) -> Step:
    """Return a step on one episode in single precision, with loops over images and pairs, as in a simple script."""
    model, episode = shape.model(device).train(), shape.episode(1, device)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> Tensor:
        optimiser.zero_grad()
        relation = model.relation
        images = torch.cat((episode.support.flatten(0, 2), episode.query.flatten(0, 1)))
        maps = model.encoder(model.preprocessing(images, model.dtype)).flatten(2)
        support = maps[: shape.way * shape.shot].unflatten(0, (shape.way, shape.shot))
        classes = [relation.describe_support(one) for one in support]
        queries = [relation.describe_query(one) for one in maps[shape.way * shape.shot :]]
        pairs = [torch.cat((one, other)) for other in queries for one in classes]
        logits = model.similarity(torch.stack(pairs).unsqueeze(1)).view(-1, shape.way)
        assert episode.labels is not None
        loss = F.mse_loss(torch.sigmoid(logits), F.one_hot(episode.labels[0], shape.way).to(logits.dtype))
        loss.backward()
        optimiser.step()
        return loss.detach()

    return _without_engine(step)


def _without_engine(step: Callable[[], Tensor]) -> Step:
    """Return a step that runs with plain PyTorch layers."""

    def run() -> Tensor:
        with engine("plain"):
            return step()

    return run


def has_easyfsl() -> bool:
    return find_spec("easyfsl") is not None


def easyfsl_model(shape: Shape, device: torch.device, backbone: bool = True) -> Any:
    """Return easyfsl's Relation Networks with the same encoder and its smaller head, in training mode."""
    from easyfsl.methods import RelationNetworks

    return RelationNetworks(Conv4(shape.channels) if backbone else None, feature_dimension=64).to(device)


def easyfsl_step(shape: Shape, device: torch.device) -> Step:
    """Return a training step of easyfsl's Relation Networks on one episode."""
    model, episode = easyfsl_model(shape, device), shape.episode(1, device)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    support, query = (images.float() / 255 for images in (episode.support.flatten(0, 2), episode.query[0]))
    classes = torch.arange(shape.way, device=device).repeat_interleave(shape.shot)

    def step() -> Tensor:
        assert episode.labels is not None
        optimiser.zero_grad()
        model.process_support_set(support, classes)
        scores = model(query)
        loss = F.mse_loss(scores, F.one_hot(episode.labels[0], shape.way).float())
        loss.backward()
        optimiser.step()
        return loss.detach()

    return _without_engine(step)


def evaluation_step(shape: Shape, device: torch.device, name: Engine, encoded: bool) -> Step:
    """Return a function that scores one episode; encoded: from precomputed feature maps."""
    model, episode = shape.model(device).eval(), shape.episode(1, device)
    with torch.inference_mode(), engine(name):
        support = model.encode(episode.support.flatten(0, 2)).unflatten(0, episode.support.shape[:3])
        query = model.encode(episode.query.flatten(0, 1)).unsqueeze(0)

    def run() -> Tensor:
        with torch.inference_mode(), engine(name):
            return model.compare_features(support, query) if encoded else model(episode)

    return run


def whole_evaluation(shape: Shape, device: torch.device, name: Engine, episodes: int) -> Step:
    """Return an evaluation as in `sosn eval`, on a bank in which each image is in five episodes on average."""
    model, classes = shape.model(device), 4 * shape.way
    images = max(shape.shot + shape.query, episodes * shape.way * (shape.shot + shape.query) // (5 * classes))
    bank = shape.bank(classes, images, device)

    def run() -> Evaluation:
        with engine(name), warnings.catch_warnings():
            warnings.simplefilter("ignore", SosnWarning)  # about the scores of an untrained model
            return evaluate(model, bank, shape.way, shape.shot, shape.query, episodes)

    return run


def easyfsl_evaluation(shape: Shape, device: torch.device, encoded: bool) -> Step:
    """Return a function that scores one episode with easyfsl's Relation Networks; encoded: from precomputed feature maps."""
    model, episode = easyfsl_model(shape, device, backbone=not encoded), shape.episode(1, device)
    model.eval()
    support, query = (images.float() / 255 for images in (episode.support.flatten(0, 2), episode.query[0]))
    classes = torch.arange(shape.way, device=device).repeat_interleave(shape.shot)
    if encoded:
        encoder = Conv4(shape.channels).to(device).eval()
        with torch.inference_mode(), engine("plain"):
            support, query = encoder(support), encoder(query)

    def run() -> Tensor:
        with torch.inference_mode():
            model.process_support_set(support, classes)
            scores: Tensor = model(query)
            return scores

    return _without_engine(run)
