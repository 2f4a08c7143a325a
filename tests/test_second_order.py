"""Second-order matrices and higher moments against loops over their indices."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.second_order import autocorrelation, shift_mean, tensor_moment, trace_normalise


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def looped_autocorrelation(phi: Tensor, shift: float) -> Tensor:
    rows, count = phi.shape
    f = phi.tolist()
    mu = [sum(row) / count for row in f]
    return torch.tensor(
        [
            [sum((f[i][n] - shift * mu[i]) * (f[j][n] - shift * mu[j]) for n in range(count)) / count for j in range(rows)]
            for i in range(rows)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_autocorrelation_is_the_average_outer_product_of_shifted_vectors(shift: float) -> None:
    phi = random(4, 7)
    torch.testing.assert_close(autocorrelation(phi, shift), looped_autocorrelation(phi, shift), rtol=1e-12, atol=1e-14)


def test_autocorrelation_is_not_shifted_by_default() -> None:
    phi = random(4, 7)
    torch.testing.assert_close(autocorrelation(phi), looped_autocorrelation(phi, 0.0), rtol=1e-12, atol=1e-14)


def test_autocorrelation_with_full_shift_is_the_covariance() -> None:
    phi = random(5, 9)
    covariance = torch.from_numpy(np.cov(phi.numpy(), bias=True))
    torch.testing.assert_close(autocorrelation(phi, 1.0), covariance, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_autocorrelation_treats_each_map_of_a_batch_alone(shift: float) -> None:
    phi = random(2, 3, 4, 6)
    result = autocorrelation(phi, shift)
    assert result.shape == (2, 3, 4, 4)
    for a, b in product(range(2), range(3)):
        torch.testing.assert_close(result[a, b], looped_autocorrelation(phi[a, b], shift), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shift", [-0.1, 1.1, float("nan")])
def test_a_mean_shift_outside_0_to_1_is_refused(shift: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        autocorrelation(random(3, 4), shift)


@pytest.mark.parametrize("shift", [0.0, 0.25, 1.0])
def test_shifted_vectors_keep_the_rest_of_their_mean(shift: float) -> None:
    phi = random(3, 8)
    torch.testing.assert_close(shift_mean(phi, shift).mean(-1), (1 - shift) * phi.mean(-1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_trace_normalisation_divides_by_trace_plus_lambda(eps: float) -> None:
    matrix = random(2, 4, 4)
    expected = torch.stack([m / (sum(m[k, k].item() for k in range(4)) + eps) for m in matrix])
    torch.testing.assert_close(trace_normalise(matrix, eps), expected, rtol=1e-12, atol=1e-14)


def test_lambda_of_the_trace_is_a_millionth() -> None:
    matrix = 1e-6 * torch.eye(2, dtype=torch.float64)  # trace 2e-6, so that λ counts
    torch.testing.assert_close(trace_normalise(matrix), torch.eye(2, dtype=torch.float64) / 3, rtol=1e-12, atol=0)


def test_trace_normalised_autocorrelations_lie_between_minus_1_and_1_and_have_trace_1() -> None:
    matrix = trace_normalise(autocorrelation(100 * random(20, 8, 5), 0.5))
    assert matrix.abs().max() <= 1
    torch.testing.assert_close(matrix.diagonal(dim1=1, dim2=2).sum(1), torch.ones(20, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_moment_is_the_average_of_products_of_features(order: int) -> None:
    phi = random(3, 5)
    moment = tensor_moment(phi, order)
    assert moment.shape == (3,) * order
    f = phi.tolist()
    for index in product(range(3), repeat=order):
        expected = sum(prod(f[i][n] for i in index) for n in range(5)) / 5
        assert moment[index].item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_moments_linearise_the_sum_of_polynomial_kernels(order: int) -> None:
    phi, other = random(4, 6, seed=1), random(4, 9, seed=2)  # N = 6, N* = 9
    kernels = [
        sum(phi[k, n].item() * other[k, m].item() for k in range(4)) ** order for n, m in product(range(6), range(9))
    ]  # fmt: skip
    inner = (tensor_moment(phi, order) * tensor_moment(other, order)).sum().item()
    assert inner == pytest.approx(sum(kernels) / 54, rel=1e-12)


def test_moment_treats_each_map_of_a_batch_alone() -> None:
    phi = random(2, 3, 4, 5)
    moments = tensor_moment(phi, 3)
    assert moments.shape == (2, 3, 4, 4, 4)
    for a, b in product(range(2), range(3)):
        expected = torch.einsum("in,jn,kn->ijk", phi[a, b], phi[a, b], phi[a, b]) / 5
        torch.testing.assert_close(moments[a, b], expected, rtol=1e-12, atol=1e-14)


def test_a_moment_of_order_0_is_refused() -> None:
    with pytest.raises(UsageError, match="order is 0"):
        tensor_moment(random(3, 4), 0)


@pytest.mark.parametrize("shift", [0.0, 0.4, 1.0])
def test_gradient_of_the_trace_normalised_autocorrelation(shift: float) -> None:
    phi = random(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: trace_normalise(autocorrelation(x, shift)), phi)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_gradient_of_moments(order: int) -> None:
    assert torch.autograd.gradcheck(lambda x: tensor_moment(x, order), random(2, 3, 4).requires_grad_())


@pytest.mark.parametrize("level", [0.0, 2.0])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_values_and_gradients_are_finite_on_zero_and_constant_maps(level: float, shift: float) -> None:
    phi = torch.full((3, 4), level, requires_grad=True)
    matrix = trace_normalise(autocorrelation(phi, shift))
    matrix.sum().backward()
    assert matrix.isfinite().all()
    assert phi.grad is not None
    assert phi.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("from_half", [False, True], ids=["float32 features", "half features"])
def test_second_order_statistics_are_float32_under_autocast(dtype: torch.dtype, from_half: bool) -> None:
    phi = 400 * random(4, 50)  # squares leave the range of float16
    phi = phi.to(dtype if from_half else torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        matrix = autocorrelation(phi, 0.5)
        normalised = trace_normalise(matrix)
        moment = tensor_moment(phi, 2)
    exact = phi.detach().double()
    shifted = looped_autocorrelation(exact, 0.5)
    for result, expected in (
        (matrix, shifted),
        (normalised, shifted / (shifted.trace() + 1e-6)),
        (moment, looped_autocorrelation(exact, 0.0)),
    ):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())
    (normalised.square().sum() + moment.sum() * 1e-6).backward()
    assert phi.grad is not None
    assert phi.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_of_full_precision_features_is_kept(dtype: torch.dtype) -> None:
    phi = random(3, 4).to(dtype)
    assert {f.dtype for f in (autocorrelation(phi), trace_normalise(autocorrelation(phi)), tensor_moment(phi, 3))} == {dtype}


def test_the_published_names_of_arguments_work() -> None:
    features = torch.rand(4, 6)
    assert torch.equal(autocorrelation(features=features, shift=0.5), autocorrelation(features, 0.5))
    assert torch.equal(trace_normalise(matrix=features @ features.mT, eps=1e-3), trace_normalise(features @ features.mT, 1e-3))
