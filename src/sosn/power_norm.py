"""Power normalisation: element-wise functions that keep whether features co-occur, and discard how often.

Each function takes a tensor of co-occurrences m of any shape and returns a tensor of the same shape, in float32 if m has half
precision. Where a derivative is infinite (Gamma at 0), the gradient is 0. The base 1 − m of MaxExp is clamped at 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.util.precision import full_precision
from sosn.util.spelling import nearest

NAMES = ("sigme", "asinhe", "maxexp_pm", "maxexp", "gamma", "none")
_REGISTERED: "dict[str, tuple[Callable[[Tensor, float], Tensor], bool]]" = {}


def register_power_norm(name: str, function: Callable[[Tensor, float], Tensor], signed: bool = True) -> None:
    """Register a power normalisation under a name, for `power_norm=` and recipes.

    function takes co-occurrences m of any shape and eta (N, the number of feature vectors, if eta is None), and returns a
    tensor of the same shape. signed: whether it accepts negative co-occurrences. Refuses the name of a built-in function.
    """
    if name in NAMES:
        raise UsageError(f"power norm {name!r} is built in: choose another name")
    _REGISTERED[name] = (function, signed)


def check_name(name: str) -> None:
    """Raise UsageError if no power normalisation has this name."""
    known = (*NAMES, *_REGISTERED)
    if name not in known:
        raise UsageError(f"power_norm is {name!r}{nearest(name, known)}; choose one of {', '.join(known)}")


def _refuse_negative(m: Tensor, name: str) -> None:
    if torch.any(m < 0):
        raise UsageError(
            f"{name} takes co-occurrences of 0 or more, and the input goes down to {m.min().item():.3g}: "
            "use sigme, asinhe or maxexp_pm, or features after ReLU with shift=0"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


@full_precision
def gamma(m: Tensor, gamma: float) -> Tensor:
    """Gamma: m^γ for m ≥ 0 and 0 < γ ≤ 1 (Remark 3). Refuses negative m."""
    _require(0 < gamma <= 1, f"gamma is {gamma}; the power γ must lie in 0 < γ ≤ 1")
    _refuse_negative(m, "Gamma")
    return _power(m, gamma)


@full_precision
def _power(m: Tensor, exponent: float) -> Tensor:
    """m^γ for m ≥ 0. The gradient at 0 is 0, where the derivative is infinite."""
    if exponent == 1:
        return m
    positive = m > 0
    return torch.where(positive, torch.where(positive, m, 1.0) ** exponent, 0.0)


@full_precision
def maxexp(m: Tensor, eta: float) -> Tensor:
    """MaxExp: 1 − (1−m)^η, the chance of at least one co-occurrence in η trials (Prop. 2, Remark 2). Refuses negative m."""
    _require(0 < eta < math.inf, f"eta is {eta}; the number of trials η must be above 0 and finite")
    _refuse_negative(m, "MaxExp")
    return _at_least_one(m, eta)


@full_precision
def _at_least_one(p: Tensor, eta: float) -> Tensor:
    """1 − max(0, 1−p)^η without cancellation for small p."""
    inside = p < 1
    return torch.where(inside, -torch.expm1(eta * torch.log1p(-torch.where(inside, p, 0.0))), 1.0)


@full_precision
def asinhe(m: Tensor, gamma: float) -> Tensor:
    """AsinhE: arcsinh(γ′m) = log(γ′m + √(1 + γ′²m²)), Gamma extended to negative co-occurrences (Remark 4, Eq. 3)."""
    _require(0 < gamma < math.inf, f"gamma is {gamma}; the factor γ′ must be above 0 and finite")
    return torch.asinh(gamma * m)


@full_precision
def sigme(m: Tensor, eta: float) -> Tensor:
    """SigmE: 2/(1 + e^(−η′m)) − 1, computed as its equal tanh(η′m/2) (Remark 5, Eq. 4).

    It approximates MaxExp(±) at ρ = 0.5: the largest difference is about 0.13 with η′ = η, and 0.04 with the best η′ ≈ 0.75 η.
    """
    _require(0 < eta < math.inf, f"eta is {eta}; the slope η′ must be above 0 and finite")
    return torch.tanh(0.5 * eta * m)


@full_precision
def maxexp_pm(m: Tensor, eta: float, rho: float = 0.5, softness: float | None = None) -> Tensor:
    """MaxExp(±): (1 − (1−ρ)·max(0,−m))^η − (1 − ρ·max(0,m))^η (Prop. 3, Eq. 12, 14, 15).

    The probability of at least one co-occurrence minus that of at least one negative co-occurrence. softness is the α of the
    soft maximum (1/α)·log(e^(αx) + e^(αy)), with α ≫ η. None means the hard maximum, whose derivative jumps at 0 unless
    ρ = 0.5; the gradient at 0 is the right-hand derivative.
    """
    _require(0 < eta < math.inf, f"eta is {eta}; the number of trials η must be above 0 and finite")
    _require(0 <= rho <= 1, f"rho is {rho}; the share ρ of positive evidence must lie between 0 and 1")
    if softness is None:
        above, below = torch.where(m >= 0, m, 0.0), torch.where(m < 0, -m, 0.0)
    else:
        _require(0 < softness < math.inf, f"softness is {softness}; the α of the soft maximum must be above 0 and finite")
        zero = m.new_zeros(())
        above, below = (torch.logaddexp(softness * x, zero) / softness for x in (m, -m))
    return _at_least_one(rho * above, eta) - _at_least_one((1 - rho) * below, eta)


@dataclass(frozen=True)
class PowerNorm:
    """A power normalisation by name, with its parameters, as a callable. eta=None means N, the number of feature vectors."""

    name: str = "sigme"
    eta: float | None = 100.0
    gamma: float | None = None
    rho: float = 0.5
    softness: float | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        zero = torch.zeros(())  # a trial run, to refuse bad parameters before training
        match self.name:
            case "gamma":
                gamma(zero, 0.5 if self.gamma is None else self.gamma)
            case "maxexp":
                maxexp(zero, 1.0 if self.eta is None else self.eta)
            case _:
                self(zero, vectors=1)

    @property
    def signed(self) -> bool:
        """Whether negative co-occurrences are allowed."""
        return _REGISTERED[self.name][1] if self.name in _REGISTERED else self.name not in ("gamma", "maxexp")

    def __call__(self, m: Tensor, vectors: int) -> Tensor:
        """Normalise co-occurrences m, an average over `vectors` feature vectors. The shape is kept."""
        eta = float(vectors) if self.eta is None else self.eta
        match self.name:
            case "sigme":
                return sigme(m, eta)
            case "asinhe":
                return asinhe(m, 100.0 if self.gamma is None else self.gamma)
            case "maxexp_pm":
                return maxexp_pm(m, eta, self.rho, self.softness)
            case "maxexp":
                return _at_least_one(m, eta)  # never negative here, and the check would wait for the GPU
            case "gamma":
                return _power(m, 0.5 if self.gamma is None else self.gamma)
            case "none":
                return m
            case _:
                return _REGISTERED[self.name][0](m, eta)
