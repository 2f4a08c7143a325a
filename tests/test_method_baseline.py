"""Baseline and Baseline++: the classifier of training, and the head for new classes against autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rival_reference
from sosn.errors import UsageError
from sosn.method import Baseline, BaselinePlusPlus
from sosn.method.baseline import cosine_head, linear_head
from test_rivals import episode, make

pytestmark = pytest.mark.usefixtures("one_thread")


def vectors(shot: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(2, 3, shot, 4, generator=generator, dtype=torch.float64)
    return support, torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shot", [1, 3])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_head_goes_down_the_gradient_that_autograd_finds(kind: str, shot: int) -> None:
    support, query = vectors(shot)
    rate, decay, scale, steps = 0.3, 0.01, 3.0, 4
    if kind == "linear":
        result = linear_head(support, query, steps, rate, decay)
    else:
        result = cosine_head(support, query, steps, rate, decay, scale)
    truth = torch.tensor([c for c in range(3) for _ in range(shot)])
    for e in range(2):
        images = support[e].flatten(0, 1)
        weight = torch.zeros(3, 4, dtype=torch.float64) if kind == "linear" else F.normalize(support[e], dim=-1).mean(1)
        bias = torch.zeros(3, dtype=torch.float64)

        def head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            if kind == "linear":
                return x @ weight.T + bias
            return scale * torch.cosine_similarity(x[:, None], weight[None], dim=-1) + 0 * bias

        for _ in range(steps):
            weight, bias = weight.requires_grad_(), bias.requires_grad_()
            loss = F.cross_entropy(head(images, weight, bias), truth)
            gradients = torch.autograd.grad(loss, (weight, bias))
            weight = (weight - rate * (gradients[0] + decay * weight)).detach()
            bias = (bias - rate * (gradients[1] + decay * bias)).detach()
        torch.testing.assert_close(result[e], head(query[e], weight, bias), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["baseline", "baseline++"])
def test_training_tells_all_training_classes_apart(name: str) -> None:
    method, tasks = make(name), episode(2)
    assert isinstance(method, Baseline)
    assert tasks.labels is not None
    assert tasks.classes is not None
    maps = rival_reference.encode(method, torch.cat((tasks.support.flatten(0, 2), tasks.query.flatten(0, 1)))).flatten(1)
    truth = [int(tasks.classes[e, c]) for e in range(2) for c in range(3) for _ in range(2)]
    truth += [int(tasks.classes[e, tasks.labels[e, q]]) for e in range(2) for q in range(4)]
    layer, terms = method.classifier, []
    for vector, label in zip(maps, truth, strict=True):
        if name == "baseline":
            logits = layer.weight @ vector + layer.bias
        else:
            logits = torch.stack([10.0 * rival_reference.cosine(vector, row) for row in layer.weight])
        terms.append(torch.log(torch.exp(logits).sum()) - logits[label])
    expected, loss = torch.stack(terms).mean(), method.loss(tasks, "cross_entropy")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
    parameters = list(method.parameters())
    for mine, theirs in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["baseline", "baseline++"])
def test_scores_are_the_softmax_of_the_fitted_head(name: str) -> None:
    method, tasks = make(name).eval(), episode(2)
    with torch.no_grad():
        support = rival_reference.encode(method, tasks.support.flatten(0, 2), running=True).reshape(2, 3, 2, -1)
        query = rival_reference.encode(method, tasks.query.flatten(0, 1), running=True).reshape(2, 4, -1)
        fit = (support, query, 7, 0.01, 0.001)
        logits = linear_head(*fit) if name == "baseline" else cosine_head(*fit, 10.0)
        torch.testing.assert_close(method(tasks), logits.softmax(-1), rtol=0, atol=1e-8)


def test_a_classifier_needs_class_numbers_and_cross_entropy() -> None:
    method, tasks = make("baseline"), episode()
    with pytest.raises(UsageError, match="trains on labels and class numbers"):
        method.loss(type(tasks)(tasks.support, tasks.query, tasks.labels), "cross_entropy")
    with pytest.raises(UsageError, match="loss is 'mse'; method 'baseline' is a classifier: set loss=cross_entropy"):
        method.loss(tasks, "mse")


def test_a_class_beyond_the_classifier_is_refused() -> None:
    with pytest.raises(UsageError, match="class number 8 among 4 classes"):
        make("baseline", classes=4).loss(episode(), "cross_entropy")


def test_both_adapt_at_test_time() -> None:
    assert Baseline.adapts
    assert BaselinePlusPlus.adapts
