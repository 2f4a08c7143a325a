"""Every rival against its formula written out in loops, and what holds of all of them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sosn
from sosn.checkpoint.storage import load_method, save_method
from sosn.cli.process import check_bf16
from sosn.data.dataset import open_bank
from sosn.episode import Episode
from sosn.errors import UntrainedError, UsageError
from sosn.method import METHODS, Method, NearestPrototype, method_class
from sosn.method.base import LossName, Statistics
from sosn.method.relation_net import RelationModule, RelationNet
from tests import reference
from tests.method import rival_reference as rivals
from tests.method.test_sosn import draw

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"channels": 1, "input_size": 28}
WIDTH = 6
RIVALS = [name for name in METHODS if name not in ("sosn", "pixels")]
OPTIONS: dict[str, dict[str, Any]] = {
    "matching": {"scale": 5.0},
    "siamese": {"embedding": 5},
    "maml": {"outputs": 3, "inner_steps": 1, "test_steps": 2, "inner_rate": 0.1},
    "meta_lstm": {"outputs": 3, "inner_steps": 2, "hidden": 3, "initial_rate": 0.1},
    "baseline": {"classes": 9, "adapt_steps": 7},
    "baseline++": {"classes": 9, "adapt_steps": 7},
}


def make(name: str, **settings: Any) -> Method:
    """A small rival in float64; encoder: a name or a table, of the usual encoder where it has no name."""
    torch.manual_seed(0)
    encoder = settings.pop("encoder", {})
    encoder = {"name": encoder} if isinstance(encoder, str) else encoder
    encoder = {**(method_class(name).usual_encoder or {}), "width": WIDTH, **encoder}
    return method_class(name)(**SMALL | OPTIONS.get(name, {}) | settings | {"encoder": encoder}).double()


def episode(shot: int = 1, size: int = 28) -> Episode:
    drawn = draw(episodes=2, way=3, shot=shot, queries=4, side=size)
    return Episode(drawn.support, drawn.query, drawn.labels, torch.tensor([[0, 4, 2], [8, 1, 3]]))


def moved(method: Method) -> Method:
    """The method in evaluation mode with running statistics that are not those of a new one."""
    for layer in method.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.uniform_(-0.2, 0.2)
            layer.running_var.uniform_(0.5, 2.0)
    return method.eval()


def of_tasks(task: rivals.Task) -> Callable[..., Tensor]:
    return lambda method, tasks, running=False: rivals.logits(method, tasks, task, running)


FORMULAS: list[tuple[str, dict[str, Any], Callable[..., Tensor], LossName]] = [
    ("relation_net", {}, rivals.relation_net, "mse"),
    ("prototypical", {}, of_tasks(rivals.prototypical), "cross_entropy"),
    ("prototypical", {"metric": "cosine", "scale": 7.0}, of_tasks(rivals.prototypical_cosine), "cross_entropy"),
    ("matching", {}, of_tasks(rivals.matching), "cross_entropy"),
    ("matching", {"full_context": True, "context_steps": 3}, of_tasks(rivals.matching_full_context), "cross_entropy"),
    ("siamese", {}, of_tasks(rivals.siamese), "binary_cross_entropy"),
    ("deep_bdc", {}, of_tasks(rivals.deep_bdc), "cross_entropy"),
    ("covamnet", {}, of_tasks(rivals.covamnet), "cross_entropy"),
    ("nearest_prototype", {}, of_tasks(rivals.second_order), "cross_entropy"),
    ("nearest_prototype", {"representation": "mean", "metric": "cosine"}, of_tasks(rivals.mean_features), "cross_entropy"),
    ("nearest_prototype", {"representation": "map"}, of_tasks(rivals.prototypical), "cross_entropy"),
]


def balanced_binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −log p over same pairs and of −log(1−p) over different ones, halved and added."""
    same: list[Tensor] = []
    different: list[Tensor] = []
    for e, q, c in ((e, q, c) for e in range(len(logits)) for q in range(logits.shape[1]) for c in range(logits.shape[2])):
        p = 1 / (1 + torch.exp(-logits[e, q, c]))
        (same if labels[e, q] == c else different).append(-torch.log(p if labels[e, q] == c else 1 - p))
    return (torch.stack(same).mean() + torch.stack(different).mean()) / 2


