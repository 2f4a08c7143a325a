"""Meta-Learner LSTM against its update rule written out, one task after the other."""

import math

import pytest
import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.method import MetaLSTM
from sosn.method.meta_lstm import scaled
from tests import reference
from tests.method.rival_reference import _gates, agree
from tests.method.test_maml import apply, tasks

pytestmark = pytest.mark.usefixtures("one_thread")


def build(steps: int) -> MetaLSTM:
    torch.manual_seed(0)
    model = MetaLSTM(
        outputs=3, hidden=3, inner_steps=steps, initial_rate=0.1,
        channels=1, input_size=28, encoder={"name": "conv4_pooled", "width": 2},
    ).double()  # fmt: skip
    for gate in (model.keep, model.rate):
        torch.nn.init.normal_(gate.weight, 0.0, 0.5)
    return model


def two_numbers(value: float) -> list[float]:
    """(log|x|/p, sign x) where |x| ≥ e⁻ᵖ, else (−1, eᵖx), for p = 10."""
    if abs(value) >= math.exp(-10):
        return [math.log(abs(value)) / 10, math.copysign(1.0, value)]
    return [-1.0, math.exp(10) * value]


def test_gradients_and_losses_are_scaled_as_published() -> None:
    values = [0.0, 1.0, -3.0, 1e-3, -1e-7, 5e-5, 2e4]
    expected = torch.tensor([two_numbers(value) for value in values], dtype=torch.float64)
    torch.testing.assert_close(scaled(torch.tensor(values, dtype=torch.float64)), expected)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_update_rule_is_the_published_one_in_value_and_gradient(steps: int) -> None:
    model, episode = build(steps), tasks()
    assert episode.labels is not None
    network = [*model.encoder.parameters(), *model.head.parameters()]
    answers = []
    for e in range(2):
        support, query = episode.support[e].flatten(0, 1), episode.query[e]
        truth = torch.tensor([[0, 0, 1, 1, 2, 2]])
        theta: list[Tensor] = list(network)
        count = sum(weight.numel() for weight in network)
        hidden = [torch.zeros(3, dtype=torch.float64)] * count
        cell = list(hidden)
        keep, rate = [torch.ones(1, dtype=torch.float64)] * count, [torch.zeros(1, dtype=torch.float64)] * count
        for _ in range(steps):
            still = [weight.detach().requires_grad_() for weight in theta]
            loss = reference.cross_entropy(apply(still, support)[0][None], truth)
            flat = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, still)])
            scaled_loss = two_numbers(loss.item())
            values = torch.cat([weight.flatten() for weight in theta])
            moved = []
            for n in range(count):  # one weight after the other
                x = torch.tensor([*two_numbers(flat[n].item()), *scaled_loss], dtype=torch.float64)
                hidden[n], cell[n] = _gates(model.watch, "", x, hidden[n], cell[n])
                own = torch.cat((hidden[n], values[n : n + 1]))
                keep[n] = torch.sigmoid(model.keep.weight[0] @ torch.cat((own, keep[n])) + model.keep.bias)
                rate[n] = torch.sigmoid(model.rate.weight[0] @ torch.cat((own, rate[n])) + model.rate.bias)
                moved.append(keep[n] * values[n] - rate[n] * flat[n])
            parts = torch.cat(moved).split([weight.numel() for weight in network])
            theta = [part.view(weight.shape) for part, weight in zip(parts, network, strict=True)]
        answers.append(apply(theta, query, apply(theta, support)[1])[0])
    expected = torch.stack(answers)
    agree(model, episode, expected, reference.cross_entropy(expected, episode.labels), "cross_entropy")


def test_a_new_one_is_nearly_plain_descent() -> None:
    model = MetaLSTM(channels=1, input_size=28, encoder={"name": "conv4_pooled", "width": 2}, initial_rate=0.1)
    theta, gradient = torch.randn(2, 7), torch.randn(2, 7)
    moved, _ = model.update(theta, gradient, torch.tensor([1.5, 0.2]), None)
    torch.testing.assert_close(moved, theta - 0.1 * gradient, rtol=0, atol=0.05)


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(UsageError, match="2 classes and the classifier 3 outputs: train with outputs=2"):
        build(1)(tasks(way=2))
