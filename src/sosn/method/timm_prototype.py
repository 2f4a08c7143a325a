"""Nearest prototype on second-order features of any backbone that timm has, frozen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from sosn.checkpoint.state_dict import read_state_dict
from sosn.encoder.preprocessing import Preprocessing
from sosn.episode import Episode
from sosn.errors import CheckpointError, UsageError
from sosn.method.base import LossName, Method, above_zero, constructor_arguments
from sosn.method.distance import MetricName, check_metric, nearness
from sosn.power_norm import PowerNorm, PowerNormName
from sosn.relation import Relation


class TimmPrototype(Method):
    """SoSN's matrices of another network's features, and the nearest class. No paper; the representation is SoSN's.

    The maps of a class's shots are averaged and described as SoSN describes them; the class with the nearest matrix wins.
    It is used as it comes: its weights are timm's own or those of a file (open), and no recipe trains it.
    """

    name: ClassVar[str] = "timm_prototype"
    classes_apart: ClassVar[bool] = True
    own_loss: ClassVar[LossName] = "cross_entropy"

    def __init__(
        self,
        backbone: str = "resnet18",
        input_size: int = 224,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        metric: MetricName = "cosine",
        scale: float = 10.0,
        power_norm: PowerNormName = "sigme",
        eta: float | None = 100.0,
        shift: float = 0.0,
    ) -> None:
        config = constructor_arguments(locals())
        super().__init__()
        self.config = config
        check_metric(metric)
        above_zero(scale=scale)
        self.metric, self.scale = metric, scale
        self.relation = Relation("average", PowerNorm(power_norm, eta), shift)
        self.preprocessing = Preprocessing(3, input_size, mean, std)
        self.backbone = _create(backbone, pretrained=False)

    @classmethod
    def open(cls, backbone: str, checkpoint: Path | None = None, **options: Any) -> Self:
        """A backbone by timm's name, with the weights of a file, or else with timm's own, which it downloads.

        Image size, mean and standard deviation are those that timm names for it. A file is safetensors, or a state dict of
        torch's, of which nothing is executed; weights of its classifier are left out. Refuses a file for another network.
        """
        source = _create(backbone, pretrained=checkpoint is None)
        told = source.pretrained_cfg
        size = int((told.get("test_input_size") or told["input_size"])[-1])
        standard: dict[str, Any] = {"input_size": size, "mean": list(told["mean"]), "std": list(told["std"])}
        method = cls(backbone, **standard | options)
        weights = source.state_dict() if checkpoint is None else read_state_dict(checkpoint)
        own = method.backbone.state_dict()
        for name, tensor in own.items():
            if name not in weights or weights[name].shape != tensor.shape:
                there = tuple(weights[name].shape) if name in weights else "absent"
                what = f"{name!r} is {there} there and {tuple(tensor.shape)} here"
                raise CheckpointError(f"{str(checkpoint)!r} holds no weights of {backbone!r}: {what}")
        method.backbone.load_state_dict({name: weights[name] for name in own})
        method.trained = True
        return method.eval()

    def logits(self, episode: Episode, separately: bool = False) -> Tensor:
        support = self.encode(episode.support.flatten(0, 2)).unflatten(0, episode.support.shape[:3])
        return self.compare(support, self.encode(episode.query.flatten(0, 1)).unflatten(0, episode.query.shape[:2]))

    def encode(self, images: Tensor) -> Tensor:
        """Feature maps (B, K, N) of images."""
        maps: Tensor = self.backbone.forward_features(self.preprocessing(images, self.dtype))
        width = self.backbone.num_features
        if maps.ndim == 3:  # tokens (B, N, K), the first of which stand for no place
            return maps[:, getattr(self.backbone, "num_prefix_tokens", 0) :].mT
        return (maps if maps.shape[1] == width else maps.movedim(-1, 1)).flatten(2)

    def compare(self, support: Tensor, query: Tensor) -> Tensor:
        """Feature maps (E, L, Z, K, N) and (E, Q, K, N) → logits (E, Q, L)."""
        classes, queries = self.relation.describe_support(support), self.relation.describe_query(query)
        return self.scale * nearness(queries.flatten(2), classes.flatten(2), self.metric)

    def score(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)


def _create(backbone: str, pretrained: bool) -> Any:
    try:
        import timm
    except ImportError:
        raise UsageError("a timm encoder needs timm: pip install 'sosn[timm]'") from None
    if not timm.is_model(backbone):
        raise UsageError(f"timm has no model {backbone!r}: timm.list_models() names those it has")
    try:
        return timm.create_model(backbone, pretrained=pretrained, num_classes=0)
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        raise CheckpointError(f"timm could not get the weights of {backbone!r} ({error}): give a checkpoint file") from error
