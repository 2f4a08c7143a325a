"""Few-shot image recognition with second-order similarity networks.

Names are loaded when they are first used, so that `import sosn` and `sosn --help` need no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sosn.classifier import FewShotClassifier as FewShotClassifier
    from sosn.data import Bank as Bank
    from sosn.data import EpisodeSampler as EpisodeSampler
    from sosn.data import open_bank as open_bank
    from sosn.episode import Episode as Episode
    from sosn.errors import DataError as DataError
    from sosn.errors import SosnError as SosnError
    from sosn.errors import UsageError as UsageError
    from sosn.evaluation import compare as compare
    from sosn.evaluation import evaluate as evaluate
    from sosn.gallery import Gallery as Gallery
    from sosn.method import SoSN as SoSN
    from sosn.models import load as load
    from sosn.recipe import load_recipe as load_recipe
    from sosn.recipe import override as override
    from sosn.seeding import generator as generator
    from sosn.training import train as train

__version__ = "0.1.0"

_HOME = {
    "Bank": "sosn.data",
    "DataError": "sosn.errors",
    "Episode": "sosn.episode",
    "EpisodeSampler": "sosn.data",
    "FewShotClassifier": "sosn.classifier",
    "Gallery": "sosn.gallery",
    "SoSN": "sosn.method",
    "SosnError": "sosn.errors",
    "UsageError": "sosn.errors",
    "compare": "sosn.evaluation",
    "evaluate": "sosn.evaluation",
    "generator": "sosn.seeding",
    "load": "sosn.models",
    "load_recipe": "sosn.recipe",
    "open_bank": "sosn.data",
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