LOSSES = {
    "mse": reference.mean_squared_error,
    "cross_entropy": reference.cross_entropy,
    "binary_cross_entropy": balanced_binary_cross_entropy,
}


@pytest.mark.parametrize("way", [1, 2, 5])
def test_same_and_different_pairs_weigh_the_same_in_binary_cross_entropy(way: int) -> None:
    """Same pairs have logit log 3 (p = ¾), different ones log 4 (p = ⅘): ½ log 4⁄3 + ½ log 5, at any number of classes."""
    labels = torch.arange(2 * way).view(2, way) % way
    same = nn.functional.one_hot(labels, way) == 1

    class Fixed(Method):
        name = "fixed"

        def logits(self, episode: Episode, statistics: Statistics = "running") -> Tensor:
            return torch.where(same, math.log(3), math.log(4)).double()

    tasks = Episode(torch.rand(2, way, 1, 1, 4, 4), torch.rand(2, way, 1, 4, 4), labels)
    wanted = math.log(4 / 3) / 2 + (math.log(5) / 2 if way > 1 else 0)
    assert Fixed().loss(tasks, "binary_cross_entropy").item() == pytest.approx(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("shot", [1, 2])
@pytest.mark.parametrize(("name", "settings", "formula", "loss"), FORMULAS)
def test_scores_loss_and_gradients_are_those_of_the_formula(
    name: str, settings: dict[str, Any], formula: Callable[..., Tensor], loss: LossName, shot: int
) -> None:
    method, tasks = make(name, **settings), episode(shot)
    assert tasks.labels is not None
    for layer in method.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.2)
    expected = formula(method, tasks)
    score = torch.sigmoid if name in ("relation_net", "siamese") else lambda logits: torch.softmax(logits, -1)
    torch.testing.assert_close(method(tasks), score(expected), rtol=0, atol=1e-8)
    assert score(expected).std() > 1e-3  # answers differ: the test is not empty
    assert method.own_loss == loss
    rivals.agree(method, tasks, expected, LOSSES[loss](expected, tasks.labels), loss)


@pytest.mark.parametrize(("name", "settings", "formula", "loss"), FORMULAS)
def test_evaluation_uses_running_statistics(
    name: str, settings: dict[str, Any], formula: Callable[..., Tensor], loss: LossName
) -> None:
    method, tasks = moved(make(name, **settings)), episode(2)
    with torch.no_grad():
        expected = formula(method, tasks, running=True)
        torch.testing.assert_close(method.score(expected), method(tasks), rtol=0, atol=1e-8)


def test_the_relation_module_of_84_pixels_is_the_published_one() -> None:
    assert [tuple(p.shape) for p in RelationModule(64, 19).parameters() if p.ndim > 1] == [
        (64, 128, 3, 3), (64, 64, 3, 3), (8, 576), (1, 8),
    ]  # fmt: skip
    assert [tuple(p.shape) for p in RelationModule(64, 5).parameters() if p.ndim == 2] == [(8, 64), (1, 8)]
    method = moved(make("relation_net", input_size=84))
    tasks = episode(2, size=84)
    with torch.no_grad():
        torch.testing.assert_close(method.logits(tasks), rivals.relation_net(method, tasks, running=True), rtol=0, atol=1e-8)


# --- what holds of all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_a_batch_of_episodes_is_the_episodes_one_by_one(name: str) -> None:
    method, tasks = moved(make(name)), episode(2)
    with torch.no_grad():
        alone = torch.cat([method(tasks.one(e)) for e in range(2)])
        scores = method(tasks)
        torch.testing.assert_close(scores, alone, rtol=0, atol=1e-10)
        assert scores.shape == (2, 4, 3)
        batch = method(tasks, statistics="batch")
    assert (batch - scores).abs().max() > 1e-4
    assert batch.isfinite().all()


