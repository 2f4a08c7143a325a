"""Training learns, is reproducible, and loses nothing on failure."""

import gc
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import sosn
from sosn.checkpoint.registry import load_with_recipe
from sosn.data.dataset import open_bank
from sosn.episode import Episode
from sosn.errors import CheckpointError, DataError, SosnError, TrainingError, UsageError
from sosn.evaluation.model import evaluate_model
from sosn.evaluation.protocol import Evaluation
from sosn.kernel import enabled
from sosn.method.base import batch_norms
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.recipe.sections import TrainingSection
from sosn.training import train
from sosn.training.cuda_graph import FREE_STEPS, CapturedStep
from sosn.training.loop import report
from sosn.training.progress import Silent
from sosn.training.recalibration import recalibrate, update_average
from sosn.training.run import Run
from sosn.training.schedule import learning_rate
from sosn.training.setup import build
from sosn.training.trainer import Trainer
from tests.conftest import Listener

TINY = "alphabets=10 characters=6 drawings=8 query=1 episodes_per_step=1 val_query=2 val_episodes=3 report_episodes=3".split()
TINY += "recalibrate=2 warmup=2 learning_rate=0.001 device=cpu".split()


def tiny(*words: str) -> Recipe:
    return override(load_recipe("glyphs-5w1s"), [*TINY, *words])


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    """A run that has taken one step and saved it."""
    recipe = tiny("steps=6", "every=2")
    run = Run(tmp_path / "run")
    run.create(recipe, {})
    trainer = Trainer(recipe, run, Silent())
    trainer.advance()
    trainer.save()
    return trainer


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_weights_to_the_bit_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, words in (("a", []), ("b", []), ("c", ["seed=1"])):
        train(tiny("steps=4", "every=4", *words), tmp_path / name)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


