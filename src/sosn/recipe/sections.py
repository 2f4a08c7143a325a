"""The sections of a recipe: their keys, types and defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sosn.data.augmentation import AugmentationSection
from sosn.method.base import LossName
from sosn.method.test_time import TestTimeAugmentation


@dataclass(frozen=True)
class DataSection:
    """The dataset. Other keys are its options."""

    name: str = "glyphs"
    min_images: int = 0  # skip classes with fewer images
    leave_out_small: bool = False  # skip classes that are too small for an episode, and report how many
    standardise: bool = True  # standardise by the mean and deviation of the training images
    workers: int = 0  # processes that load training images from disk; 0 keeps all images on the device
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSection:
    """The method. Other keys are its options."""

    method: str = "sosn"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderSection:
    """The encoder, by default the method's usual one. Other keys are its options."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreprocessingSection:
    """Options of Preprocessing. Sizes, mean and deviation are taken from the training images unless set."""

    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodesSection:
    """Episodes in training and, unless [validation] changes them, in validation."""

    way: int = 5
    shot: int = 1
    query: int = 15  # query images per class
    episodes_per_step: int = 1


@dataclass(frozen=True)
class TrainingSection:
    """Optimisation of the weights."""

    start: str = ""  # a run folder, weights file or shipped model with initial weights, used where they fit
    steps: int = 1000
    loss: LossName = "mse"
    optimiser: Literal["adam", "adamw", "sgd"] = "adam"  # sgd uses Nesterov momentum 0.9
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "step", "cosine"] = "constant"
    decay_every: int = 50_000  # schedule = "step": steps between two cuts of the learning rate
    decay_factor: float = 0.5
    warmup: int = 0  # steps in which the learning rate rises from 0
    clip: float = 0.0  # largest norm of the gradient; 0 means no limit
    precision: Literal["fp32", "bf16"] = "fp32"
    average: float = 0.0  # decay of the moving average of weights that is validated and saved; 0 means no average
    recalibrate: int = 20  # training batches that re-estimate batch norm's running statistics before each validation
    device: str = "auto"
    engine: Literal["auto", "plain"] = "auto"  # plain: no fused kernels, no CUDA graph


@dataclass(frozen=True)
class ValidationSection:
    """Validation during training, and the final evaluation."""

    every: int = 200  # steps
    val_episodes: int = 200
    val_way: int = 0  # 0 means the way of training
    val_shot: int = 0  # 0 means the shot of training
    val_query: int = 15
    val_seed: int = 1  # seed of the episodes that select the weights
    report_episodes: int = 600
    report_seed: int = 0  # seed of the episodes of the final evaluation


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
