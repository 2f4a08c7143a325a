"""A classifier first, SoSN from its encoder second; what the first stage needs: SGD, batches of many classes, DropBlock."""

from pathlib import Path

import pytest
import torch

from sosn.data.dataset import open_bank
from sosn.data.sampler import EpisodeSampler
from sosn.encoder import build_encoder
from sosn.method import Baseline
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training import train
from sosn.training.cuda_graph import CapturedStep
from sosn.training.progress import Silent
from sosn.training.run import Run
from sosn.training.setup import make_optimiser
from sosn.training.trainer import Trainer
from sosn.util.seeding import generator
from tests.conftest import Listener
from tests.training.test_loop import same, tiny, weights
from tests.training.test_warm_start import interrupted

ENCODER = ("encoder=resnet12", "encoder.first_width=2")
FIRST = (
    "method=baseline",
    *ENCODER,
    "features=second_order",
    "head=nearest",
    "way=32",
    "query=3",
    "val_way=5",
    "optimiser=sgd",
)


@pytest.mark.slow
def test_sosn_takes_the_whole_encoder_of_a_classifier(tmp_path: Path) -> None:
    train(tiny(*FIRST, "steps=2", "every=2", "encoder.drop=0.2"), tmp_path / "first")
    listener = Listener()
    recipe = tiny("method=sosn", *ENCODER, f"start={tmp_path / 'first'}")
    trainer = Trainer(recipe, Run(tmp_path / "second"), listener)
    trainer.begin()
    given, own = weights(tmp_path / "first"), trainer.method.state_dict()
    encoder = [name for name in given if name.startswith("encoder.")]
    assert set(encoder) == {name for name in own if name.startswith("encoder.")}
    assert all(torch.equal(given[name], own[name]) for name in encoder)
    assert f"{len(encoder)} of {len(own)} tensors taken from" in listener.said[-1]
    assert listener.said[-1].endswith("not used: classifier")
    assert torch.isfinite(trainer.advance())


def test_the_shipped_stages_fit_one_another() -> None:
    first, shapes = load_recipe("mini-imagenet-resnet12-pretrain"), {}
    for name in ("pretrain", "5w1s", "5w5s"):
        recipe = load_recipe(f"mini-imagenet-resnet12-{name}")
        assert recipe.data.name == first.data.name
        assert recipe.data.options["size"] == first.data.options["size"]
        assert recipe.model.options["eta"] == first.model.options["eta"]
        with torch.device("meta"):
            encoder = build_encoder({"name": recipe.encoder.name} | recipe.encoder.options, 3, 84)
        shapes[name] = {key: tuple(value.shape) for key, value in encoder.state_dict().items()}
        assert encoder.map_side(84) ** 2 >= encoder.width  # or the matrices could not have full rank
    assert shapes["pretrain"] == shapes["5w1s"] == shapes["5w5s"]
    assert len(shapes["pretrain"]) > 80


@pytest.mark.parametrize(("way", "query"), [(32, 3), (36, 1)])
def test_a_batch_of_many_classes_is_an_episode(way: int, query: int) -> None:
    bank = open_bank("glyphs", "train", alphabets=10, characters=6, drawings=8)
    tasks = EpisodeSampler(bank, way, 1, query).draw(1, generator("batch test"))
    encoder = {"name": "resnet12", "first_width": 2}
    method = Baseline(classes=len(bank.names), channels=1, input_size=28, encoder=encoder)
    assert method.loss(tasks).item() == pytest.approx(torch.tensor(len(bank.names)).log().item(), rel=0.3)


@pytest.mark.slow
def test_a_classifier_of_second_order_matrices_learns(tmp_path: Path) -> None:
    words = (
        "steps=40",
        "every=40",
        "val_episodes=40",
        "report_episodes=40",
        "val_query=5",
        "learning_rate=0.05",
        "recalibrate=5",
    )
    result = train(tiny(*FIRST, *words, "encoder.first_width=4", "weight_decay=0.0005"), tmp_path / "run")
    assert result.evaluation is not None
    assert result.evaluation.accuracy > 0.45  # chance is 0.2


# --- SGD --------------------------------------------------------------------------------------------------------------


def test_sgd_follows_nesterov_s_formula() -> None:
    recipe = tiny("method=baseline", "optimiser=sgd", "learning_rate=0.1", "weight_decay=0.01")
    method = Baseline(classes=3, channels=1, input_size=28, encoder={"name": "conv4_pooled", "width": 2})
    optimiser = make_optimiser(method, recipe, torch.device("cpu"))
    weight = method.classifier.bias
    with torch.no_grad():
        weight.copy_(torch.tensor([1.0, -2.0, 3.0]))
    expected, velocity = weight.detach().clone(), torch.zeros(3)
    for step in range(3):
        gradient = torch.tensor([0.5, -1.0, 2.0]) * (step + 1)
        optimiser.zero_grad()
        (weight * gradient).sum().backward()
        optimiser.step()
        decayed = gradient + 0.01 * expected
        velocity = 0.9 * velocity + decayed
        expected = expected - 0.1 * (decayed + 0.9 * velocity)
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.slow
def test_a_run_with_sgd_and_drop_block_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny(*FIRST, "steps=4", "every=2", "encoder.drop=0.3")
    train(recipe, tmp_path / "whole")
    torch.manual_seed(5)  # what others draw makes no difference
    interrupted(recipe, tmp_path / "run", 2, monkeypatch)
    train(recipe, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_drop_block_has_an_effect_and_leaves_other_random_numbers_alone(tmp_path: Path) -> None:
    losses = {}
    for words in (("encoder.drop=0.3",), ()):
        trainer = Trainer(tiny(*FIRST, *words), Run(tmp_path), Silent())
        torch.manual_seed(7)
        losses[words] = trainer.advance().item()
        drawn = torch.rand(3)
        torch.manual_seed(7)
        assert torch.equal(drawn, torch.rand(3))
    assert losses["encoder.drop=0.3",] != losses[()]


# --- a step as a graph ------------------------------------------------------------------------------------------------


def test_a_captured_step_is_handed_the_classes_too() -> None:
    bank = open_bank("glyphs", "train", alphabets=10, characters=6, drawings=8)
    tasks = EpisodeSampler(bank, 5, 1, 1).draw(2, generator("capture test"))
    tensors = CapturedStep._tensors(tasks)
    assert tasks.classes is not None
    assert torch.equal(tensors[3], tasks.classes)
    assert len(CapturedStep._tensors(type(tasks)(tasks.support, tasks.query, tasks.labels))) == 3
    assert Baseline.capturable


# --- another method on the command line -------------------------------------------------------------------------------


def test_another_method_drops_values_that_mean_nothing_to_it() -> None:
    recipe = override(load_recipe("mini-imagenet-resnet12-pretrain"), ["method=sosn"])
    assert (recipe.encoder.name, recipe.encoder.options["features"]) == ("resnet12", "relu")
    assert "features" not in recipe.model.options  # second_order is Baseline's
