"""What only a GPU can show: captured steps, Triton kernels in training, bf16. Skipped elsewhere."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sosn
from sosn.bench.contenders import Shape
from sosn.data.bank import Bank
from sosn.data.dataset import open_bank
from sosn.encoder.resnet12 import Stage
from sosn.evaluation.calibration import measure
from sosn.evaluation.protocol import evaluate
from sosn.kernel import Engine, engine
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.training import Silent, train
from sosn.training.cuda_graph import FREE_STEPS, CapturedStep
from sosn.training.run import Run
from sosn.training.trainer import Trainer
from tests.kernel.engines import agreement, astray, gradients, rights, scores

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SMALL = "alphabets=10 characters=6 drawings=8 device=cuda every=20 val_episodes=4 report_episodes=4 val_query=2 recalibrate=2"


def recipe(*words: str) -> Recipe:
    return override(load_recipe("glyphs-5w1s"), [*SMALL.split(), *words])


def flat(trainer: Trainer) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in trainer.method.parameters()])


def few_steps(wanted: Recipe, tmp_path: Path, captured: bool) -> tuple[list[float], Tensor]:
    """The losses of a few steps, and how far they moved the weights."""
    trainer = Trainer(wanted, Run(tmp_path / str(captured)), Silent())
    if not captured:
        trainer.learn = trainer.take
    assert isinstance(trainer.learn, CapturedStep) == captured
    before = flat(trainer)
    losses = [trainer.advance().item() for _ in range(FREE_STEPS + 5)]
    return losses, flat(trainer) - before


@pytest.fixture
def exact() -> Iterator[None]:
    """Convolutions of the same numbers are the same: gradient descent inside a step makes much of a rounding error."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "words",
    [
        "optimiser=adamw",
        "optimiser=sgd learning_rate=0.01",
        "clip=0.5 schedule=cosine",
        "cosine=5",
        "permutations=2 streams=2",
        "method=baseline encoder=conv4 model.features=second_order head=nearest",
        "encoder=resnet12 encoder.first_width=8 input_size=32 optimiser=sgd learning_rate=0.01",
        "method=relation_net optimiser=sgd learning_rate=0.1",
        "method=maml optimiser=sgd learning_rate=0.02",
        "method=maml first_order=true optimiser=sgd learning_rate=0.02",
        "method=meta_lstm optimiser=sgd learning_rate=0.1",
        "method=prototypical optimiser=sgd learning_rate=0.1",
        "method=matching optimiser=sgd learning_rate=0.1",
        "method=matching full_context=true optimiser=sgd learning_rate=0.1",
        "method=siamese optimiser=sgd learning_rate=0.1",
        "method=deep_bdc optimiser=sgd learning_rate=0.1",
        "method=covamnet optimiser=sgd learning_rate=0.001",
    ],
)
def test_a_captured_step_trains_as_the_same_step_call_by_call(words: str, tmp_path: Path) -> None:
    wanted = recipe("steps=20", *words.split())
    (ours, moved), (theirs, should) = few_steps(wanted, tmp_path, True), few_steps(wanted, tmp_path, False)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert (moved - should).norm() < 0.2 * should.norm()  # without the steps that are played it would be about 0.6


def test_a_step_is_captured_while_an_earlier_one_is_garbage(tmp_path: Path) -> None:
    few_steps(recipe("steps=20"), tmp_path / "first", True)
    old = Trainer(recipe("steps=20"), Run(tmp_path / "second"), Silent())
    for _ in range(FREE_STEPS + 1):
        old.advance()
    del old  # its parts hold each other, so that only the collector finds them, and it will come at once
    before = gc.get_threshold()
    try:
        gc.set_threshold(1, 1, 1)
        losses, _ = few_steps(recipe("steps=20"), tmp_path / "third", True)
    finally:
        gc.set_threshold(*before)
    assert losses[0] > losses[-1]


