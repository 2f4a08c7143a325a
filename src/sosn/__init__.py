"""Few-shot image recognition with second-order similarity networks.

Names are imported on first use, so `import sosn` and `sosn --help` do not load PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sosn.checkpoint.registry import load as load
    from sosn.classify.classifier import FewShotClassifier as FewShotClassifier
    from sosn.classify.gallery import Gallery as Gallery
    from sosn.data.bank import Bank as Bank
    from sosn.data.dataset import open_bank as open_bank
    from sosn.data.dataset import register_dataset as register_dataset
    from sosn.data.sampler import EpisodeSampler as EpisodeSampler
    from sosn.encoder import Encoder as Encoder
    from sosn.encoder import register_encoder as register_encoder
    from sosn.episode import Episode as Episode
    from sosn.errors import DataError as DataError
    from sosn.errors import SosnError as SosnError
    from sosn.errors import UsageError as UsageError
    from sosn.evaluation.protocol import compare as compare
    from sosn.evaluation.protocol import evaluate as evaluate
    from sosn.method import Method as Method
    from sosn.method import SoSN as SoSN
    from sosn.method import register_method as register_method
    from sosn.method.test_time import TestTimeAugmentation as TestTimeAugmentation
    from sosn.power_norm import register_power_norm as register_power_norm
    from sosn.recipe import Recipe as Recipe
    from sosn.recipe import load_recipe as load_recipe
    from sosn.recipe import override as override
    from sosn.training import train as train
    from sosn.util.seeding import generator as generator

__version__ = "0.1.0"

_HOME = {
    "Bank": "sosn.data.bank",
    "DataError": "sosn.errors",
    "Encoder": "sosn.encoder",
    "Episode": "sosn.episode",
    "EpisodeSampler": "sosn.data.sampler",
    "FewShotClassifier": "sosn.classify.classifier",
    "Gallery": "sosn.classify.gallery",
    "Method": "sosn.method",
    "Recipe": "sosn.recipe",
    "SoSN": "sosn.method",
    "SosnError": "sosn.errors",
    "TestTimeAugmentation": "sosn.method.test_time",
    "UsageError": "sosn.errors",
    "compare": "sosn.evaluation.protocol",
    "evaluate": "sosn.evaluation.protocol",
    "generator": "sosn.util.seeding",
    "load": "sosn.checkpoint.registry",
    "load_recipe": "sosn.recipe",
    "open_bank": "sosn.data.dataset",
    "override": "sosn.recipe",
    "register_dataset": "sosn.data.dataset",
    "register_encoder": "sosn.encoder",
    "register_method": "sosn.method",
    "register_power_norm": "sosn.power_norm",
    "train": "sosn.training",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sosn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
