"""The whole model against the loop-by-loop reference, and what holds of it."""

import math
from itertools import product
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import sosn
from sosn.encoder import Conv4
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.kernel import engine
from sosn.method import METHODS, SoSN, method_class
from sosn.method.base import LossName
from sosn.method.initialisation import initialise
from sosn.relation import Relation
from sosn.similarity import SimilarityStreams
from tests import reference
from tests.reference import ALLOWED, RELATIONS, Options

pytestmark = pytest.mark.usefixtures("one_thread")


def build(options: Options | None = None, **settings: Any) -> SoSN:
    """A small model in float64, its linear layers enlarged so that answers differ between pairs."""
    if options is not None:
        width = {"width": 32 if options.relation == "full" else 64}
        settings = {"encoder": width, **vars(options), **settings}
    torch.manual_seed(0)
    model = SoSN(**{"channels": 1, "input_size": 28, **settings}).double()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.2)
    return model


def draw(episodes: int = 2, way: int = 2, shot: int = 1, queries: int = 2, channels: int = 1, side: int = 28) -> Episode:
    """Random chequered images, float64 in 0…1, with random labels."""
    generator = torch.Generator().manual_seed(1)

    def images(*shape: int) -> Tensor:
        coarse = torch.rand(*shape, channels, 7, 7, generator=generator, dtype=torch.float64)
        return coarse.repeat_interleave(side // 7, -1).repeat_interleave(side // 7, -2)

    labels = torch.randint(0, way, (episodes, queries), generator=generator)
    return Episode(images(episodes, way, shot), images(episodes, queries), labels)


def reference_logits(
    model: SoSN, episode: Episode, options: Options, statistics: Literal["step", "running", "episode"], linear: bool = False
) -> Tensor:
    nets, orders = list(model.similarity.nets), model.permutations.tolist()
    return reference.logits(model.encoder, nets, episode.support, episode.query, options, orders, statistics, linear)


def move_running_statistics(model: SoSN) -> None:
    """Let the model see images in train mode, so that its running statistics are not those of a new one."""
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in norms:
        layer.momentum = 1.0
    with torch.no_grad():
        model(draw(episodes=3))
    for layer in norms:
        layer.momentum = 0.1


def agrees_in_value_and_gradient(
    model: SoSN, episode: Episode, options: Options, loss: LossName = "mse", linear: bool = False
) -> None:
    """Scores, loss and the gradient of every parameter are those of the reference, to 1e-5 of the largest entry."""
    assert episode.labels is not None
    logits = reference_logits(model, episode, options, "step", linear)
    hand_written = {"mse": reference.mean_squared_error, "cross_entropy": reference.cross_entropy}[loss]
    expected_loss = hand_written(logits, episode.labels)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(expected_loss, parameters)

    torch.testing.assert_close(model.logits(episode), logits, rtol=0, atol=1e-8)
    torch.testing.assert_close(model(episode), torch.sigmoid(logits), rtol=0, atol=1e-8)
    assert torch.sigmoid(logits).std() > 0.01  # pairs differ: the test is not empty
    result_loss = model.loss(episode, loss)
    assert result_loss.item() == pytest.approx(expected_loss.item(), rel=1e-8)
    largest = max(gradient.abs().max().item() for gradient in expected)
    # Batch norm takes away the bias before it, and cross-entropy what all classes share.
    without_effect = {id(layer.bias) for layer in model.modules() if isinstance(layer, nn.Conv2d)}
    if loss == "cross_entropy":
        without_effect |= {id(p) for p in model.parameters() if p.shape == (1,)}
    for (name, parameter), mine, theirs in zip(
        model.named_parameters(), torch.autograd.grad(result_loss, parameters), expected, strict=True
    ):
        if id(parameter) in without_effect:
            assert mine.abs().max().item() < 1e-9 * largest, name
        else:
            scale = theirs.abs().max().item()
            assert scale > 1e-7 * largest, name
            assert (mine - theirs).abs().max().item() < 1e-5 * scale, name


# --- training mode, in value and gradient -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "power_norm"), ALLOWED)
def test_every_relation_with_every_norm_agrees_with_loops(relation: str, power_norm: str) -> None:
    options = Options(relation, power_norm, eta=20.0, rho=0.4)
    agrees_in_value_and_gradient(build(options), draw(), options)


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_soft_maximum_agrees_with_loops(relation: str) -> None:
    options = Options(relation, "maxexp_pm", eta=20.0, rho=0.4, softness=500.0)
    agrees_in_value_and_gradient(build(options), draw(), options)


@pytest.mark.slow
@pytest.mark.parametrize(("permutations", "streams"), [(1, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize("relation", RELATIONS)
def test_every_relation_with_permutations_and_streams_agrees_with_loops(relation: str, permutations: int, streams: int) -> None:
    options = Options(relation, alpha=0.6)
    model = build(options, permutations=permutations, streams=streams)
    agrees_in_value_and_gradient(model, draw(shot=3), options)


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
def test_shifted_features_of_both_signs_agree_with_loops(relation: str) -> None:
    options = Options(relation, eta=None, shift=0.4, alpha=0.6)
    width = 32 if relation == "full" else 64
    model = build(options, encoder={"width": width, "features": "linear"})
    agrees_in_value_and_gradient(model, draw(shot=2), options, linear=True)


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_raw_form_agrees_with_loops(relation: str) -> None:
    options = Options(relation, eta=1.0, trace_normalise=False)
    agrees_in_value_and_gradient(build(options), draw(shot=2), options)


@pytest.mark.parametrize("relation", ["average", "ranked", "subtract"])
def test_cross_entropy_agrees_with_loops(relation: str) -> None:
    options = Options(relation)
    agrees_in_value_and_gradient(build(options), draw(way=3), options, "cross_entropy")


def test_full_of_64_features_has_128_rows_and_agrees_with_loops() -> None:
    options = Options("full")
    model = build(options, encoder={"width": 64})
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    assert first.in_features == 64 * 6 * 6
    agrees_in_value_and_gradient(model, draw(episodes=1, way=2, queries=1), options)


def test_full_of_32_features_keeps_the_published_similarity_net_but_for_its_channel() -> None:
    model = SoSN(relation="full", encoder={"width": 32})
    assert sum(p.numel() for p in model.similarity.parameters()) == 114_577 - 9 * 64  # one channel instead of two


def test_colour_images_and_several_classes_agree_with_loops() -> None:
    options = Options()
    agrees_in_value_and_gradient(build(options, channels=3), draw(1, 4, 2, 3, channels=3), options)


def test_preprocessing_comes_before_the_encoder() -> None:
    options = Options()
    model = build(options, preprocessing={"mean": [0.25], "std": [0.5], "polarity": "inverted"})
    episode = draw()
    preprocessed = Episode(((1 - episode.support) - 0.25) / 0.5, ((1 - episode.query) - 0.25) / 0.5)
    torch.testing.assert_close(
        model(episode), torch.sigmoid(reference_logits(model, preprocessed, options, "step")), rtol=0, atol=1e-8
    )


# --- batch norm -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("permutations", "streams"), [(1, 1), (3, 3)])
@pytest.mark.parametrize("relation", RELATIONS)
def test_eval_mode_compares_each_pair_by_running_statistics(relation: str, permutations: int, streams: int) -> None:
    options = Options(relation)
    model = build(options, permutations=permutations, streams=streams)
    move_running_statistics(model)
    episode = draw(shot=2)
    with torch.no_grad():
        expected = torch.sigmoid(reference_logits(model, episode, options, "running"))
        torch.testing.assert_close(model.eval()(episode), expected, rtol=0, atol=1e-8)
    assert expected.std() > 1e-3


@pytest.mark.parametrize("relation", RELATIONS)
def test_batched_episodes_are_single_ones_in_eval_mode(relation: str) -> None:
    model = build(Options(relation))
    move_running_statistics(model)
    model.eval()
    episode = draw(episodes=3, shot=2)
    with torch.no_grad():
        alone = torch.cat([model(episode.one(e)) for e in range(3)])
        torch.testing.assert_close(model(episode), alone, rtol=0, atol=1e-10)


def test_batched_episodes_share_batch_statistics_in_train_mode() -> None:
    model, episode = build(), draw()
    with torch.no_grad():
        alone = torch.cat([model(episode.one(e)) for e in range(2)])
        assert (model(episode) - alone).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_batch_statistics_are_per_episode_and_side(relation: str, training: bool) -> None:
    options = Options(relation)
    model = build(options)
    move_running_statistics(model)
    model.train(training)
    episode = draw(episodes=2, shot=2, queries=3)
    with torch.no_grad():
        expected = torch.sigmoid(reference_logits(model, episode, options, "episode"))
        torch.testing.assert_close(model(episode, statistics="batch"), expected, rtol=0, atol=1e-8)
        assert (expected - model(episode)).abs().max() > 1e-3


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batch_statistics_leave_no_trace(training: bool) -> None:
    model = build()
    move_running_statistics(model)
    model.train(training)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        model(draw(), statistics="batch")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert any("num_batches_tracked" in key for key in before)
    assert [module.training for module in model.modules()] == modes
    with torch.no_grad():
        model.train()(draw())
    assert all((before[key] + 1).equal(value) for key, value in model.state_dict().items() if "num_batches" in key)


def test_batch_statistics_end_when_an_episode_is_refused() -> None:
    model = build().eval()
    with pytest.raises(UsageError, match="channels"):
        model(Episode(torch.rand(1, 2, 1, 2, 28, 28), torch.rand(1, 1, 2, 28, 28)), statistics="batch")
    assert not any(module.training for module in model.modules())
    assert all(layer.track_running_stats for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))


def test_other_statistics_are_refused() -> None:
    with pytest.raises(UsageError, match="choose running or batch"):
        build()(draw(), statistics="moving")


@pytest.mark.slow
def test_all_pairs_of_a_step_are_normalised_as_one_batch_however_many() -> None:
    options = Options()
    model = build(options, encoder={"width": 48})
    episode = draw(episodes=3, way=5, queries=10)  # 150 pairs
    with torch.no_grad():
        expected = reference_logits(model, episode, options, "step")
        torch.testing.assert_close(model.logits(episode), expected, rtol=0, atol=1e-8)


def test_scores_do_not_depend_on_how_many_pairs_are_compared_at_once() -> None:
    model = build().eval()
    episode = draw(episodes=1, way=12, queries=12)  # 144 pairs
    with torch.no_grad():
        together = model(episode)
        for q in (0, 5, 11):
            alone = model(Episode(episode.support, episode.query[:, q : q + 1]))
            torch.testing.assert_close(together[:, q : q + 1], alone, rtol=0, atol=1e-10)


# --- images -----------------------------------------------------------------------------------------------------------


def test_scores_are_between_0_and_1_for_every_query_and_class() -> None:
    scores = build()(draw(episodes=2, way=3, shot=2, queries=4))
    assert scores.shape == (2, 4, 3)
    assert ((scores > 0) & (scores < 1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_images_score_as_their_uint8_originals(dtype: torch.dtype) -> None:
    model = build().eval().to(dtype)
    episode = draw()
    support, query = (images.mul(255).round().to(torch.uint8) for images in (episode.support, episode.query))
    with torch.no_grad():
        whole = model(Episode(support, query))
        assert whole.dtype == dtype
        assert torch.equal(whole, model(Episode(support.to(dtype) / 255, query.to(dtype) / 255)))


def test_images_of_another_size_are_resized() -> None:
    model = build().eval()
    episode = draw(side=56)

    def shrink(images: Tensor) -> Tensor:
        flat = images.flatten(0, -4)
        small = nn.functional.interpolate(flat, (28, 28), mode="bilinear", antialias=True)
        return small.reshape(*images.shape[:-2], 28, 28)

    with torch.no_grad():
        expected = model(Episode(shrink(episode.support), shrink(episode.query)))
        assert torch.equal(model(episode), expected)
        mixed = Episode(episode.support, shrink(episode.query))  # support and query may differ in size
        assert torch.equal(model(mixed), expected)


@pytest.mark.parametrize(("given", "channels"), [(3, 1), (1, 3)])
def test_colour_and_grey_images_are_turned_into_what_the_model_takes(given: int, channels: int) -> None:
    model = build(channels=channels).eval()
    episode = draw(channels=given)

    def turn(images: Tensor) -> Tensor:
        if given == 1:
            return torch.cat([images] * 3, -3)
        red, green, blue = images.unbind(-3)
        return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(-3)

    with torch.no_grad():
        expected = model(Episode(turn(episode.support), turn(episode.query)))
        torch.testing.assert_close(model(episode), expected, rtol=0, atol=1e-10)


def test_labels_do_not_influence_scores() -> None:
    model, episode = build().eval(), draw()
    with torch.no_grad():
        assert torch.equal(model(episode), model(Episode(episode.support, episode.query)))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_blank_images_give_finite_scores_and_gradients(relation: str, level: float) -> None:
    model = build(Options(relation)).float()
    blank = Episode(torch.full((1, 2, 1, 1, 28, 28), level), torch.full((1, 2, 1, 28, 28), level), torch.tensor([[0, 1]]))
    loss = model.loss(blank)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_loss_without_labels_is_refused() -> None:
    episode = draw()
    with pytest.raises(UsageError, match="needs an episode with labels"):
        build().loss(Episode(episode.support, episode.query))


def test_losses_are_means_over_queries_and_classes() -> None:
    model, episode = build().eval(), draw(episodes=2, way=3, queries=4)
    assert episode.labels is not None
    with torch.no_grad():
        scores = model(episode).tolist()
        logits = model.logits(episode).tolist()
        mse, cross_entropy = (model.loss(episode, name).item() for name in ("mse", "cross_entropy"))
    labels = episode.labels.tolist()
    cells = list(product(range(2), range(4), range(3)))
    assert mse == pytest.approx(sum((scores[e][q][c] - (labels[e][q] == c)) ** 2 for e, q, c in cells) / 24, rel=1e-10)
    rows = [(logits[e][q], labels[e][q]) for e in range(2) for q in range(4)]
    expected = sum(math.log(sum(map(math.exp, row))) - row[label] for row, label in rows) / 8
    assert cross_entropy == pytest.approx(expected, rel=1e-10)


def test_mse_is_the_default_loss() -> None:
    model, episode = build().eval(), draw()
    assert model.loss(episode).item() == model.loss(episode, "mse").item()


# --- parameters -------------------------------------------------------------------------------------------------------


def test_the_published_model_has_113_088_and_114_577_parameters() -> None:
    model = sosn.SoSN()
    assert sum(p.numel() for p in model.encoder.parameters()) == 113_088
    assert sum(p.numel() for p in model.similarity.parameters()) == 114_577
    assert model.parameter_count() == 113_088 + 114_577


def test_one_similarity_net_serves_every_image_size() -> None:
    models = {size: SoSN(input_size=size).eval() for size in (28, 84, 224)}
    weights = models[28].state_dict()
    episode = Episode(torch.rand(1, 1, 1, 3, 28, 28), torch.rand(1, 1, 3, 28, 28))
    for size, model in models.items():
        model.load_state_dict(weights)
        maps: list[Tensor] = []
        model.encoder.register_forward_hook(lambda _module, _inputs, output, maps=maps: maps.append(output))
        with torch.no_grad():
            assert model(episode).shape == (1, 1, 1)
        assert maps[0].shape[1:] == {28: (64, 5, 5), 84: (64, 19, 19), 224: (64, 54, 54)}[size]


def test_eta_of_none_is_the_number_of_positions_of_the_map() -> None:
    for size, vectors in ((28, 25.0), (36, 49.0)):
        settings: dict[str, Any] = {"input_size": size, "power_norm": "maxexp_pm"}
        automatic, explicit = build(eta=None, **settings), build(eta=vectors, **settings)
        episode = draw(episodes=1, side=35)
        with torch.no_grad():
            assert torch.equal(automatic.eval()(episode), explicit.eval()(episode))


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, layer) for name, layer in model.named_modules() if list(layer.parameters(recurse=False))]


@pytest.mark.parametrize(("permutations", "streams"), [(1, 1), (3, 3)])
def test_parameters_stand_in_the_order_in_which_data_meets_them(permutations: int, streams: int) -> None:
    model = build(permutations=permutations, streams=streams)
    met: list[str] = []
    for name, layer in layers_of(model):
        layer.register_forward_hook(lambda _module, _inputs, _output, name=name: met.append(name))
    with engine("plain"):  # which calls the layers themselves
        model(draw(episodes=1))
    assert [name for name, _ in layers_of(model)] == met
    assert {type(layer) for _, layer in layers_of(model)} == {nn.Conv2d, nn.BatchNorm2d, nn.Linear}


def test_layers_are_initialised_as_the_authors_did() -> None:
    torch.manual_seed(0)
    for _, layer in layers_of(SoSN(permutations=3, streams=3)):
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert (layer.bias == 0).all()
            assert layer.running_mean is not None
            assert layer.running_var is not None
            assert (layer.running_mean == 0).all()
            assert (layer.running_var == 1).all()
            continue
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        assert layer.bias is not None
        assert (layer.bias == (1 if isinstance(layer, nn.Linear) else 0)).all()
        std = 0.01 if isinstance(layer, nn.Linear) else math.sqrt(2 / (9 * layer.out_channels))
        count = layer.weight.numel()
        if count > 100:
            assert abs(layer.weight.mean().item()) < 4 * std / math.sqrt(count)
            assert abs(layer.weight.std().item() / std - 1) < 4 / math.sqrt(2 * count)


def test_weights_follow_the_seed() -> None:
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in SoSN(channels=1, input_size=28).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_weights_are_drawn_for_the_whole_model_in_the_order_of_its_layers() -> None:
    """Also whatever way they lie in memory, so that a seed stands for the same weights in every version."""
    torch.manual_seed(3)
    model = SoSN(channels=1, input_size=28)
    torch.manual_seed(3)
    parts = nn.ModuleList([Conv4(channels=1), SimilarityStreams(1, 1, 2, 64)])
    initialise(parts)
    for mine, theirs in zip(model.parameters(), parts.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_constructor_arguments_rebuild_the_model() -> None:
    images = {"mean": [0.5], "std": [0.5]}
    model = build(relation="or_like", alpha=0.5, permutations=3, permutation_seed=9, preprocessing=images)
    again = SoSN(**model.config).double()
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again(draw()), model(draw()))


# --- permutations -----------------------------------------------------------------------------------------------------


def test_permutations_are_saved_with_the_weights() -> None:
    model, other = build(permutations=3, permutation_seed=1), build(permutations=3, permutation_seed=2)
    assert torch.equal(model.state_dict()["permutations"], model.permutations)
    with torch.no_grad():
        scores = model.eval()(draw())
        assert not torch.equal(other.eval()(draw()), scores)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(draw()), scores)


def test_permutations_are_of_the_rows_of_the_descriptor() -> None:
    for relation, rows in (("average", 64), ("full", 128)):
        model = SoSN(relation=relation, permutations=3)  # type: ignore[arg-type]
        assert model.permutations.shape == (3, rows)
        assert model.permutations[0].tolist() == list(range(rows))


def test_several_streams_of_one_net_take_as_many_parameters_as_nets() -> None:
    one, three = SoSN(permutations=3, streams=1), SoSN(permutations=3, streams=3)
    assert sum(p.numel() for p in one.similarity.parameters()) == 114_577 + 4 * 9 * 64  # six channels instead of two
    assert sum(p.numel() for p in three.similarity.parameters()) == 3 * 114_577


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "conv5"}, "no encoder 'conv5' .did you mean 'conv4'"),
        ({"encoder": {"features": "tanh"}}, "features is 'tanh'"),
        ({"input_size": 9}, "input_size is 9"),
        ({"encoder": {"width": 45}}, "46 rows or more, not 45"),
        ({"power_norm": "gamma", "encoder": {"features": "linear"}}, "refuses negative co-occurrences"),
        ({"power_norm": "maxexp", "shift": 0.5}, "refuses negative co-occurrences"),
        ({"power_norm": "maxexp", "relation": "subtract"}, "refuses negative co-occurrences"),
        ({"power_norm": "sqrt"}, "'sqrt'; choose one of"),
        ({"relation": "sum"}, "'sum'; choose one of"),
        ({"permutations": 3, "streams": 2}, "streams is 2"),
        ({"channels": 2}, "channels is 2"),
        ({"preprocessing": {"mean": [0.5]}}, "mean has 1 values"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SoSN(**settings)


def test_methods_are_found_by_name() -> None:
    assert method_class("sosn") is SoSN
    assert METHODS["sosn"] is SoSN
    with pytest.raises(UsageError, match=r"no method 'sosm'.*sosn"):
        method_class("sosm")


def test_an_unknown_loss_is_refused() -> None:
    images = torch.rand(1, 2, 1, 1, 28, 28)
    episode = Episode(images, images[:, :, 0], torch.tensor([[0, 1]]))
    with pytest.raises(UsageError, match="choose mse, cross_entropy or binary_cross_entropy"):
        SoSN(channels=1, input_size=28).loss(episode, "hinge")  # type: ignore[arg-type]


@pytest.mark.parametrize("permutations", [-1, 0])
def test_fewer_than_one_permutation_is_refused(permutations: int) -> None:
    with pytest.raises(UsageError, match=rf"permutations is {permutations}; it must be 1"):
        SoSN(permutations=permutations, streams=permutations)


def test_shots_are_averaged_in_full_precision() -> None:
    maps = torch.rand(1, 2, 3, 8, 5).bfloat16()
    described = Relation().describe_support(maps)
    assert torch.equal(described, Relation().describe_support(maps.float()))
