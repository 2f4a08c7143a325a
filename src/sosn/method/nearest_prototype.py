"""Nearest prototype on feature maps or on their power-normalised second-order matrices: SoSN without its similarity net."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from sosn.encoder import ENCODER_EXTRAS, Conv4, Conv4Pooled, EncoderName, ResNet12
from sosn.encoder.preprocessing import Polarity
from sosn.errors import UsageError
from sosn.method.base import Method, above_zero, batch_norms, constructor_arguments
from sosn.method.distance import MetricName, check_metric, nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.power_norm import PowerNorm, PowerNormName
from sosn.relation import Relation
from sosn.util.precision import full

ENCODER_OPTIONS = (
    "channels", "input_size", "encoder", "encoder_width", "mean", "std", "polarity", "mean_image", *ENCODER_EXTRAS
)  # fmt: skip
Representation = Literal["second_order", "mean", "map"]


class NearestPrototype(SoftmaxMethod):
    """What does a representation give by itself? No paper; the representation is SoSN's (Zhang & Koniusz, WACV 2019).

    The maps of a class's shots are averaged and described like a query's: by SoSN's matrix (autocorrelation, trace
    normalisation, power norm), by the mean over positions, or by the map itself; the nearest class wins. of() takes the
    encoder of another model as it is, frozen; trained by itself it learns an encoder for this comparison.
    """

    name: ClassVar[str] = "nearest_prototype"
    classes_apart: ClassVar[bool] = True

    def __init__(
        self,
        channels: int = 3,
        input_size: int = 84,
        encoder: EncoderName = "conv4",
        encoder_width: int = 64,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        polarity: Polarity = "as_is",
        mean_image: bool = False,
        representation: Representation = "second_order",
        metric: MetricName = "euclidean",
        scale: float = 1.0,
        power_norm: PowerNormName = "sigme",
        eta: float | None = 100.0,
        gamma: float | None = None,
        rho: float = 0.5,
        softness: float | None = None,
        shift: float = 0.0,
        trace_normalise: bool = True,
        conv4_pools: int = 2,
        conv4_blocks: int = 4,
        resnet12_width: int = 64,
        resnet12_pools: int = 3,
        resnet12_drop: float = 0.0,
    ) -> None:
        super().__init__(constructor_arguments(locals()))
        check_metric(metric)
        above_zero(scale=scale)
        if representation not in get_args(Representation):
            raise UsageError(f"representation is {representation!r}; choose one of {', '.join(get_args(Representation))}")
        norm = PowerNorm(power_norm, eta, gamma, rho, softness)
        self.relation = Relation("average", norm, shift, trace_normalise=trace_normalise)
        self.representation, self.metric, self.scale = representation, metric, scale

    @classmethod
    def of(cls, model: Method, **options: Any) -> "NearestPrototype":
        """The nearest prototype on the encoder of another model. Refuses a model without an encoder of a known kind."""
        encoder = getattr(model, "encoder", None)
        if not isinstance(encoder, Conv4 | Conv4Pooled | ResNet12) or model.config.get("features") == "linear":
            raise UsageError(f"method {model.name!r} has no encoder of sosn's that ends in a ReLU: give another model")
        if model.trained and any(int(layer.num_batches_tracked or 0) == 0 for layer in batch_norms(encoder)):
            raise UsageError(
                f"method {model.name!r} keeps no running statistics, which frozen features need: give another model"
            )
        method = cls(**{name: model.config[name] for name in ENCODER_OPTIONS if name in model.config} | options)
        method.preprocessing.load_state_dict(model.preprocessing.state_dict())
        method.encoder.load_state_dict(encoder.state_dict())
        method.trained = model.trained
        return method.to(model.dtype).eval()

    def compare(self, support: Tensor, query: Tensor) -> Tensor:
        support, query = support.flatten(-2), query.flatten(-2)  # (E, L, Z, K, N), (E, Q, K, N)
        if self.representation == "second_order":
            classes, queries = self.relation.describe_support(support), self.relation.describe_query(query)
        else:
            classes, queries = full(support).mean(2), full(query)
        if self.representation == "mean":
            classes, queries = classes.mean(-1), queries.mean(-1)
        return self.scale * nearness(queries.flatten(2), classes.flatten(2), self.metric)
