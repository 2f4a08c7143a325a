"""MAML against inner steps unrolled by hand with autograd, one task at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.method import MAML, MatchingNet
from sosn.method.adaptation import convolve, dense
from tests import reference
from tests.method.rival_reference import agree
from tests.method.test_sosn import draw

pytestmark = pytest.mark.usefixtures("one_thread")

Moments = list[tuple[Tensor, Tensor]]


def build(steps: int = 1, first_order: bool = False, head: str = "learned") -> MAML:
    torch.manual_seed(0)
    return MAML(
        outputs=3, inner_steps=steps, test_steps=steps, inner_rate=0.2, first_order=first_order, head=head,  # type: ignore[arg-type]
        channels=1, input_size=28, encoder={"name": "conv4_pooled", "width": 5},
    ).double()  # fmt: skip


def tasks(shot: int = 2, way: int = 3) -> Episode:
    return draw(episodes=2, way=way, shot=shot, queries=4)


def apply(weights: list[Tensor], images: Tensor, moments: Moments | None = None) -> tuple[Tensor, Moments]:
    """The network on weights in the order of its layers; normalised by given moments or by its own."""
    x, used = images, []
    for block in range(4):
        kernel, bias, scale, offset = weights[4 * block : 4 * block + 4]
        x = F.conv2d(x, kernel, bias, padding=1)
        mean = x.mean((0, 2, 3)) if moments is None else moments[block][0]
        variance = ((x - x.mean((0, 2, 3), keepdim=True)) ** 2).mean((0, 2, 3)) if moments is None else moments[block][1]
        used.append((mean, variance))
        x = (x - mean[:, None, None]) / torch.sqrt(variance + 1e-5)[:, None, None] * scale[:, None, None] + offset[
            :, None, None
        ]
        x = F.max_pool2d(F.relu(x), 2)
    return x.flatten(1) @ weights[16].T + weights[17], used


def by_hand(model: MAML, episode: Episode, steps: int, first_order: bool, transductive: bool = False) -> Tensor:
    """Logits of the queries after steps of descent, one task after the other."""
    answers = []
    for e in range(len(episode)):
        support, query = episode.support[e].flatten(0, 1), episode.query[e]
        truth = torch.tensor([c for c in range(episode.way) for _ in range(episode.shot)])
        weights: list[Tensor] = list(model.parameters())
        if model.shared:
            weights[16:] = [torch.cat([weights[16]] * episode.way), torch.cat([weights[17]] * episode.way)]
        for _ in range(steps):
            logits, _ = apply(weights, support)
            loss = reference.cross_entropy(logits[None], truth[None])
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            if first_order:
                gradients = tuple(gradient.detach() for gradient in gradients)
            weights = [weight - 0.2 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        moments = None if transductive else apply(weights, support)[1]
        answers.append(apply(weights, query, moments)[0])
    return torch.stack(answers)


@pytest.mark.parametrize("head", ["learned", "shared"])
@pytest.mark.parametrize("first_order", [False, True], ids=["second order", "first order"])
@pytest.mark.parametrize("steps", [1, 2])
def test_inner_steps_are_those_unrolled_by_hand_in_value_and_gradient(steps: int, first_order: bool, head: str) -> None:
    model, episode = build(steps, first_order, head), tasks()
    assert episode.labels is not None
    expected = by_hand(model, episode, steps, first_order)
    agree(model, episode, expected, reference.cross_entropy(expected, episode.labels), "cross_entropy")


def test_first_and_second_order_give_the_same_scores_and_other_gradients() -> None:
    episode = tasks()
    second, first = (build(1, order) for order in (False, True))
    torch.testing.assert_close(second(episode), first(episode), rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(m.loss(episode, "cross_entropy"), list(m.parameters())) for m in (second, first)]
    assert max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True)) > 1e-3


def test_steps_may_be_more_at_test_time() -> None:
    model, episode = build(1).eval(), tasks()
    model.test_steps = 3
    with torch.no_grad():
        scores = model.logits(episode)
    torch.testing.assert_close(scores, by_hand(model, episode, 3, first_order=True).detach(), rtol=0, atol=1e-8)


def test_batch_statistics_normalise_queries_by_their_moments() -> None:
    model, episode = build(1).eval(), tasks()
    with torch.no_grad():
        scores = model(episode, statistics="batch")
    expected = by_hand(model, episode, 1, first_order=True, transductive=True).softmax(-1)
    torch.testing.assert_close(scores, expected.detach(), rtol=0, atol=1e-8)


def test_another_number_of_classes_is_refused_unless_the_head_is_shared() -> None:
    with pytest.raises(UsageError, match="2 classes and MAML's head 3 outputs: train with outputs=2, or with head=shared"):
        build()(tasks(way=2))
    assert build(head="shared")(tasks(way=2)).shape == (2, 4, 2)


def test_one_convolution_with_zeros_between_tasks_is_one_in_groups() -> None:
    weight, maps = torch.rand(3, 4, 2, 3, 3, dtype=torch.float64), torch.rand(5, 6, 7, 7, dtype=torch.float64)
    bias = torch.rand(3, 4, dtype=torch.float64)
    one = F.conv2d(maps, dense(weight), bias.flatten(), padding=1)
    torch.testing.assert_close(one, convolve(maps, weight, bias, torch.nn.Conv2d(2, 4, 3, padding=1)))
    strided = convolve(maps, weight, bias, torch.nn.Conv2d(2, 4, 3, stride=2))
    torch.testing.assert_close(strided, one[..., 1:-1:2, 1:-1:2])
    for task in range(3):
        own = F.conv2d(maps[:, 2 * task : 2 * task + 2], weight[task], bias[task], padding=1)
        torch.testing.assert_close(one[:, 4 * task : 4 * task + 4], own)


def test_adaptation_lowers_the_loss_on_the_support_images() -> None:
    model, episode = build(0).eval(), tasks(shot=1)
    truth = torch.arange(3).expand(2, -1)
    as_queries = Episode(episode.support, episode.support[:, :, 0], truth)
    losses = []
    for steps in (0, 1, 5):
        model.test_steps = steps
        with torch.no_grad():
            losses.append(model.loss(as_queries, "cross_entropy").item())
    assert losses[0] > losses[1] > losses[2]


def test_a_matching_net_is_fine_tuned_on_its_support_set_by_hand() -> None:
    torch.manual_seed(0)
    model = MatchingNet(
        scale=4.0, fine_tune_steps=2, fine_tune_rate=0.3, channels=1, input_size=28,
        encoder={"name": "conv4_pooled", "width": 5},
    ).double()  # fmt: skip
    episode = tasks()
    assert model.adapts
    with torch.no_grad():
        plain = MatchingNet(**model.config | {"fine_tune_steps": 0}).double()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(model.train()(episode), plain.train()(episode))  # no fine-tuning in training
        plain.load_state_dict(model.state_dict())
        before, after = plain.eval()(episode), model.eval()(episode)
    with torch.inference_mode():
        assert torch.equal(model(episode), after)
    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    moments: Moments = []
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        moments.append((norm.running_mean, norm.running_var))
    identity = [torch.eye(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)]  # the head of the network above
    for e in range(2):
        support, query = episode.support[e].flatten(0, 1), episode.query[e]
        weights: list[Tensor] = list(model.parameters())

        def chances(weights: list[Tensor], images: Tensor, support: Tensor = support) -> Tensor:
            vectors, own = apply([*weights, *identity], images, moments)[0], apply([*weights, *identity], support, moments)[0]
            cosines = torch.cosine_similarity(vectors[:, None], own[None], dim=-1)
            return (4.0 * cosines).softmax(-1).reshape(len(images), 3, 2).sum(-1)

        for _ in range(2):
            own = chances(weights, support)
            loss = -torch.log(torch.stack([own[n, n // 2] for n in range(6)])).mean()
            gradients = torch.autograd.grad(loss, weights)
            weights = [(w - 0.3 * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]
        torch.testing.assert_close(after[e], chances(weights, query).detach(), rtol=0, atol=1e-8)
    assert (before - after).abs().max() > 1e-3