@pytest.mark.slow
def test_a_run_killed_in_the_middle_resumes_to_the_same_weights_to_the_bit(tmp_path: Path) -> None:
    words = "steps=12 every=3 average=0.9 optimiser=adamw weight_decay=0.01 schedule=cosine clip=0.5".split()
    words += "rotate=episode flip=true translate=0.1 turn=10 permutations=3".split()
    recipe = tiny(*words)
    train(recipe, tmp_path / "whole")
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "sosn", "train", "glyphs-5w1s", *TINY, *words, "--out", str(broken)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not _steps_recorded(broken) >= 6 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (broken / "result.json").exists()
    result = train(recipe, broken, resume=True)
    assert same(weights(tmp_path / "whole"), weights(broken))
    last = [load_file(folder / "checkpoint.safetensors") for folder in (tmp_path / "whole", broken)]
    assert same(*last)  # weights, average and optimiser of the last step
    assert (broken / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    whole = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert result.evaluation is not None
    assert whole["accuracy"] == result.evaluation.accuracy


def _steps_recorded(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return int(json.loads(metrics.read_text().splitlines()[-1])["step"]) if metrics.exists() and metrics.stat().st_size else 0


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    recipe = tiny("steps=3", "every=3")
    first = train(recipe, tmp_path / "run")
    before = weights(tmp_path / "run")
    progress = Listener()
    again = train(recipe, tmp_path / "run", resume=True, progress=progress)
    assert "this run is finished" in progress.said[-1]
    assert same(before, weights(tmp_path / "run"))
    assert first.evaluation == again.evaluation
    assert again.seconds == pytest.approx(first.seconds, abs=0.06)  # not the time that looking again took


@pytest.mark.slow
def test_a_run_folder_says_what_ran(tmp_path: Path) -> None:
    train(tiny("steps=20", "every=10", "eta=50"), tmp_path / "run")
    assert load_recipe(str(tmp_path / "run")).model.options["eta"] == 50
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["seed"] == 0
    assert about["versions"]["torch"] == torch.__version__
    assert re.fullmatch("[0-9a-f]{16}", about["versions"]["code"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [10, 20]
    assert all(math.isfinite(row["loss"]) for row in rows if "loss" in row)
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_an_existing_run_is_not_written_over(tmp_path: Path) -> None:
    train(tiny("steps=2", "every=2"), tmp_path / "run")
    with pytest.raises(UsageError, match="--resume"):
        train(tiny("steps=2", "every=2"), tmp_path / "run")
    with pytest.raises(UsageError, match=r"learning_rate=0\.001, not 0\.01"):
        train(tiny("steps=2", "every=2", "learning_rate=0.01"), tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="no run to resume"):
        train(tiny(), tmp_path / "nothing", resume=True)


@pytest.mark.slow
def test_the_best_weights_are_kept_not_the_last(tmp_path: Path) -> None:
    seen: list[tuple[int, float, bool]] = []

    class Watch:
        def say(self, sentence: str) -> None: ...
        def start(self, first_step: int, steps: int, episodes_per_step: int) -> None: ...
        def step(self, step: int, loss: float | None) -> None: ...
        def evaluating(self, done: int, total: int) -> None: ...
        def validation(self, step: int, result: Evaluation, best: bool) -> None:
            seen.append((step, result.accuracy, best))

        def lost(self) -> None: ...

    train(tiny("steps=8", "every=1", "learning_rate=0.003"), tmp_path / "run", progress=Watch())
    best = max(seen, key=lambda row: (row[1], -row[0]))
    kept = [row for row in seen if row[2]]
    assert kept[-1] == best
    assert [row[1] for row in kept] == sorted({row[1] for row in kept})
    from sosn.checkpoint.storage import load_tensors

    assert load_tensors(tmp_path / "run" / "model.safetensors")[1]["step"] == best[0]


@pytest.mark.slow
def test_test_classes_are_never_opened_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sosn.training import setup

    opened: list[str] = []

    def watch(name: str, split: str, min_images: int = 0, **options: object) -> sosn.Bank:
        opened.append(split)
        return open_bank(name, split, min_images, **options)

    monkeypatch.setattr(setup, "open_bank", watch)
    train(tiny("steps=2", "every=2"), tmp_path / "run")
    assert opened == ["train", "val"]


@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_beat_chance(tmp_path: Path) -> None:
    words = "characters=24 drawings=20 steps=40 every=40 val_episodes=40 val_query=5 query=2 recalibrate=10 average=0.9".split()
    result = train(tiny(*words), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.75 * losses[0]
    assert result.evaluation is not None
    assert result.evaluation.accuracy > 0.45  # chance is 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("loss=cross_entropy",), ("schedule=step", "decay_every=1"), ("optimiser=adamw", "weight_decay=0.1")]
)
def test_every_loss_schedule_and_optimiser_has_an_effect(tmp_path: Path, words: tuple[str, ...]) -> None:
    train(tiny("steps=3", "every=3"), tmp_path / "plain")
    train(tiny("steps=3", "every=3", *words), tmp_path / "run")
    first, second = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("plain", "run"))
    names = [name for name in first if name.startswith("method.") and name.endswith(".weight")]
    assert any(not torch.equal(first[name], second[name]) for name in names)  # it has an effect
    assert all(torch.isfinite(second[name]).all() for name in names)


def test_learning_rate_follows_its_schedule() -> None:
    assert learning_rate(7, TrainingSection(learning_rate=0.1)) == 0.1
    step = TrainingSection(learning_rate=0.1, schedule="step", decay_every=10, decay_factor=0.5)
    assert [learning_rate(s, step) for s in (9, 10, 25)] == pytest.approx([0.1, 0.05, 0.025])
    cosine = TrainingSection(learning_rate=0.1, schedule="cosine", steps=100)
    assert [learning_rate(s, cosine) for s in (0, 50, 100)] == pytest.approx([0.1, 0.05, 0.0])
    warm = TrainingSection(learning_rate=0.1, warmup=4)
    assert [learning_rate(s, warm) for s in (0, 1, 3, 4)] == pytest.approx([0.025, 0.05, 0.1, 0.1])


def test_the_average_of_weights_is_the_exponential_one() -> None:
    module = torch.nn.Linear(2, 1)
    average = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    start = average["weight"].clone()
    with torch.no_grad():
        module.weight.add_(1.0)
    update_average(average, module, 0.9, step=1_000)
    torch.testing.assert_close(average["weight"], 0.9 * start + 0.1 * module.weight.detach())


def test_recalibration_gives_batch_norm_the_average_statistics_of_its_inputs() -> None:
    model = sosn.SoSN(channels=1, input_size=28)
    sampler = sosn.EpisodeSampler(open_bank("glyphs", "val", alphabets=10, characters=6, drawings=8), 5, 1, 1)
    from sosn.util.seeding import generator

    episodes = [sampler.draw(1, generator("recalibration test", index)) for index in range(3)]
    layer = batch_norms(model)[0]
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].detach()))
    recalibrate(model, episodes)
    handle.remove()
    means = torch.stack([batch.mean((0, 2, 3)) for batch in seen]).mean(0)
    variances = torch.stack([batch.var((0, 2, 3)) for batch in seen]).mean(0)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    torch.testing.assert_close(layer.running_mean, means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.running_var, variances, rtol=1e-4, atol=1e-5)
    assert layer.momentum == 0.1
    assert not model.training


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(trainer: Trainer) -> None:
    run, good = trainer.run, trainer.run.checkpoint.read_bytes()
    with torch.no_grad():
        next(trainer.method.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingError, match="lower learning_rate"):
        trainer.check(trainer.advance().item())
    with pytest.raises(TrainingError, match="last good checkpoint"):
        trainer.save()
    assert run.checkpoint.read_bytes() == good


