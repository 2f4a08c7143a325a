"""Power normalising functions against their printed formulas, their probabilities and each other."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor

import sosn
from sosn.errors import UsageError
from sosn.method import SoSN
from sosn.power_norm import _REGISTERED, NAMES, PowerNorm, asinhe, gamma, maxexp, maxexp_pm, register_power_norm, sigme
from tests import reference

pytestmark = pytest.mark.usefixtures("one_thread")


POSITIVE = torch.linspace(0, 1, 201, dtype=torch.float64)
SIGNED = torch.linspace(-1, 1, 401, dtype=torch.float64)
ETAS = [1.0, 10.0, 100.0, 1000.0]

NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "gamma": lambda m: gamma(m, 0.5),
    "maxexp": lambda m: maxexp(m, 20.0),
    "asinhe": lambda m: asinhe(m, 100.0),
    "sigme": lambda m: sigme(m, 100.0),
    "maxexp_pm hard": lambda m: maxexp_pm(m, 20.0, rho=0.3),
    "maxexp_pm soft": lambda m: maxexp_pm(m, 20.0, rho=0.3, softness=500.0),
}


def close(result: Tensor, expected: np.ndarray | Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(result, torch.as_tensor(expected), rtol=0, atol=tolerance)


def derivatives(function: Callable[[Tensor], Tensor], at: float) -> tuple[float, float]:
    """First and second derivative, by automatic differentiation."""
    m = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function(m), m, create_graph=True)
    (second,) = torch.autograd.grad(first, m)
    return first.item(), second.item()


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.1, 0.5, 0.9, 1.0])
def test_gamma_is_a_power(power: float) -> None:
    close(gamma(POSITIVE, power), POSITIVE.numpy() ** power)


@pytest.mark.parametrize("eta", [0.5, *ETAS])
def test_maxexp_is_one_minus_the_power_of_one_minus(eta: float) -> None:
    close(maxexp(POSITIVE, eta), 1 - (1 - POSITIVE.numpy()) ** eta)


def test_maxexp_clamps_its_base_at_0() -> None:
    m = torch.tensor([1.0, 1.5, 40.0], dtype=torch.float64)
    close(maxexp(m, 2.5), np.ones(3), 0)
    assert maxexp(torch.tensor(1.5), 2.0).item() == 1.0  # an even power of the negative base would be 0.75


@pytest.mark.parametrize("factor", [0.5, 1.0, 100.0])
def test_asinhe_is_the_logarithm_of_its_formula(factor: float) -> None:
    x = factor * SIGNED.numpy()
    close(asinhe(SIGNED, factor), np.log(x + np.sqrt(1 + x**2)), 1e-11)  # the logarithm cancels where x ≪ 0


@pytest.mark.parametrize("eta", ETAS)
def test_sigme_is_the_shifted_logistic_function(eta: float) -> None:
    with np.errstate(over="ignore"):
        close(sigme(SIGNED, eta), 2 / (1 + np.exp(-eta * SIGNED.numpy())) - 1)


@pytest.mark.parametrize("eta", [1.0, 7.3, 100.0, 361.0])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.5, 1.0])
def test_maxexp_pm_is_the_difference_of_powers(eta: float, rho: float) -> None:
    m = SIGNED.numpy()
    expected = (1 - (1 - rho) * np.maximum(0, -m)) ** eta - (1 - rho * np.maximum(0, m)) ** eta
    close(maxexp_pm(SIGNED, eta, rho), expected)


def test_maxexp_pm_weighs_both_signs_equally_by_default() -> None:
    close(maxexp_pm(SIGNED, 9.0), maxexp_pm(SIGNED, 9.0, rho=0.5), 0)
    close(maxexp_pm(SIGNED, 9.0), -maxexp_pm(-SIGNED, 9.0), 0)


@pytest.mark.parametrize("eta", [5.0, 20.0])
@pytest.mark.parametrize("rho", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("softness", [50.0, 500.0])
def test_maxexp_pm_takes_the_soft_maximum(eta: float, rho: float, softness: float) -> None:
    m = SIGNED.numpy()
    up, down = (np.log(np.exp(softness * 0) + np.exp(softness * x)) / softness for x in (m, -m))
    expected = np.maximum(0, 1 - (1 - rho) * down) ** eta - np.maximum(0, 1 - rho * up) ** eta
    close(maxexp_pm(SIGNED, eta, rho, softness), expected)


def test_the_soft_maximum_does_not_overflow() -> None:
    m = torch.tensor([-1.0, 1.0])
    close(maxexp_pm(m, 10.0, 0.5, softness=1e5), maxexp_pm(m, 10.0, 0.5), 1e-6)


def test_the_soft_form_tends_to_the_hard_one() -> None:
    gaps = [(maxexp_pm(SIGNED, 20.0, 0.3, s) - maxexp_pm(SIGNED, 20.0, 0.3)).abs().max().item() for s in (1e2, 1e3, 1e4)]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.15)
    assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.15)


def test_maxexp_pm_clamps_its_base_at_0() -> None:
    close(maxexp_pm(torch.tensor([-5.0, 5.0]), 2.0, rho=0.5), torch.tensor([-1.0, 1.0]), 0)


@pytest.mark.parametrize("eta", ETAS)
def test_small_co_occurrences_keep_their_digits_in_float32(eta: float) -> None:
    """1 − (1−m)^η and 2/(1+e^−ηm) − 1 cancel where m is small; values must not."""
    for m in (1e-10, 1e-6, 1e-3, 0.2):
        value = torch.tensor(m)
        with localcontext() as context:
            context.prec = 60
            exact, exponent = Decimal(value.item()), Decimal(eta)
            expected_maxexp = float(1 - (1 - exact) ** exponent)
            expected_pm = float(1 - (1 - exact / 2) ** exponent)
            expected_sigme = float(2 / (1 + (-exponent * exact).exp()) - 1)
        assert maxexp(value, eta).item() == pytest.approx(expected_maxexp, rel=1e-6)
        assert maxexp_pm(value, eta).item() == pytest.approx(expected_pm, rel=1e-6)
        assert maxexp_pm(-value, eta).item() == pytest.approx(-expected_pm, rel=1e-6)
        assert sigme(value, eta).item() == pytest.approx(expected_sigme, rel=1e-6)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_every_norm_takes_tensors_of_any_shape(norm: Callable[[Tensor], Tensor]) -> None:
    m = POSITIVE[:24]
    assert torch.equal(norm(m.view(2, 3, 4)), norm(m).view(2, 3, 4))
    assert norm(m[3]).shape == ()


# --- probabilities ----------------------------------------------------------------------------------------------------


def multinomial_difference(p: float, q: float, trials: int) -> float:
    """The double sum of the appendix (Eq. 13): at least one co-occurrence, minus at least one negative one."""
    total = 0.0
    for n in range(1, trials + 1):
        for other in range(trials - n + 1):
            ways = math.comb(trials, n) * math.comb(trials - n, other)
            total += ways * (p**n * q**other - p**other * q**n) * (1 - p - q) ** (trials - n - other)
    return total


@pytest.mark.parametrize("trials", [1, 2, 5, 12])
@pytest.mark.parametrize(("p", "q"), [(0.2, 0.1), (0.05, 0.6), (0.5, 0.5), (0.3, 0.0), (0.0, 0.3)])
def test_multinomial_sum_is_the_difference_of_two_maxexp(p: float, q: float, trials: int) -> None:
    total = multinomial_difference(p, q, trials)
    assert total == pytest.approx((1 - q) ** trials - (1 - p) ** trials, abs=1e-12)
    up, down = maxexp(torch.tensor([p, q], dtype=torch.float64), float(trials)).tolist()
    assert up - down == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("rho", [0.3, 0.5])
@pytest.mark.parametrize("m", [-0.8, -0.1, 0.4])
def test_maxexp_pm_is_the_multinomial_difference_of_one_sided_evidence(m: float, rho: float) -> None:
    expected = multinomial_difference(rho * max(0.0, m), (1 - rho) * max(0.0, -m), 9)
    assert maxexp_pm(torch.tensor(m, dtype=torch.float64), 9.0, rho).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("first", "second", "trials"), [(0.2, 0.3, 10), (0.1, 0.2, 25), (0.5, 0.9, 2)])
def test_maxexp_is_the_chance_of_at_least_one_co_occurrence(first: float, second: float, trials: int) -> None:
    draw = np.random.default_rng(0)
    pools = 100_000
    together = (draw.random((pools, trials)) < first) & (draw.random((pools, trials)) < second)
    observed = together.any(1).mean()
    predicted = maxexp(torch.tensor(first * second, dtype=torch.float64), float(trials)).item()
    assert abs(observed - predicted) < 4 * math.sqrt(predicted * (1 - predicted) / pools)


def test_maxexp_pm_is_the_simulated_difference_of_chances() -> None:
    draw = np.random.default_rng(0)
    pools, trials = 100_000, 10
    negative = (draw.choice([0, -1], size=(pools, trials), p=[0.94, 0.06]) == -1).any(1).mean()  # q = (1 − 0.7)·0.2
    predicted = maxexp_pm(torch.tensor(-0.2, dtype=torch.float64), float(trials), rho=0.7).item()
    assert abs(-negative - predicted) < 4 * math.sqrt(-predicted * (1 + predicted) / pools)


# --- SigmE approximates MaxExp(±) -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eta", "same_gap", "best_ratio", "best_gap"),
    [
        (10.0, 0.1125, 0.794, 0.0290),
        (25.0, 0.1260, 0.766, 0.0353),
        (100.0, 0.1327, 0.752, 0.0385),
        (361.0, 0.1343, 0.749, 0.0393),
        (1000.0, 0.1347, 0.748, 0.0395),
        (100_000.0, 0.1349, 0.747, 0.0396),  # the limits as η → ∞
    ],
)
def test_distance_between_sigme_and_maxexp_pm(eta: float, same_gap: float, best_ratio: float, best_gap: float) -> None:
    m = torch.linspace(-1, 1, 5_001, dtype=torch.float64) * min(1.0, 30 / eta)  # beyond it both are ±1
    target = maxexp_pm(m, eta, rho=0.5)

    def gap(ratio: float) -> float:
        return (target - sigme(m, ratio * eta)).abs().max().item()

    assert gap(1.0) == pytest.approx(same_gap, abs=1e-4)
    ratios = np.arange(0.6, 1.0, 0.001)
    gaps = [gap(ratio) for ratio in ratios]
    assert ratios[int(np.argmin(gaps))] == pytest.approx(best_ratio, abs=2e-3)
    assert min(gaps) == pytest.approx(best_gap, abs=2e-4)


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_gradients_agree_with_finite_differences(norm: Callable[[Tensor], Tensor]) -> None:
    draw = torch.Generator().manual_seed(0)
    m = (0.05 + 0.9 * torch.rand(3, 4, generator=draw, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(norm, m)


@pytest.mark.parametrize("name", ["asinhe", "sigme", "maxexp_pm hard", "maxexp_pm soft"])
def test_gradients_agree_with_finite_differences_where_co_occurrences_are_negative(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    m = (-0.05 - 0.9 * torch.rand(3, 4, generator=draw, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(NORMS[name], m)


def test_smooth_norms_have_the_right_gradient_at_0() -> None:
    zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for norm in (NORMS["asinhe"], NORMS["sigme"], NORMS["maxexp_pm soft"]):
        assert torch.autograd.gradcheck(norm, zero)


def test_gradient_of_gamma_at_0_is_0() -> None:
    m = torch.tensor([0.0, 0.25], dtype=torch.float64, requires_grad=True)
    result = gamma(m, 0.5)
    result.sum().backward()
    assert m.grad is not None
    close(result, torch.tensor([0.0, 0.5], dtype=torch.float64))
    close(m.grad, torch.tensor([0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_first_derivative_of_the_hard_form_steps_at_0_unless_rho_is_a_half(rho: float) -> None:
    eta = 20.0
    left, right = (derivatives(lambda m: maxexp_pm(m, eta, rho), at)[0] for at in (-1e-12, 1e-12))
    assert left == pytest.approx((1 - rho) * eta)
    assert right == pytest.approx(rho * eta)
    assert derivatives(lambda m: maxexp_pm(m, eta, rho), 0.0)[0] == pytest.approx(rho * eta)  # the one from the right


def test_second_derivative_of_the_hard_form_steps_at_0_where_rho_is_a_half() -> None:
    eta = 20.0
    left, right = (derivatives(lambda m: maxexp_pm(m, eta, 0.5), at) for at in (-1e-12, 1e-12))
    assert left[0] == pytest.approx(eta / 2)
    assert right[0] == pytest.approx(eta / 2)
    assert left[1] == pytest.approx(eta * (eta - 1) / 4)
    assert right[1] == pytest.approx(-eta * (eta - 1) / 4)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.5, 0.8])
def test_both_derivatives_of_the_soft_form_are_continuous_at_0(rho: float) -> None:
    eta, softness = 20.0, 500.0
    left, middle, right = (derivatives(lambda m: maxexp_pm(m, eta, rho, softness), at) for at in (-1e-12, 0.0, 1e-12))
    up, down = 1 - rho * math.log(2) / softness, 1 - (1 - rho) * math.log(2) / softness
    slope = eta / 2 * (rho * up ** (eta - 1) + (1 - rho) * down ** (eta - 1))
    bend = rho * softness * up ** (eta - 1) - (1 - rho) * softness * down ** (eta - 1)
    bend += (eta - 1) * ((1 - rho) ** 2 * down ** (eta - 2) - rho**2 * up ** (eta - 2))
    for first, second in (left, middle, right):
        assert first == pytest.approx(slope, rel=1e-6)
        assert second == pytest.approx(eta / 4 * bend, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("name", ["sigme", "maxexp", "maxexp_pm", "asinhe"])
def test_values_and_gradients_are_finite_for_every_slope(name: str, eta: float) -> None:
    low = 0.0 if name == "maxexp" else -1.0
    for softness in (None, 1e4):
        m = torch.linspace(low, 1, 101, requires_grad=True)
        result = PowerNorm(name, eta, gamma=eta if name == "asinhe" else None, softness=softness)(m, vectors=25)
        result.sum().backward()
        assert result.isfinite().all()
        assert m.grad is not None
        assert m.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in reference.NORMS if name != "none"])
@pytest.mark.parametrize("softness", [None, 500.0])
def test_norms_are_float32_under_autocast(name: str, softness: float | None, dtype: torch.dtype) -> None:
    norm = PowerNorm(name, 20.0, 0.5, 0.3, softness)
    for m in (torch.linspace(0, 1, 51), torch.linspace(0, 1, 51).to(dtype)):
        leaf = m.detach().requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            result = norm(leaf, vectors=25)
        assert result.dtype == torch.float32
        options = reference.Options(power_norm=name, eta=20.0, gamma=0.5, rho=0.3, softness=softness)
        close(result.double(), reference.power_norm(m.double(), options, 25), 1e-5)
        result.sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [NORMS["gamma"], NORMS["maxexp"]], ids=["gamma", "maxexp"])
def test_gamma_and_maxexp_refuse_negative_co_occurrences(norm: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UsageError, match=r"goes down to -0\.25.*sigme"):
        norm(torch.tensor([0.5, -0.25]))


M = torch.tensor([0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gamma(M, 0.0), "gamma is 0.0"),
        (lambda: gamma(M, 1.5), "gamma is 1.5"),
        (lambda: maxexp(M, 0.0), "eta is 0.0"),
        (lambda: asinhe(M, -1.0), "gamma is -1.0"),
        (lambda: sigme(M, -3.0), "eta is -3.0"),
        (lambda: maxexp_pm(M, 0.0), "eta is 0.0"),
        (lambda: maxexp_pm(M, 9.0, rho=-0.1), "rho is -0.1"),
        (lambda: maxexp_pm(M, 9.0, rho=1.1), "rho is 1.1"),
        (lambda: maxexp_pm(M, 9.0, softness=0.0), "softness is 0.0"),
        (lambda: PowerNorm("sigme", eta=0.0), "eta is 0.0"),
        (lambda: PowerNorm("gamma", gamma=2.0), "gamma is 2.0"),
        (lambda: PowerNorm("maxexp_pm", rho=7.0), "rho is 7.0"),
        (lambda: PowerNorm("sigmoid"), "'sigmoid'.*choose one of sigme"),
    ],
)
def test_parameters_without_meaning_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


# --- by name ----------------------------------------------------------------------------------------------------------


def test_power_norm_by_name_passes_its_parameters() -> None:
    m = POSITIVE.numpy()
    close(PowerNorm("sigme", eta=7.0)(POSITIVE, 25), np.tanh(3.5 * m))
    close(PowerNorm("maxexp", eta=7.0)(POSITIVE, 25), 1 - (1 - m) ** 7)
    close(PowerNorm("asinhe", gamma=7.0)(POSITIVE, 25), np.arcsinh(7 * m))
    close(PowerNorm("gamma", gamma=0.7)(POSITIVE, 25), m**0.7)
    close(PowerNorm("maxexp_pm", eta=7.0, rho=0.2)(-POSITIVE, 25), (1 - 0.8 * m) ** 7 - 1)
    soft = (1 - 0.8 * np.log1p(np.exp(-90 * m)) / 90) ** 7 - (1 - 0.2 * np.log1p(np.exp(90 * m)) / 90) ** 7
    close(PowerNorm("maxexp_pm", eta=7.0, rho=0.2, softness=90.0)(POSITIVE, 25), soft)
    close(PowerNorm("none")(POSITIVE, 25), m, 0)


def test_eta_of_none_means_the_number_of_feature_vectors() -> None:
    m = POSITIVE.numpy()
    close(PowerNorm("sigme", eta=None)(POSITIVE, 25), np.tanh(12.5 * m))
    close(PowerNorm("maxexp", eta=None)(POSITIVE, 361), 1 - (1 - m) ** 361)


def test_gamma_of_none_means_100_for_asinhe_and_a_half_for_gamma() -> None:
    close(PowerNorm("asinhe")(SIGNED, 25), np.arcsinh(100 * SIGNED.numpy()))
    close(PowerNorm("gamma")(POSITIVE, 25), np.sqrt(POSITIVE.numpy()))


def test_an_infinite_slope_is_refused() -> None:
    for norm in (sigme, maxexp, maxexp_pm, asinhe):
        with pytest.raises(UsageError, match="finite"):
            norm(torch.rand(3), float("inf"))


# --- norms of one's own -----------------------------------------------------------------------------------------------


def root_of_count(m: Tensor, eta: float) -> Tensor:
    """m·√η, signed or not."""
    return m * math.sqrt(eta)


@pytest.fixture
def registered() -> Iterator[str]:
    """The name of a norm that is registered during one test."""
    register_power_norm("root_of_count", root_of_count)
    yield "root_of_count"
    del _REGISTERED["root_of_count"]


def test_a_registered_norm_gets_eta_or_the_number_of_vectors(registered: str) -> None:
    close(PowerNorm(registered, eta=9.0)(SIGNED, 25), 3 * SIGNED.numpy())
    close(PowerNorm(registered, eta=None)(SIGNED, 25), 5 * SIGNED.numpy())
    assert PowerNorm(registered).signed


def test_sosn_compares_matrices_of_a_registered_norm(registered: str) -> None:
    torch.manual_seed(0)
    model, plain = (SoSN(channels=1, input_size=28, power_norm=norm, eta=16.0).eval() for norm in (registered, "none"))
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        shots = model.encode(torch.rand(3, 1, 28, 28)).unsqueeze(0)
        torch.testing.assert_close(model.describe(shots), 4 * plain.describe(shots))
    recipe = sosn.override("glyphs-5w1s", [f"power_norm={registered}"])
    assert recipe.model.options["power_norm"] == registered


def test_a_registered_norm_of_positive_evidence_refuses_features_of_both_signs(registered: str) -> None:
    register_power_norm(registered, root_of_count, signed=False)
    SoSN(channels=1, input_size=28, power_norm=registered)
    with pytest.raises(UsageError, match="'root_of_count' refuses negative co-occurrences"):
        SoSN(channels=1, input_size=28, power_norm=registered, encoder={"features": "linear"})


def test_names_of_built_in_norms_cannot_be_registered() -> None:
    for name in NAMES:
        with pytest.raises(UsageError, match=f"power norm '{name}' is built in: choose another name"):
            register_power_norm(name, root_of_count)
    assert not _REGISTERED


def test_a_norm_that_is_not_registered_is_refused_by_models_and_recipes() -> None:
    for refused in (lambda: SoSN(power_norm="root"), lambda: sosn.override("glyphs-5w1s", ["power_norm=root"])):
        with pytest.raises(UsageError, match=r"power_norm is 'root'.*choose one of sigme, asinhe"):
            refused()
