"""Baseline and Baseline++: the classifier of training, and the head for new classes against autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.errors import UsageError
from sosn.method import Baseline, BaselinePlusPlus
from sosn.method.baseline import cosine_head, linear_head
from sosn.second_order import upper_triangle
from tests import reference
from tests.method import rival_reference
from tests.method.test_rivals import episode, make

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
def test_training_learns_to_classify_all_training_classes(name: str) -> None:
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
    with pytest.raises(UsageError, match="class number 8 is too high for 4 classes"):
        make("baseline", classes=4).loss(episode(), "cross_entropy")


def test_both_adapt_at_test_time() -> None:
    assert Baseline.adapts
    assert BaselinePlusPlus.adapts


# --- what is classified -----------------------------------------------------------------------------------------------


def described(maps: Tensor, features: str) -> Tensor:
    """One image's map (K, N) as it is classified, an entry at a time."""
    if features == "mean":
        return torch.stack([row.sum() / len(row) for row in maps])
    matrix = reference.autocorrelation(maps, 0.5)
    matrix = 2 / (1 + torch.exp(-20.0 * matrix / (reference.trace(matrix) + 1e-6))) - 1
    side = range(len(maps))
    return torch.stack([matrix[i, j] * (1 if i == j else math.sqrt(2)) for i in side for j in side if j >= i])


@pytest.mark.parametrize("features", ["mean", "second_order"])
@pytest.mark.parametrize("name", ["baseline", "baseline++"])
def test_means_and_second_order_matrices_are_classified_as_the_formula_says(name: str, features: str) -> None:
    method, tasks = make(name, encoder="conv4", features=features, eta=20.0, shift=0.5), episode(2)
    assert isinstance(method, Baseline)
    assert tasks.labels is not None
    assert tasks.classes is not None
    assert method.classifier.in_features == (6 if features == "mean" else 21)
    maps = rival_reference.encode(method, torch.cat((tasks.support.flatten(0, 2), tasks.query.flatten(0, 1))))
    vectors = torch.stack([described(one, features) for one in maps])
    logits = method.classify(vectors)
    truth = [int(tasks.classes[e, c]) for e in range(2) for c in range(3) for _ in range(2)]
    truth += [int(tasks.classes[e, tasks.labels[e, q]]) for e in range(2) for q in range(4)]
    expected = -torch.stack([torch.log_softmax(row, 0)[label] for row, label in zip(logits, truth, strict=True)]).mean()
    loss = method.loss(tasks, "cross_entropy")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
    parameters = list(method.parameters())
    for mine, theirs in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def test_the_upper_triangle_keeps_inner_products() -> None:
    a, b = (matrix + matrix.mT for matrix in torch.randn(2, 3, 5, 5, dtype=torch.float64))
    torch.testing.assert_close(
        (upper_triangle(a, isometric=True) * upper_triangle(b, isometric=True)).sum(-1), (a * b).sum((-2, -1))
    )


@pytest.mark.parametrize("features", ["flat", "second_order"])
def test_the_nearest_head_answers_by_the_cosine_to_the_mean_of_the_shots(features: str) -> None:
    method, tasks = make("baseline", encoder="conv4", features=features, head="nearest", eta=20.0, shift=0.5).eval(), episode(2)
    assert isinstance(method, Baseline)
    assert not method.adapts
    images = torch.cat((tasks.support.flatten(0, 2), tasks.query.flatten(0, 1)))
    with torch.no_grad():
        maps = rival_reference.encode(method, images, running=True)
        vectors = maps.flatten(1) if features == "flat" else torch.stack([described(one, features) for one in maps])
        shots, queries = vectors[:12].unflatten(0, (2, 3, 2)), vectors[12:].unflatten(0, (2, 4))
        classes = (shots[:, :, 0] + shots[:, :, 1]) / 2
        cosines = [[[rival_reference.cosine(q, c) for c in classes[e]] for q in queries[e]] for e in range(2)]
        torch.testing.assert_close(method(tasks), (10 * torch.tensor(cosines).double()).softmax(-1), rtol=0, atol=1e-6)


def test_resnet12_is_averaged_over_positions_by_default() -> None:
    resnet12 = {"name": "resnet12", "first_width": 2}
    widths = {"auto": 6, "mean": 6, "flat": 6 * 3 * 3, "second_order": 21}
    for features, width in widths.items():
        method = make("baseline", encoder=resnet12, features=features)
        assert isinstance(method, Baseline)
        assert method.classifier.in_features == width
    whole = make("baseline", encoder=resnet12 | {"width": 0})
    assert isinstance(whole, Baseline)
    assert whole.classifier.in_features == 20  # all features of the last stage, as the literature has it


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": "third"}, "features is 'third'; choose auto, flat, mean or second_order"),
        ({"head": "none"}, "head is 'none'; choose fitted or nearest"),
    ],
)
def test_invalid_options_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("baseline", **settings)


@pytest.mark.parametrize("name", ["baseline", "baseline++"])
def test_standard_scores_are_what_is_classified_and_compared(name: str) -> None:
    options = {"encoder": "conv4", "features": "second_order", "head": "nearest", "input_size": 28}
    method, tasks = make(name, **options, standard_scores=True), episode(2)
    plain = make(name, **options)
    assert isinstance(method, Baseline)
    assert isinstance(plain, Baseline)
    assert method.standardise is not None

    def entries(maps: Tensor) -> Tensor:
        return upper_triangle(plain.relation.describe_query(maps.flatten(-2)).squeeze(-3))

    plain.load_state_dict({key: value for key, value in method.state_dict().items() if not key.startswith("standardise")})
    support, query = (entries(maps) for maps in plain._episode_features(tasks))
    vectors = torch.cat((support.flatten(0, 2), query.flatten(0, 1)))
    scores = (vectors - vectors.mean(0)) / (vectors.var(0, correction=0) + method.standardise.eps).sqrt()
    assert tasks.labels is not None
    assert tasks.classes is not None
    truth = torch.cat(
        (tasks.classes.repeat_interleave(support.shape[2], 1).flatten(), tasks.classes.gather(1, tasks.labels).flatten())
    )
    method.train()
    expected = F.cross_entropy(plain.classify(scores), truth)
    assert method.loss(tasks, "cross_entropy").item() == pytest.approx(expected.item(), rel=1e-6)
    method.eval()
    with torch.no_grad():
        for name, buffer in method.standardise.named_buffers():
            buffer.copy_({"running_mean": vectors.mean(0), "running_var": vectors.var(0, correction=0)}.get(name, buffer))
    shift, spread = vectors.mean(0), (vectors.var(0, correction=0) + method.standardise.eps).sqrt()
    plain.load_state_dict({key: value for key, value in method.state_dict().items() if not key.startswith("standardise")})
    plain.eval()
    support, query = (entries(maps) for maps in plain._episode_features(tasks))
    cosines = F.cosine_similarity(((query - shift) / spread)[:, :, None], ((support - shift) / spread).mean(2)[:, None], dim=-1)
    torch.testing.assert_close(method.logits(tasks), 10 * cosines, rtol=1e-5, atol=1e-5)