@pytest.mark.parametrize("grouped", [False, True])
def test_the_host_never_waits_for_a_step(grouped: bool, tmp_path: Path) -> None:
    def opened(recipe: Recipe, split: str, say: Callable[[str], None]) -> Bank:
        bank = open_bank(recipe.data.name, split, **recipe.data.options)
        return replace(bank, groups=torch.arange(len(bank)) // 2) if grouped else bank

    words = "steps=30 precision=bf16 schedule=cosine average=0.99 flip=true translate=0.1 jitter=0.3".split()
    trainer = Trainer(recipe(*words), Run(tmp_path), Silent(), opened=opened)
    for _ in range(FREE_STEPS + 3):
        trainer.advance()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            trainer.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("shape", [Shape(5, 1, 3, 84), Shape(5, 2, 3, 28, 1), Shape(3, 1, 2, 56, permutations=3)], ids=str)
def test_the_engine_has_the_gradients_of_the_layers_one_by_one(shape: Shape) -> None:
    device = torch.device("cuda")
    ours, coarse = gradients(shape, 2, device, "auto", half=True), gradients(shape, 2, device, "plain", half=True)
    assert not astray(ours, coarse, gradients(shape, 2, device, "plain", torch.float64))


@pytest.mark.parametrize("pool", [True, False])
def test_a_residual_stage_has_the_gradients_of_its_layers(pool: bool) -> None:
    """In half precision about as near to those in double precision as the layers one by one are."""
    found: dict[tuple[str, bool], list[torch.Tensor]] = {}
    names: tuple[Engine, ...] = ("auto", "plain")
    for name, half in ((names[0], True), (names[1], True), (names[1], False)):
        torch.manual_seed(0)
        maps, stage = torch.randn(16, 64, 42, 42, device="cuda"), Stage(64, 160, pool).cuda()
        if not half:
            maps, stage = maps.double(), stage.double()
        with engine(name), torch.autocast("cuda", torch.bfloat16, enabled=half):
            stage(maps).double().square().mean().backward()
        found[name, half] = [weight.grad.double() for weight in stage.parameters() if weight.grad is not None]
    for ours, coarse, exact in zip(found["auto", True], found["plain", True], found["plain", False], strict=True):
        assert (ours - exact).norm() < 2 * (coarse - exact).norm() + 1e-3 * exact.norm()


def test_training_in_half_precision_learns_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    wanted = recipe("steps=60", "precision=bf16", "every=20")
    trainer = Trainer(wanted, Run(tmp_path / "run"), Silent())
    trainer.run.create(wanted, trainer.contents)
    losses = [trainer.advance().item() for _ in range(30)]
    trainer.save()
    before = flat(trainer)
    resumed = Trainer(wanted, Run(tmp_path / "run"), Silent())
    resumed.load()
    assert resumed.step == 30
    torch.testing.assert_close(flat(resumed), before, rtol=0, atol=0)
    pairs = [(one.advance().item(), other.advance().item()) for one, other in [(trainer, resumed)] * 8]
    torch.testing.assert_close([ours for _, ours in pairs], [theirs for theirs, _ in pairs], rtol=0.05, atol=1e-3)
    moved, ours = flat(trainer) - before, flat(resumed) - before
    assert (ours - moved).norm() < 0.3 * moved.norm()  # moments of the optimiser that began anew would lead elsewhere
    finished = train(wanted, tmp_path / "run", resume=True).evaluation
    assert finished is not None
    assert finished.accuracy > 0.6
    assert losses[0] > 2 * losses[-1]


@pytest.mark.parametrize(("half", "share"), [(False, 0.999), (True, 0.99)], ids=["fp32", "bf16"])
def test_answers_are_those_of_the_plain_layers(half: bool, share: float) -> None:
    method = sosn.load("glyphs").to("cuda")
    bank = open_bank("glyphs", "test", alphabets=10, characters=8).to("cuda")

    def said(name: Engine) -> Tensor:
        with engine(name), torch.autocast("cuda", torch.bfloat16, enabled=half):
            return scores(lambda: evaluate(method, bank, 5, 1, 10, 100))

    plain = said("plain")
    assert agreement(said("auto"), plain) >= share  # of 5,000 queries
    assert rights(plain).mean() > 0.9


def test_a_model_is_calibrated_as_on_the_cpu() -> None:
    bank = open_bank("glyphs", "val", alphabets=10, characters=6, drawings=6)
    sizes = ((1, 3), (1, 2), 2, 12)
    on_cpu = measure(sosn.load("glyphs"), bank, "val", "glyphs", *sizes)
    on_gpu = measure(sosn.load("glyphs").to("cuda"), bank.to("cuda"), "val", "glyphs", *sizes)
    for one, other in zip(on_cpu.sizes, on_gpu.sizes, strict=True):
        assert (one.way, one.shot, one.episodes) == (other.way, other.shot, other.episodes)
        torch.testing.assert_close(one.thresholds, other.thresholds, rtol=1e-2, atol=2e-2)
        assert abs(one.refused - other.refused) < 0.02
