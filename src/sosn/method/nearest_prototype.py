"""Nearest prototype on feature maps or second-order matrices: SoSN without its similarity net."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Unpack, get_args

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.method.base import Method, Shared, batch_norms
from sosn.method.distance import MetricName, check_metric, nearness
from sosn.method.encoded import EncodedMethod, SoftmaxMethod
from sosn.power_norm import PowerNorm
from sosn.relation import Relation
from sosn.util.checks import above_zero, one_of
from sosn.util.precision import full

Representation = Literal["second_order", "mean", "map"]


class NearestPrototype(SoftmaxMethod):
    """Nearest class mean, to measure a representation alone. Not from a paper; the matrices are SoSN's (WACV 2019).

    The maps of a class's shots are averaged and described like a query: by SoSN's matrix (autocorrelation, trace
    normalisation, power norm), by the mean over positions, or by the map. The nearest class is predicted. of() takes the frozen
    encoder of another model; otherwise the encoder can be trained for this comparison.
    """

    name: ClassVar[str] = "nearest_prototype"
    classes_apart: ClassVar[bool] = True
    fixed_size = True

    def __init__(
        self,
        representation: Representation = "second_order",
        metric: MetricName = "euclidean",
        scale: float = 1.0,
        power_norm: str = "sigme",
        eta: float | None = 100.0,
        gamma: float | None = None,
        rho: float = 0.5,
        softness: float | None = None,
        shift: float = 0.0,
        trace_normalise: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        check_metric(metric)
        above_zero(scale=scale)
        one_of(get_args(Representation), representation=representation)
        norm = PowerNorm(power_norm, eta, gamma, rho, softness)
        self.relation = Relation("average", norm, shift, trace_normalise=trace_normalise)
        self.second_order = self.relation if representation == "second_order" else None
        self.representation, self.metric, self.scale = representation, metric, scale

    @classmethod
    def of(cls, model: Method, **options: Any) -> "NearestPrototype":
        """Build a nearest prototype on the encoder of another model.

        Refuses a model whose features may be negative, or whose batch norm has no running statistics.
        """
        if not isinstance(model, EncodedMethod) or not model.encoder.non_negative:
            raise UsageError(f"method {model.name!r} has no encoder that ends in a ReLU: choose another model")
        if model.trained and any(int(layer.num_batches_tracked or 0) == 0 for layer in batch_norms(model.encoder)):
            raise UsageError(
                f"method {model.name!r} keeps no running statistics, which frozen features need: choose another model"
            )
        shared: dict[str, Any] = {name: model.config[name] for name in ("encoder", "preprocessing", "test_time")}
        method = cls(**shared | options)
        method.preprocessing.load_state_dict(model.preprocessing.state_dict())
        method.encoder.load_state_dict(model.encoder.state_dict())
        method.trained = model.trained
        return method.to(model.dtype).eval()

    def _encode(self, images: Tensor) -> Tensor:
        """Feature vectors (B, K, N)."""
        return super()._encode(images).flatten(2)

    def join(self, copies: Sequence[Tensor]) -> Tensor:
        """Concatenate the feature vectors of all copies; for "map", return the mean map."""
        return super().join(copies) if self.representation == "map" else torch.cat(list(copies), -1)

    def describe(self, shots: Tensor) -> Tensor:
        """Describe the feature vectors of shots by one vector: (…, Z, K, N) → (…, D)."""
        if self.representation == "second_order":
            return self.relation.describe_support(shots).flatten(-3)
        maps = full(shots).mean(-3)
        return maps.mean(-1) if self.representation == "mean" else maps.flatten(-2)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        return self.scale * nearness(queries, classes, self.metric)
