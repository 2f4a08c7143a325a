"""TwoOrders against its formula, written out for one image."""

from typing import Any

import pytest
import torch

from sosn.errors import UsageError
from sosn.method.two_orders import SCALE, TwoOrders

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"channels": 1, "input_size": 28, "encoder": {"width": 6}}


def test_an_image_is_its_power_normalised_mean_and_matrix() -> None:
    method = TwoOrders(weight=0.3, root=0.5, eta=50.0, **SMALL).double().eval()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    with torch.no_grad():
        found, maps = method.encode(images), method.encoder(images).flatten(2)
    for vector, features in zip(found, maps, strict=True):
        first = features.mean(-1).sqrt()
        matrix = features @ features.T / features.shape[-1]
        matrix = matrix / (matrix.trace() + 1e-6)
        normal = 2 / (1 + torch.exp(-50 * matrix)) - 1
        second = torch.stack([normal[i, j] * (1 if i == j else 2**0.5) for i in range(6) for j in range(i, 6)])
        expected = torch.cat((0.7**0.5 * first / first.norm(), 0.3**0.5 * second / second.norm()))
        torch.testing.assert_close(vector, expected)


def test_classes_are_means_and_scores_are_cosines() -> None:
    method = TwoOrders(**SMALL)
    shots, query = torch.rand(3, 2, 8), torch.rand(4, 1, 8)
    classes, queries = method.describe(shots), method.describe(query)
    logits = method.compare(classes[None], queries[None])[0]
    expected = torch.cosine_similarity(query[:, 0, None], shots.mean(1)[None], dim=-1)
    torch.testing.assert_close(logits, SCALE * expected)
    torch.testing.assert_close(method.score(logits), expected)


def test_the_reduction_is_orthonormal_and_the_same_every_time() -> None:
    first, again = (TwoOrders(reduce=4, widen=9, **SMALL) for _ in range(2))
    assert first.reduce is not None
    assert again.reduce is not None
    rows = first.reduce.weight[..., 0, 0]
    torch.testing.assert_close(rows @ rows.T, torch.eye(4), rtol=0, atol=1e-6)
    assert torch.equal(first.reduce.weight, again.reduce.weight)
    assert first.encode(torch.rand(2, 1, 28, 28)).shape == (2, 9 + 10)


@pytest.mark.parametrize("options", [{"weight": 2.0}, {"root": 0.0}, {"reduce": 7}, {"widen": -1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        TwoOrders(**SMALL | options)
