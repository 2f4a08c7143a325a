"""Permutations of second-order matrices against products with explicit permutation matrices."""

from itertools import product

import pytest
import torch

from sosn.errors import UsageError
from sosn.permutation import draw_permutations, permute
from tests.reference import permutation_matrix


def test_the_first_permutation_is_the_identity() -> None:
    for count in (1, 3):
        assert draw_permutations(64, count, seed=5)[0].tolist() == list(range(64))


def test_permutations_are_permutations_and_distinct() -> None:
    drawn = draw_permutations(64, 10, seed=0).tolist()
    assert len(drawn) == 10
    assert all(sorted(order) == list(range(64)) for order in drawn)
    assert len(set(map(tuple, drawn))) == 10


def test_all_permutations_of_a_few_features_can_be_drawn() -> None:
    drawn = draw_permutations(4, 24, seed=0)
    assert len(set(map(tuple, drawn.tolist()))) == 24


def test_permutations_depend_on_the_seed_alone() -> None:
    first = draw_permutations(64, 3, seed=7)
    torch.rand(10)  # the global generator has no say
    assert torch.equal(first, draw_permutations(64, 3, seed=7))
    assert not torch.equal(first, draw_permutations(64, 3, seed=8))


def test_more_permutations_begin_with_the_fewer() -> None:
    assert torch.equal(draw_permutations(64, 10, seed=7)[:3], draw_permutations(64, 3, seed=7))


@pytest.mark.parametrize(("size", "count"), [(3, 7), (1, 2), (2, 3)])
def test_more_permutations_than_exist_are_refused(size: int, count: int) -> None:
    with pytest.raises(UsageError, match=f"permutations is {count}; {size} features have only"):
        draw_permutations(size, count, seed=0)


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_permutation_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"permutations is {count}"):
        draw_permutations(64, count, seed=0)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_permuting_equals_products_with_permutation_matrices(count: int) -> None:
    matrices = torch.randn(2, 3, 2, 6, 6, dtype=torch.float64)
    orders = draw_permutations(6, count, seed=1)
    permuted = permute(matrices, orders)
    assert permuted.shape == (2, 3, count, 2, 6, 6)
    for a, b, p, c in product(range(2), range(3), range(count), range(2)):
        pi = permutation_matrix(orders[p].tolist())
        assert torch.equal(pi.T @ pi, torch.eye(6, dtype=torch.float64))
        assert torch.equal(permuted[a, b, p, c], pi.T @ matrices[a, b, c] @ pi)


def test_permuting_keeps_what_does_not_depend_on_the_order_of_features() -> None:
    matrices = torch.randn(2, 6, 6, dtype=torch.float64)
    symmetric = matrices + matrices.mT
    permuted = permute(symmetric, draw_permutations(6, 3, seed=1))
    eigenvalues = torch.linalg.eigvalsh(symmetric)
    for p in range(3):
        torch.testing.assert_close(torch.linalg.eigvalsh(permuted[p]), eigenvalues, rtol=1e-12, atol=1e-12)


def test_gradient_of_permuting() -> None:
    matrices = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    orders = draw_permutations(3, 3, seed=1)
    assert torch.autograd.gradcheck(lambda m: permute(m, orders), matrices)


def test_a_single_permutation_is_applied_like_any_other() -> None:
    matrix = torch.arange(9.0).view(1, 3, 3)
    expected = matrix[:, [2, 0, 1]][:, :, [2, 0, 1]]
    assert torch.equal(permute(matrix, torch.tensor([[2, 0, 1]]))[0], expected)


def test_gradients_through_permutations_are_the_same_to_the_bit_every_time() -> None:
    matrices = torch.rand(40, 1, 64, 64, requires_grad=True)
    permutations = draw_permutations(64, 3, 0)
    weight = torch.rand(40, 3, 1, 64, 64)
    gradients = [torch.autograd.grad((permute(matrices, permutations) * weight).sum(), matrices)[0] for _ in range(6)]
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    by_index = matrices[..., permutations[:, :, None], permutations[:, None, :]].movedim(-3, -4)
    torch.testing.assert_close(gradients[0], torch.autograd.grad((by_index * weight).sum(), matrices)[0])
