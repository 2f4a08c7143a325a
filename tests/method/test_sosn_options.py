"""What SoSN offers beyond the paper, off unless asked for: places of features, copies of images, a second loss."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.method import SoSN
from sosn.method.test_time import scaled, turned
from sosn.second_order import autocorrelation, place_codes, trace_normalise, upper_triangle

pytestmark = pytest.mark.usefixtures("one_thread")


def build(**settings: object) -> SoSN:
    torch.manual_seed(0)
    return SoSN(channels=1, input_size=28, **settings).double()  # type: ignore[arg-type]


def draw(shot: int = 1) -> Episode:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 3 * shot + 4, 1, 28, 28, generator=generator, dtype=torch.float64)
    classes = torch.tensor([[4, 0, 2], [1, 3, 0]])
    return Episode(images[:, 4:].unflatten(1, (3, shot)), images[:, :4], torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]]), classes)


def test_a_place_is_nearest_to_its_own_pivot_and_has_length_1_along_each_side() -> None:
    codes = place_codes(6, 4, 2)
    assert codes.shape == (4, 6, 4)
    assert codes[:2].argmax(0)[:, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert codes[2:].argmax(0)[0].tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(codes[:2].norm(dim=0), torch.ones(6, 4))
    torch.testing.assert_close(codes[2:].norm(dim=0), torch.ones(6, 4))
    first, second = (math.exp(-0.5 * ((1 / 12 - centre) * 2 / 0.6) ** 2) for centre in (0.25, 0.75))
    assert codes[0, 0, 0].item() == pytest.approx(first / math.hypot(first, second))


def test_matrices_with_places_hold_the_plain_ones_and_where_each_feature_was() -> None:
    plain, placed = build(), build(coordinates=3, coordinate_weight=2.0)
    placed.encoder.load_state_dict(plain.encoder.state_dict())
    images = draw().query[0]
    phi, more = plain.eval().encode(images), placed.eval().encode(images)
    assert more.shape == (4, 70, 25)
    torch.testing.assert_close(more[:, :64], phi)
    where = 2.0 * place_codes(5, 5, 3).flatten(1).double()
    matrix = autocorrelation(more)
    torch.testing.assert_close(matrix[:, :64, 64:], phi @ where.T / 25)
    torch.testing.assert_close(matrix[:, :64, :64], autocorrelation(phi))


def test_only_places_tell_a_picture_from_its_features_moved_about() -> None:
    phi = build().eval().encode(draw().query[0])
    moved = phi.flip(-1)
    torch.testing.assert_close(autocorrelation(phi), autocorrelation(moved))
    where = place_codes(5, 5, 3).flatten(1).double().expand(4, -1, -1)
    first, second = (autocorrelation(torch.cat((one, where), 1)) for one in (phi, moved))
    assert (first - second).abs().max() > 1e-3


@pytest.mark.parametrize("relation", ["average", "full", "ranked", "subtract"])
@pytest.mark.parametrize("engine_off", [False, True])
def test_places_go_with_every_relation_and_with_permutations(relation: str, engine_off: bool) -> None:
    from sosn.kernel import engine

    model = build(coordinates=2, relation=relation, permutations=2, streams=2).eval()
    with engine("plain" if engine_off else "auto"), torch.no_grad():
        assert model(draw(2)).shape == (2, 4, 3)


def test_mirror_pools_the_vectors_of_the_mirror_image_in_evaluation_alone() -> None:
    model, plain = build(mirror=True), build()
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
    model, episode = build(mirror=True).eval(), draw()
    turned = Episode(episode.support, episode.query.flip(-1), episode.labels)
    torch.testing.assert_close(model(episode), model(turned))


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("options", [{"scales": 1}, {"turns": 1}, {"scales": 1, "turns": 1}])
def test_smaller_larger_and_turned_copies_are_pooled_in_evaluation_alone(mirror: bool, options: dict[str, int]) -> None:
    model, plain = build(mirror=mirror, **options), build()
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


def by_hand(model: SoSN, episode: Episode) -> Tensor:
    """Cross-entropy of the training classes of all images, from their matrices, in training mode."""
    images = torch.cat((episode.support.flatten(0, 2), episode.query.flatten(0, 1)))
    maps = model.encoder(images).flatten(2)
    matrices = torch.tanh(0.5 * 100 * trace_normalise(autocorrelation(maps)))
    assert model.classifier is not None
    assert episode.classes is not None
    assert episode.labels is not None
    truth = [*episode.classes.flatten().tolist()]
    truth += [episode.classes[e, label].item() for e in range(2) for label in episode.labels[e].tolist()]
    return F.cross_entropy(model.classifier(upper_triangle(matrices, isometric=True)), torch.tensor(truth))


def test_the_auxiliary_loss_is_added_with_its_weight() -> None:
    model, episode = build(auxiliary=0.3, classes=5).train(), draw()
    expected = model.loss_of(model.logits(episode), episode.labels, "mse") + 0.3 * by_hand(model, episode)
    torch.testing.assert_close(model.loss(episode), expected)


def test_without_it_there_is_no_second_head_and_answers_are_the_same() -> None:
    plain, model = build(classes=5), build(auxiliary=0.3, classes=5)
    assert plain.classifier is None
    assert set(model.state_dict()) - set(plain.state_dict()) == {"classifier.weight", "classifier.bias"}
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    torch.testing.assert_close(model.eval()(draw()), plain.eval()(draw()))


def test_a_model_that_shed_its_second_head_answers_as_before_and_is_built_again_without_it() -> None:
    model, episode = build(auxiliary=0.3, classes=5).eval(), draw()
    before = model(episode)
    model.shed()
    again = SoSN(**model.config).double().eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(episode), before)


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
    support, query = model._maps(episode)
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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="coordinates is -1"):
        build(coordinates=-1)
    with pytest.raises(UsageError, match="coordinate_weight is 0"):
        build(coordinates=2, coordinate_weight=0.0)
    with pytest.raises(UsageError, match="cosine is -1"):
        build(cosine=-1.0)
    for copies in ({"mirror": True}, {"scales": 1}, {"turns": 1}):
        with pytest.raises(UsageError, match=f"{next(iter(copies))} gives more"):
            build(eta=None, **copies)
        with pytest.raises(UsageError, match="mean image"):
            build(mean_image=True, **copies)
    for name, count in product(("scales", "turns"), (-1, 5, 1.5, 2.0, True)):
        with pytest.raises(UsageError, match=f"{name} is {count}"):
            build(**{name: count})
    with pytest.raises(UsageError, match="cosine compares matrices"):
        build(cosine=1.0, relation="full", encoder_width=32)
    with pytest.raises(UsageError, match="needs 2 classes"):
        build(auxiliary=1.0)
    with pytest.raises(UsageError, match="class number 4 among 3"):
        build(auxiliary=1.0, classes=3).loss(draw())
    episode = draw()
    with pytest.raises(UsageError, match="class numbers"):
        build(auxiliary=1.0, classes=5).loss(Episode(episode.support, episode.query, episode.labels))
