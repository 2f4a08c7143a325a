"""Gradients of the engine against those of the layers one by one on a CPU, by the comparison that test_gpu.py makes too."""

import pytest
import torch
from torch import Tensor

from sosn.bench.contenders import Shape
from sosn.cli.process import check_bf16
from sosn.errors import UsageError
from tests.kernel.engines import ZERO, astray, gradients

pytestmark = pytest.mark.usefixtures("one_thread")

Three = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]


@pytest.fixture(scope="module")
def three() -> Three:
    """Gradients of the engine and of the plain layers, in bf16 where the processor can, and exact ones."""
    try:
        check_bf16()
    except UsageError:
        half = False
    else:
        half = True
    shape, cpu = Shape(3, 1, 2, 28, 1), torch.device("cpu")
    ours, coarse = gradients(shape, 2, cpu, "auto", half=half), gradients(shape, 2, cpu, "plain", half=half)
    return ours, coarse, gradients(shape, 2, cpu, "plain", torch.float64)


def without_gradient(exact: dict[str, Tensor]) -> list[str]:
    """Biases of convolutions, which batch norm takes away again."""
    return [name for name in exact if name.endswith("bias") and exact[name].norm() < ZERO * exact[f"{name[:-4]}weight"].norm()]


@pytest.mark.slow
def test_the_engine_has_the_gradients_of_the_layers_one_by_one(three: Three) -> None:
    assert not astray(*three)


@pytest.mark.parametrize("factor", [0, -1, 0.5, 2, torch.nan])
def test_one_tensor_that_is_zeroed_turned_scaled_or_not_a_number_is_found(three: Three, factor: float) -> None:
    ours, coarse, exact = three
    names = [name for name in exact if name not in without_gradient(exact)]
    assert len(names) == 28
    for name in names:
        assert list(astray(ours | {name: factor * ours[name]}, coarse, exact)) == [name]


def test_a_gradient_where_there_is_none_is_found(three: Three) -> None:
    ours, coarse, exact = three
    names = without_gradient(exact)
    assert len(names) == 8  # of four convolutions in the encoder and four in the similarity net
    for name in names:
        wrong = torch.zeros_like(ours[name])
        wrong[0] = exact[f"{name[:-4]}weight"].norm() / 10
        assert list(astray(ours | {name: wrong}, coarse, exact)) == [name]