@pytest.mark.slow
def test_a_diverging_run_ends_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not finite at step"):
        train(tiny("steps=400", "every=400", "learning_rate=1e30", "warmup=0"), tmp_path / "run")


def test_sizes_that_the_data_cannot_give_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"for training: .* has 8 images; 5-shot with 9 queries needs 14"):
        train(tiny("shot=5", "query=9"), tmp_path / "a")
    with pytest.raises(DataError, match="for validation: 10-way episodes need 10 classes and there are 6: lower val_way"):
        train(tiny("val_way=10"), tmp_path / "b")
    with pytest.raises(DataError, match=r"for validation: .* 5-shot with 2 queries .* lower val_shot or val_query"):
        train(tiny("drawings=6", "val_shot=5"), tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_recipe_is_trained_by_its_file(tmp_path: Path) -> None:
    recipe = tiny("steps=2", "every=2")
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    for given in (str(tmp_path / "mine.toml"), tmp_path / "mine.toml"):
        assert train(given, tmp_path / type(given).__name__).evaluation is not None
    assert load_recipe(str(tmp_path / "str")) == recipe
    assert same(weights(tmp_path / "str"), weights(tmp_path / "PosixPath"))


@pytest.mark.slow
def test_a_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    train(tiny("steps=2", "every=2"), tmp_path / "run")
    recipe = tiny("steps=4", "every=2", "permutations=2")
    run = Run(tmp_path / "other")
    run.create(recipe, {})
    (tmp_path / "run" / "checkpoint.safetensors").rename(run.checkpoint)
    with pytest.raises(CheckpointError, match="has another architecture"):
        train(recipe, tmp_path / "other", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_damaged_file_of_a_run_is_reported(tmp_path: Path, name: str) -> None:
    recipe = tiny("steps=1", "every=1")
    train(recipe, tmp_path / "run")
    (tmp_path / "run" / name).write_text("{")
    with pytest.raises(CheckpointError, match=rf"{name}' is damaged \(.*\): restore it, or start another run"):
        train(recipe, tmp_path / "run", resume=True)


def test_a_disk_that_is_full_ends_the_run_and_keeps_what_was_saved(trainer: Trainer) -> None:
    run, good = trainer.run, trainer.run.checkpoint.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # a write beyond this fails as on a full disk
    try:
        with pytest.raises(SosnError, match="cannot write"):
            trainer.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert run.checkpoint.read_bytes() == good
    assert not list(run.folder.glob(".*"))


@pytest.mark.slow
def test_without_validation_classes_the_last_weights_are_kept(tmp_path: Path) -> None:
    from PIL import Image

    for label in range(5):
        for number in range(3):
            folder = tmp_path / "images" / "train" / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (28, 28), (50 * label, 10 * number, 0)).save(folder / f"{number}.png")
    words = (f"data=folder:{tmp_path / 'images'}", "size=28", "shot=1", "query=1", "steps=2", "recalibrate=1", "device=cpu")
    recipe = override(load_recipe("glyphs-5w1s"), words)
    result = train(recipe, tmp_path / "run")
    assert result.evaluation is None
    assert result.method.preprocessing.channels == 3
    assert sosn.load(tmp_path / "run").parameter_count() == result.method.parameter_count()


@pytest.mark.slow
def test_the_figure_of_training_is_reproduced_from_the_run_folder_to_the_last_digit(tmp_path: Path) -> None:
    result = train(tiny("steps=4", "every=2", "report_episodes=20"), tmp_path / "run")
    method, recipe = load_with_recipe(str(tmp_path / "run"))
    bank = open_bank("glyphs", "val", **recipe.data.options)
    assert report(recipe, method, bank) == result.evaluation


@pytest.mark.slow
def test_bf16_trains_where_the_processor_can(tmp_path: Path) -> None:
    recipe = tiny("steps=2", "every=2", "precision=bf16")
    try:
        trainer = Trainer(recipe, Run(tmp_path / "run"), Silent())
    except UsageError as error:
        pytest.skip(str(error))
    seen: list[torch.dtype] = []
    layer = next(module for module in trainer.method.modules() if isinstance(module, torch.nn.Conv2d))
    layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    assert torch.isfinite(trainer.advance())
    assert seen == [torch.bfloat16]
    assert trainer.method.dtype == torch.float32


@pytest.mark.slow
def test_a_refused_start_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shot"):
        train(tiny("shot=30"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(tiny("steps=2", "every=2"), tmp_path / "run")


@pytest.mark.slow
def test_a_run_is_not_resumed_under_options_its_first_command_left_alone(tmp_path: Path) -> None:
    train(tiny("steps=2", "every=2"), tmp_path / "run")
    for word in ("model.shift=0.5", "data.seed=9", "softness=7", "flip=true"):
        with pytest.raises(UsageError, match="resume it with the same recipe"):
            train(tiny("steps=2", "every=2", word), tmp_path / "run", resume=True)
    assert load_recipe(str(tmp_path / "run")).model.options["permutations"] == 1  # defaults are written down


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd"])
def test_what_an_optimiser_remembers_lies_in_memory_as_the_weights_do(optimiser: str, tmp_path: Path) -> None:
    """A fused optimiser, which a GPU has, refuses anything else."""
    wanted = tiny(f"optimiser={optimiser}")
    first = Trainer(wanted, Run(tmp_path / "run"), Silent())
    first.run.create(wanted, first.contents)
    first.advance()
    first.save()
    again = Trainer(wanted, first.run, Silent())
    again.load()
    pairs = [(weight, value) for weight, state in again.optimiser.state.items() for value in state.values()]
    same_shape = [(weight, value) for weight, value in pairs if value.shape == weight.shape]
    assert any(weight.dim() == 4 and not weight.is_contiguous() for weight, _ in same_shape)
    assert all(weight.stride() == value.stride() for weight, value in same_shape)


@pytest.mark.slow
def test_a_checkpoint_between_validations_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sosn.training import loop

    recipe = tiny("steps=5", "every=5", "average=0.9")
    train(recipe, tmp_path / "whole")
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    advance = Trainer.advance

    def stop_at_three(trainer: Trainer) -> torch.Tensor:
        if trainer.step == 3:
            raise KeyboardInterrupt
        return advance(trainer)

    monkeypatch.setattr(Trainer, "advance", stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run")
    monkeypatch.setattr(Trainer, "advance", advance)
    train(recipe, tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


@pytest.mark.parametrize("polarity", ["as_is", "inverted"])
def test_training_images_are_standardised_whatever_their_polarity(polarity: str) -> None:
    bank = open_bank("glyphs", "train", alphabets=10, characters=6, drawings=8)
    model = build(tiny(f"polarity={polarity}"), bank)
    images = model.preprocessing(bank.images, torch.float64)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-3)


def test_a_model_of_colour_can_be_trained_on_grey_images() -> None:
    bank = open_bank("glyphs", "train", alphabets=10, characters=6, drawings=8)
    model = build(tiny("channels=3"), bank)
    assert model.preprocessing.mean.numel() == 3


def test_weights_that_are_not_finite_never_become_the_model(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.method.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingError, match="not finite"):
        trainer.validate()
    assert not trainer.run.weights.exists()


def test_a_method_without_parameters_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to train"):
        train(tiny("method=pixels"), tmp_path / "run")


@pytest.mark.parametrize("device", ["banana", "cuda:99", "mps"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(UsageError, match="device is"):
        train(tiny(f"device={device}"), tmp_path / "run")


@pytest.mark.slow
def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    recipe = tiny("steps=3", "every=3")
    train(recipe, tmp_path / "run")
    with Run(tmp_path / "run").alone(), pytest.raises(UsageError, match="another process is training"):
        train(recipe, tmp_path / "run", resume=True)
    train(recipe, tmp_path / "run", resume=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_a_worker_that_outlives_its_run_does_not_hold_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: registered.append(calls))
    ours, theirs = os.pipe()
    ready, say_ready = os.pipe()
    with Run(tmp_path / "run").alone():
        child = os.fork()
        if not child:
            os.close(theirs)
            os.write(say_ready, b"x")
            os.read(ours, 1)  # until the parent is through
            os._exit(0)
        os.read(ready, 1)
    for end in (ours, ready, say_ready):
        os.close(end)
    with Run(tmp_path / "run").alone():
        pass
    os.close(theirs)
    assert os.waitpid(child, 0)[1] == 0
    assert registered == []  # a run leaves nothing behind that later forks would call


def photos(root: Path, classes: int) -> Path:
    from PIL import Image

    for label in range(classes):
        (root / f"kind{label:02}").mkdir(parents=True, exist_ok=True)
        for number in range(4):
            Image.new("RGB", (28, 28), (9 * label, 40 * number, 0)).save(root / f"kind{label:02}" / f"{number}.png")
    return root


@pytest.mark.slow
def test_garbage_collection_is_off_while_a_step_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def replay(self) -> None:
            pass

    messages: list[str] = []
    recording = False

    class Old:
        """A graph of an earlier training: its end while another is recorded would spoil that one."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            messages.append("recording" if recording else "before")

    @contextmanager
    def record(graph: Graph) -> Iterator[None]:
        nonlocal recording
        recording = True
        yield
        recording = False

    def step(episode: Episode) -> torch.Tensor:
        some: list[object] = [Old() for _ in range(20)] if recording else []
        assert gc.isenabled() != recording
        return episode.support.sum() + len(some)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    captured = CapturedStep(step)
    labels = torch.zeros(1, 1, dtype=torch.int64)
    images = torch.zeros(1, 1, 1, 1, 2, 2)
    for _ in range(FREE_STEPS):
        captured(Episode(images, images[:, 0], labels))
    Old()
    captured(Episode(images, images[:, 0], labels))
    assert messages == ["before"]
    assert gc.isenabled()


def folder_recipe(root: Path) -> Recipe:
    words = f"data=folder:{root} size=28 query=1 val_query=1 steps=2 every=2 val_episodes=2 report_episodes=2 device=cpu"
    return override(load_recipe("glyphs-5w1s"), [*words.split(), "recalibrate=1", "val_share=0.3", "test_share=0.3"])


@pytest.mark.parametrize(("classes", "message"), [(10, "for training: .* there are 4"), (14, "for validation: .* there are 4")])
def test_too_few_classes_in_a_folder_are_reported_with_the_split(classes: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{message}: lower .*val_share and test_share of the classes are set aside"):
        train(folder_recipe(photos(tmp_path / "photos", classes)), tmp_path / "run")


@pytest.mark.slow
def test_a_run_is_not_resumed_on_other_images(tmp_path: Path) -> None:
    recipe = folder_recipe(photos(tmp_path / "photos", 20))
    train(recipe, tmp_path / "run")
    for image in (tmp_path / "photos").glob("*/1.png"):
        image.unlink()
    with pytest.raises(DataError, match="train images have changed since"):
        train(recipe, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_classes_that_were_trained_on_are_not_evaluated_as_new(tmp_path: Path) -> None:
    recipe = folder_recipe(photos(tmp_path / "photos", 20))
    train(recipe, tmp_path / "run")
    assert evaluate_model(str(tmp_path / "run"), ["split=test", "device=cpu"])[0].episodes == 2
    trained = json.loads((tmp_path / "run" / "run.json").read_text())["data"]["train"]["classes"]
    for label in {path.name for path in (tmp_path / "photos").iterdir()} - set(trained):
        shutil.rmtree(tmp_path / "photos" / label)  # some of those that are left become val and test
    with pytest.raises(DataError, match="training or tuning classes of"):
        evaluate_model(str(tmp_path / "run"), ["split=val", "way=2", "device=cpu"])


def test_a_folder_is_found_again_from_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "photos", 3)
    monkeypatch.chdir(tmp_path)
    recipe = override(load_recipe("glyphs-5w1s"), ["data=folder:photos"])
    assert recipe.data.name == f"folder:{tmp_path / 'photos'}"


@pytest.mark.slow
def test_other_options_do_not_bring_trained_classes_into_a_test(tmp_path: Path) -> None:
    train(folder_recipe(photos(tmp_path / "photos", 20)), tmp_path / "run")
    with pytest.raises(DataError, match="training or tuning classes of"):
        evaluate_model(str(tmp_path / "run"), ["data.split_seed=1", "split=test", "way=2", "device=cpu"])
    few = ("data.characters=6", "data.drawings=8", "way=2", "query=2", "episodes=2", "device=cpu")
    with pytest.raises(DataError, match="training or tuning classes of 'glyphs'"):
        evaluate_model("glyphs", ["split=test", "data.alphabets=20", *few])
    assert evaluate_model("glyphs", ["split=test", "data.alphabets=20", "data.seed=5", *few])[0].episodes == 2


def test_the_mean_image_of_training_in_all_turns_has_no_side() -> None:
    bank = open_bank("glyphs", "train", alphabets=10, characters=6, drawings=8)
    model = build(tiny("mean_image=true", "rotate=episode", "standardise=false"), bank)
    mean = model.preprocessing.state_dict()["mean_image"]
    torch.testing.assert_close(mean, mean.rot90(1, (-2, -1)), rtol=0, atol=1e-6)
    plain = build(tiny("mean_image=true", "standardise=false"), bank).preprocessing.state_dict()["mean_image"]
    assert not torch.allclose(plain, plain.rot90(1, (-2, -1)))


@pytest.mark.slow
def test_validation_and_report_have_different_episodes_and_the_engine_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sosn.training import loop
    from sosn.training import trainer as validating

    seeds: list[tuple[str, int]] = []
    engines: set[bool] = set()
    for name, module in (("selection", validating), ("report", loop)):
        known = module.evaluate

        def watched(*sizes: object, name: str = name, known: Any = known, **others: object) -> Evaluation:
            seeds.append((name, int(str(sizes[6]))))
            engines.add(enabled())
            result: Evaluation = known(*sizes, **others)
            return result

        monkeypatch.setattr(module, "evaluate", watched)
    train(tiny("steps=2", "every=1", "val_seed=7", "report_seed=9", "engine=plain"), tmp_path / "run")
    assert seeds == [("selection", 7), ("selection", 7), ("report", 9)]
    assert engines == {False}


@pytest.mark.slow
def test_clipping_augmentation_and_engine_reach_the_step(tmp_path: Path) -> None:
    plain, clipped = (Trainer(tiny(*words), Run(tmp_path), Silent()) for words in ((), ("clip=1e-12", "warmup=0")))
    before = [weight.detach().clone() for weight in clipped.method.parameters()]
    clipped.advance()
    moved = max((old - new).abs().max().item() for old, new in zip(before, clipped.method.parameters(), strict=True))
    assert moved < 1e-5  # Adam would take steps of 1e-3
    turned = Trainer(tiny("flip=true", "translate=0.2", "engine=plain"), Run(tmp_path), Silent())
    assert not torch.equal(plain.episode("train", 0).query.float(), turned.episode("train", 0).query.float() * 255)
    seen: list[bool] = []
    for trainer in (plain, turned):
        take = trainer.take

        def watched(episode: Episode, take: Any = take) -> torch.Tensor:
            seen.append(enabled())
            result: torch.Tensor = take(episode)
            return result

        trainer.learn = watched
        trainer.advance()
    assert seen == [True, False]
