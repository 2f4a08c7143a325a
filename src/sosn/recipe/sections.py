"""The sections of a recipe, each a table of TOML, with what their keys mean and their defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sosn.data.augmentation import AugmentationSection
from sosn.method.base import LossName
from sosn.method.test_time import TestTimeAugmentation


@dataclass(frozen=True)
class DataSection:
    """Where images come from. Other keys are the dataset's own."""

    name: str = "glyphs"
    min_images: int = 0  # leave out classes with fewer
    leave_out_small: bool = False  # leave out classes that cannot fill an episode, and say how many
    standardise: bool = True  # give the model the mean and deviation of the training images
    workers: int = 0  # processes that read training images ahead from disk; 0 keeps all images on the device
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSection:
    """Which method. Other keys are its constructor's."""

    method: str = "sosn"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderSection:
    """Which encoder; the method's usual one unless named. Other keys are its constructor's."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreprocessingSection:
    """How images are brought to the encoder: keys of Preprocessing. Sizes, mean and deviation follow the images unless set."""

    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodesSection:
    """What an episode is, in training and, unless [validation] says otherwise, in validation."""

    way: int = 5
    shot: int = 1
    query: int = 15  # query images a class
    episodes_per_step: int = 1


@dataclass(frozen=True)
class TrainingSection:
    """How the weights are found."""

    start: str = ""  # a run folder, weights file or shipped model whose weights training begins with, where they fit
    steps: int = 1000
    loss: LossName = "mse"
    optimiser: Literal["adam", "adamw", "sgd"] = "adam"  # sgd: with Nesterov momentum 0.9
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "step", "cosine"] = "constant"
    decay_every: int = 50_000  # schedule = "step": steps between two cuts of the learning rate
    decay_factor: float = 0.5
    warmup: int = 0  # steps over which the learning rate rises from 0
    clip: float = 0.0  # largest norm of the gradient; 0 means no limit
    precision: Literal["fp32", "bf16"] = "fp32"
    average: float = 0.0  # decay of the moving average of weights that is validated and kept; 0 means the weights themselves
    recalibrate: int = 20  # training steps over which batch norm's running statistics are taken anew before each validation
    device: str = "auto"
    engine: Literal["auto", "plain"] = "auto"  # plain: the layers one by one, without fused kernels or a captured step


@dataclass(frozen=True)
class ValidationSection:
    """When and on what the weights are evaluated."""

    every: int = 200  # steps
    val_episodes: int = 200
    val_way: int = 0  # 0 means as in training
    val_shot: int = 0
    val_query: int = 15
    val_seed: int = 1  # of the episodes that select the weights
    report_episodes: int = 600
    report_seed: int = 0  # of the episodes that the closing figure comes from


SECTIONS: dict[str, type[Any]] = {
    "data": DataSection,
    "model": ModelSection,
    "encoder": EncoderSection,
    "preprocessing": PreprocessingSection,
    "test_time": TestTimeAugmentation,
    "episodes": EpisodesSection,
    "augmentation": AugmentationSection,
    "training": TrainingSection,
    "validation": ValidationSection,
}
