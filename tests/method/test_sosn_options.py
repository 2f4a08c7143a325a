"""What SoSN offers beyond the paper, off unless asked for: test-time augmentation and cosines of matrices."""

import math
from itertools import product

import pytest
import torch

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.method import SoSN
from sosn.method.test_time import scaled, turned
from sosn.second_order import autocorrelation, trace_normalise, upper_triangle

pytestmark = pytest.mark.usefixtures("one_thread")


def build(**settings: object) -> SoSN:
    torch.manual_seed(0)
    return SoSN(channels=1, input_size=28, **settings).double()  # type: ignore[arg-type]


def draw(shot: int = 1) -> Episode:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 3 * shot + 4, 1, 28, 28, generator=generator, dtype=torch.float64)
    classes = torch.tensor([[4, 0, 2], [1, 3, 0]])
    return Episode(images[:, 4:].unflatten(1, (3, shot)), images[:, :4], torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]]), classes)


def test_mirror_pools_the_vectors_of_the_mirror_image_in_evaluation_alone() -> None:
    model, plain = build(test_time={"mirror": True}), build()
    model.load_state_dict(plain.state_dict())
    episode = draw()
    torch.testing.assert_close(model.train().logits(episode), plain.train().logits(episode))
    model.eval(), plain.eval()
    images = episode.query[0]
    model.load_state_dict(plain.state_dict())
    both = autocorrelation(model.encode(images))
    parts = (autocorrelation(plain.encode(one)) for one in (images, images.flip(-1)))
    torch.testing.assert_close(both, sum(parts, torch.zeros(())) / 2)


def test_with_mirror_an_image_and_its_mirror_image_score_the_same() -> None:
    model, episode = build(test_time={"mirror": True}).eval(), draw()
    turned = Episode(episode.support, episode.query.flip(-1), episode.labels)
    torch.testing.assert_close(model(episode), model(turned))


@pytest.mark.slow
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("options", [{"scales": 1}, {"turns": 1}, {"scales": 1, "turns": 1}])
def test_smaller_larger_and_turned_copies_are_pooled_in_evaluation_alone(mirror: bool, options: dict[str, int]) -> None:
    model, plain = build(test_time={"mirror": mirror, **options}), build()
    model.load_state_dict(plain.state_dict())
    episode = draw()
    torch.testing.assert_close(model.train().logits(episode), plain.train().logits(episode))
    model.eval(), plain.eval()
    model.load_state_dict(plain.state_dict())
    images = episode.query[0]
    sides = [images, images.flip(-1)] if mirror else [images]
    copies = list(sides)
    for side in sides:
        copies += [scaled(side, math.exp(sign * 0.15)) for sign in (1, -1) if "scales" in options]
        copies += [turned(side, sign * 6) for sign in (1, -1) if "turns" in options]
    parts = [autocorrelation(plain.encode(copy)) for copy in copies]
    torch.testing.assert_close(autocorrelation(model.encode(images)), torch.stack(parts).mean(0))


def test_cosine_adds_that_of_matrices_standardised_as_in_training() -> None:
    plain, model = build(relation="ranked"), build(relation="ranked", cosine=5.0)
    assert set(model.state_dict()) - set(plain.state_dict()) == {
        f"standardise.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert model.standardise is not None
    episode = draw(2)
    for one in (plain, model):
        one.load_state_dict(plain.state_dict(), strict=False)
        one.eval()
    model.standardise.running_mean.uniform_(0, 0.2)  # type: ignore[union-attr]
    model.standardise.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    support, query = model._episode_features(episode)
    matrices = torch.tanh(50 * trace_normalise(autocorrelation(torch.cat((support[:, :, 0], support[:, :, 1]), -1))))
    other = torch.tanh(50 * trace_normalise(autocorrelation(query)))
    mean, var = model.standardise.running_mean, model.standardise.running_var
    assert mean is not None
    assert var is not None
    expected = torch.zeros(2, 4, 3, dtype=torch.float64)
    for e, q, c in product(range(2), range(4), range(3)):
        a, b = (torch.tensor([m[i, j] for i in range(64) for j in range(i, 64)]) for m in (matrices[e, c], other[e, q]))
        a, b = ((one - mean) / (var + 1e-5).sqrt() for one in (a, b))
        expected[e, q, c] = a @ b / (a.norm() * b.norm())
    torch.testing.assert_close(model.logits(episode), plain.logits(episode) + 5 * expected)


def test_in_training_cosines_are_standardised_by_the_images_of_the_step_which_are_remembered() -> None:
    model, episode = build(cosine=5.0).train(), draw()
    assert model.standardise is not None
    model.standardise.momentum = 1.0
    model.logits(episode)
    images = torch.cat((episode.support.flatten(0, 2), episode.query.flatten(0, 1)))
    matrices = torch.tanh(50 * trace_normalise(autocorrelation(model.encoder(images).flatten(2))))
    assert model.standardise.running_mean is not None
    torch.testing.assert_close(model.standardise.running_mean, upper_triangle(matrices).mean(0))


def test_invalid_options_are_refused() -> None:
    with pytest.raises(UsageError, match="cosine is -1"):
        build(cosine=-1.0)
    for copies in ({"mirror": True}, {"scales": 1}, {"turns": 1}):
        with pytest.raises(UsageError, match="test-time augmentation gives more: set eta"):
            build(eta=None, test_time=copies)
        with pytest.raises(UsageError, match="does not work with mean_image"):
            build(preprocessing={"mean_image": True}, test_time=copies)
    for name, count in product(("scales", "turns"), (-1, 5, 1.5, 2.0, True)):
        with pytest.raises(UsageError, match=f"{name} is {count}"):
            build(test_time={name: count})
    with pytest.raises(UsageError, match="cosine compares a matrix of each side"):
        build(cosine=1.0, relation="full", encoder={"width": 32})