@pytest.mark.parametrize("name", RIVALS)
def test_images_may_be_encoded_one_by_one_unless_the_method_adapts_its_encoder(name: str) -> None:
    method, tasks = moved(make(name)), episode(2)
    assert method.describes_images == (name not in ("maml", "meta_lstm"))
    if not method.describes_images:
        return
    with torch.no_grad():
        images = torch.cat((tasks.support.flatten(0, 2), tasks.query.flatten(0, 1)))
        maps = torch.cat([method.encode(image[None]) for image in images])
        support, query = maps[:12].unflatten(0, (2, 3, 2)), maps[12:].unflatten(0, (2, 4))
        torch.testing.assert_close(method.compare_features(support, query), method.logits(tasks), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", RIVALS)
def test_each_query_is_answered_by_itself(name: str) -> None:
    method, tasks = moved(make(name)), episode(2)
    assert not method.transductive
    with torch.no_grad():
        alone = [method(Episode(tasks.support, tasks.query[:, q : q + 1])) for q in range(4)]
        torch.testing.assert_close(method(tasks), torch.cat(alone, 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in RIVALS if name != "meta_lstm"])  # its head has an order
def test_classes_in_another_order_have_the_same_scores_in_that_order(name: str) -> None:
    method, tasks = moved(make(name, **({"head": "shared"} if name == "maml" else {}))), episode(2)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        torch.testing.assert_close(
            method(Episode(tasks.support[:, order], tasks.query)), method(tasks)[..., order], rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("name", RIVALS)
def test_evaluation_changes_nothing_and_needs_no_gradient(name: str) -> None:
    method, tasks = moved(make(name)), episode()
    before = {key: value.clone() for key, value in method.state_dict().items()}
    with torch.no_grad():
        expected = method(tasks)
    with torch.inference_mode():
        scores = method(Episode(tasks.support.clone(), tasks.query.clone()))
    torch.testing.assert_close(scores.clone(), expected, rtol=0, atol=1e-12)
    assert not scores.requires_grad
    assert all(torch.equal(before[key], value) for key, value in method.state_dict().items())


@pytest.mark.parametrize("name", RIVALS)
def test_scores_survive_saving_and_loading_to_the_bit(name: str, tmp_path: Path) -> None:
    method, tasks = moved(make(name)).float(), episode()
    method.trained = True
    save_method(tmp_path / "a.safetensors", method)
    again, about = load_method(tmp_path / "a.safetensors")
    assert about["config"] == method.config
    with torch.no_grad():
        assert torch.equal(method(tasks), again(tasks))
    assert again.adapts == method.adapts


@pytest.fixture(scope="module")
def bf16() -> None:
    """Skips where the processor cannot."""
    try:
        check_bf16()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("name", RIVALS)
def test_bf16_moves_the_scores_little_and_they_come_back_in_full(name: str) -> None:
    method, tasks = moved(make(name)).float(), episode(2)
    with torch.no_grad():
        plain = method(tasks)
        with torch.autocast("cpu", torch.bfloat16):
            half = method(tasks)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=0, atol=0.2 if name in ("maml", "meta_lstm") else 0.05)


@pytest.mark.parametrize("name", RIVALS)
def test_every_parameter_learns(name: str) -> None:
    method = make(name).float()
    method.loss(episode(2), method.own_loss).backward()
    modules = dict(method.named_modules())
    for parameter_name, parameter in method.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        owner, _, kind = parameter_name.rpartition(".")
        if not (kind == "bias" and isinstance(modules[owner], torch.nn.Conv2d)):  # batch norm takes those away again
            assert parameter.grad.abs().max() > 1e-6, parameter_name


@pytest.mark.parametrize("name", RIVALS)
def test_images_too_small_for_the_encoder_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="input_size is 8; conv4"):
        make(name, input_size=8)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("prototypical", {"metric": "manhattan"}, "metric is 'manhattan'; choose one of euclidean, cosine, inner"),
        ("prototypical", {"scale": 0.0}, "scale is 0.0; it must be above 0"),
        ("prototypical", {"encoder": "resnet"}, "no encoder 'resnet' .did you mean 'resnet12'"),
        ("relation_net", {"encoder": "conv4_pooled"}, "needs feature maps of 4×4 or larger, not 1×1"),
        ("covamnet", {"encoder": "conv4_pooled"}, "needs feature maps of 2×2 or larger, not 1×1"),
        ("matching", {"full_context": True, "fine_tune_steps": 1}, "cannot be combined"),
        ("matching", {"context_steps": 0}, "context_steps is 0; it must be 1 or more"),
        ("maml", {"head": "none"}, "head is 'none'; choose learned or shared"),
        ("maml", {"inner_steps": -1}, "inner_steps is -1; it must be 0 or more"),
        ("meta_lstm", {"initial_rate": 1.0}, "initial_rate is 1.0; it must lie between 0 and 1"),
        ("meta_lstm", {"hidden": 0}, "hidden is 0; it must be 1 or more"),
        ("baseline", {"classes": 1}, "classes is 1; it must be 2 or more"),
        ("baseline++", {"adapt_rate": 0.0}, "adapt_rate is 0.0; it must be above 0"),
        ("nearest_prototype", {"representation": "first"}, "representation is 'first'"),
    ],
)
def test_invalid_options_are_refused(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make(name, **settings)


# --- untrained --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in METHODS if name != "pixels"])
def test_a_method_that_was_never_trained_refuses_to_predict(name: str, tmp_path: Path) -> None:
    method = method_class(name)(channels=1, input_size=28)
    tasks = episode() if name not in ("maml", "meta_lstm") else draw(episodes=1, way=5, queries=2)
    with pytest.raises(UntrainedError, match=f"method {name.replace('+', '.')!r} has not been trained".replace("'", ".")):
        method.predict(tasks)
    save_method(tmp_path / "a.safetensors", method)
    assert not sosn.load(tmp_path / "a.safetensors").trained
    method.trained = True
    answers = method.train().predict(tasks)
    assert answers.shape == tasks.query.shape[:2]
    assert method.training
    with torch.no_grad():
        assert torch.equal(answers, method.eval()(tasks).argmax(-1))


def test_what_learns_nothing_predicts_at_once() -> None:
    tasks = episode()
    assert method_class("pixels")(channels=1, input_size=28).predict(tasks).shape == (2, 4)


def test_the_shipped_model_is_trained() -> None:
    bank = open_bank("glyphs", "test", alphabets=10, characters=6, drawings=8)
    tasks = sosn.EpisodeSampler(bank, 5, 1, 2).draw(4, sosn.generator("predict test"))
    assert tasks.labels is not None
    assert sosn.load("glyphs").predict(tasks).eq(tasks.labels).double().mean() > 0.7


# --- frozen features --------------------------------------------------------------------------------------------------


def test_the_nearest_prototype_of_a_model_takes_its_encoder_and_images_as_they_are() -> None:
    model = sosn.load("glyphs")
    frozen = NearestPrototype.of(model, metric="cosine", eta=20.0)
    assert frozen.trained
    assert frozen.config["preprocessing"] == model.config["preprocessing"]
    assert frozen.config["eta"] == 20.0
    ours, theirs = frozen.encoder.state_dict(), model.get_submodule("encoder").state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_mean_image_is_frozen_with_the_encoder() -> None:
    model = sosn.SoSN(channels=1, input_size=28, preprocessing={"mean_image": True})
    model.preprocessing.take_mean(torch.rand(1, 28, 28))
    frozen = NearestPrototype.of(model)
    assert torch.equal(frozen.preprocessing.mean_image, model.preprocessing.mean_image)


def test_models_whose_encoder_cannot_be_frozen_are_refused() -> None:
    with pytest.raises(UsageError, match="'pixels' has no encoder that ends in a ReLU"):
        NearestPrototype.of(method_class("pixels")())
    with pytest.raises(UsageError, match="'sosn' has no encoder that ends in a ReLU"):
        NearestPrototype.of(sosn.SoSN(encoder={"features": "linear"}))
    maml = make("maml")
    maml.trained = True
    with pytest.raises(UsageError, match="'maml' keeps no running statistics"):
        NearestPrototype.of(maml)


def test_relation_net_starts_as_its_authors_have_it() -> None:
    torch.manual_seed(0)
    head = RelationNet(channels=1, input_size=28).relation.head
    layers = [layer for layer in head if isinstance(layer, torch.nn.Linear)]
    assert [layer.bias.eq(1).all().item() for layer in layers] == [True, True]
    assert layers[0].weight.std().item() == pytest.approx(0.01, rel=0.2)
