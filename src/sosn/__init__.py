"""Few-shot image recognition with second-order similarity networks.

Names are loaded when they are first used, so that `import sosn` and `sosn --help` need no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sosn.checkpoint.registry import load as load
    from sosn.classify.classifier import FewShotClassifier as FewShotClassifier
    from sosn.classify.gallery import Gallery as Gallery
    from sosn.data.bank import Bank as Bank
    from sosn.data.dataset import open_bank as open_bank
    from sosn.data.sampler import EpisodeSampler as EpisodeSampler
    from sosn.episode import Episode as Episode
    from sosn.errors import DataError as DataError
    from sosn.errors import SosnError as SosnError
    from sosn.errors import UsageError as UsageError
    from sosn.evaluation.protocol import compare as compare
    from sosn.evaluation.protocol import evaluate as evaluate
    from sosn.method import SoSN as SoSN
    from sosn.recipe.library import load_recipe as load_recipe
    from sosn.recipe.override import override as override
    from sosn.training import train as train
    from sosn.util.seeding import generator as generator

__version__ = "0.1.0"

_HOME = {
    "Bank": "sosn.data.bank",
    "DataError": "sosn.errors",
    "Episode": "sosn.episode",
    "EpisodeSampler": "sosn.data.sampler",
    "FewShotClassifier": "sosn.classify.classifier",
    "Gallery": "sosn.classify.gallery",
    "SoSN": "sosn.method",
    "SosnError": "sosn.errors",
    "UsageError": "sosn.errors",
    "compare": "sosn.evaluation.protocol",
    "evaluate": "sosn.evaluation.protocol",
    "generator": "sosn.util.seeding",
    "load": "sosn.checkpoint.registry",
    "load_recipe": "sosn.recipe",
    "open_bank": "sosn.data.dataset",
    "override": "sosn.recipe",
    "train": "sosn.training",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sosn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
