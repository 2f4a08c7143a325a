"""The command line: what it prints, where, and with which exit code."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import sosn
from sosn.cli.show import RichProgress, wide_console
from sosn.errors import UsageError
from sosn.evaluation.model import evaluation_settings
from sosn.recipe.library import load_recipe, shipped
from tests.conftest import Cli
from tests.training.test_loop import TINY


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['sosn', '--help']\nfrom sosn.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    )
    program += (
        "heavy = {'torch', 'matplotlib', 'scipy', 'lightning_fabric', 'tensorboard'} & set(sys.modules)\nsys.exit(bool(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in ("demo", "train", "eval", "compare", "import", "models", "recipes", "classify", "export", "tune"):
        assert command in result.stdout


def test_wide_tables_are_not_broken_in_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wide_console().print("word " * 39)
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.slow
def test_training_then_evaluating_gives_the_same_figure_to_the_last_digit(cli: Cli) -> None:
    code, out, err = cli("train", "glyphs-5w1s", *TINY, "steps=4", "every=2", "report_episodes=20", "--out", "run", "--json")
    assert code == 0, err
    trained = json.loads(out)
    code, out, err = cli("eval", "run", "device=cpu", "--json")
    assert code == 0, err
    evaluated = json.loads(out)
    for name in ("accuracy", "ci95", "way", "shot", "query", "episodes", "statistics", "seed", "fingerprint"):
        assert evaluated[name] == trained[name]
    assert evaluated["split"] == trained["split"] == "val"


@pytest.mark.slow
def test_evaluation_takes_other_sizes_and_the_test_split_must_be_typed(cli: Cli) -> None:
    assert cli("train", "glyphs-5w1s", *TINY, "steps=2", "every=2", "--out", "run")[0] == 0
    words = "split=test way=3 shot=2 query=3 episodes=4 seed=7 statistics=batch device=cpu".split()
    code, out, _ = cli("eval", "run", *words, "--json")
    assert code == 0
    figures = json.loads(out)
    expected = {"split": "test", "way": 3, "shot": 2, "query": 3, "episodes": 4, "seed": 7, "statistics": "batch"}
    assert {name: figures[name] for name in expected} == expected
    code, out, _ = cli("eval", "run", "episodes=4", "device=cpu", "data.seed=3", "--json")
    assert code == 0
    assert json.loads(out)["split"] == "val"


def test_evaluation_takes_options_of_the_data_bare_unless_it_has_such_a_key_itself() -> None:
    glyphs = load_recipe("glyphs-5w1s")
    for words in (["drawings=9", "min_images=3"], ["data.drawings=9", "data.min_images=3"]):
        settings, recipe = evaluation_settings(glyphs, words)
        assert (recipe.data.options["drawings"], recipe.data.min_images) == (9, 3)
        assert settings.data == "glyphs"
    settings, recipe = evaluation_settings(glyphs, ["seed=5", "data.seed=6"])
    assert (settings.seed, recipe.data.options["seed"]) == (5, 6)
    settings, recipe = evaluation_settings(glyphs, ["partition=paper", "size=42", "data=omniglot", "within=drawers"])
    assert (recipe.data.options["partition"], recipe.data.options["size"]) == ("paper", 42)
    assert (settings.data, settings.within) == ("omniglot", "drawers")
    assert evaluation_settings(glyphs, ["data.name=omniglot", "partition=lake"])[1].data.options["partition"] == "lake"
    for words, message in (
        (["partition=paper"], "eval has no key 'partition'"),  # glyphs have none
        (["data=omniglot", "partition=papers"], r"'papers' \(did you mean 'paper'"),
        (["data=omniglot", "partitoin=paper"], "did you mean 'partition'"),
        (["steps=3"], "eval has no key 'steps'"),  # of training
        (["eta=3"], "eval has no key 'eta'"),
    ):
        with pytest.raises(UsageError, match=message):
            evaluation_settings(glyphs, words)


@pytest.mark.slow
def test_a_human_gets_a_sentence(cli: Cli) -> None:
    code, out, err = cli("train", "glyphs-5w1s", *TINY, "steps=2", "every=2")
    assert code == 0
    assert "5-way 1-shot on validation classes" in out
    assert "runs/glyphs-5w1s" in out
    assert "validation" in err
    code, out, _ = cli("eval", "runs/glyphs-5w1s", "device=cpu")
    assert code == 0
    assert "±" in out


@pytest.mark.slow
def test_the_demo_trains_evaluates_classifies_and_writes_a_report(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sosn.cli.demo.TEST_EPISODES", 40)
    words = [word for word in TINY if not word.startswith("drawings")]
    code, out, err = cli("demo", *words, "steps=20", "every=10", "--out", "shown", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["episodes"] == 40
    assert figures["split"] == "test"
    assert 0.2 < figures["pixels"] < 0.7
    assert len(figures["answers"]) == 5
    page = (tmp_path / "shown" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "synthetic" in page
    assert "trained in" in page
    assert f"{100 * figures['accuracy']:.2f}" in page
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "letter.txt").write_text("mine")
    code, _, err = cli("demo", "--out", "kept")
    assert code == 2
    assert "choose another --out" in err
    assert (tmp_path / "kept" / "letter.txt").read_text() == "mine"
    code, _, err = cli("demo", "--out", "kept/letter.txt")
    assert code == 1
    assert "choose another --out" in err
    assert cli("demo", *words, "steps=2", "every=2", "learning_rate=1e30", "warmup=0", "--out", "shown")[0] == 1
    assert (tmp_path / "shown" / "report.html").read_text() == page  # until there is a new one
    assert cli("demo", *words, "steps=2", "every=2", "seed=1", "--out", "shown")[0] == 0
    assert (tmp_path / "shown" / "report.html").read_text() != page
    (tmp_path / "shown" / "thesis.txt").write_text("mine")
    code, _, err = cli("demo", "--out", "shown")
    assert code == 2
    assert "thesis.txt" in err
    assert (tmp_path / "shown" / "report.html").exists()


def test_recipes_are_listed_and_printed(cli: Cli) -> None:
    code, out, _ = cli("recipes", "--json")
    assert code == 0
    assert set(json.loads(out)) == set(shipped())
    code, out, _ = cli("recipes", "glyphs-5w1s")
    assert code == 0
    assert "[training]" in out
    assert "#" in out
    code, out, _ = cli("recipes")
    assert code == 0
    assert "glyphs-5w1s" in out


def test_models_are_listed(cli: Cli) -> None:
    code, out, _ = cli("models", "--json")
    assert code == 0
    assert "glyphs" in json.loads(out)
    code, out, _ = cli("models")
    assert code == 0
    assert "glyphs" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("train", "glyphs-5w1z"), 2, "did you mean 'glyphs-5w1s'?"),
        (("train", "glyphs-5w1s", "stepz=3"), 2, "did you mean 'steps'?"),
        (("train", "glyphs-5w1s", "steps=many"), 2, "must be a whole number"),
        (("train", "glyphs-5w1s", "eta=-1"), 2, "eta is -1.0"),
        (("train", "glyphs-5w1s", "way=1"), 2, "way is 1"),
        (("train", "glyphs-5w1s", "data=folder:nowhere"), 1, "nowhere': pass one that has a folder of images"),
        (("train", "glyphs-5w1s", "--steps", "3"), 2, "steps=VALUE"),
        (("eval", "glyphs", "--shot=3"), 2, "shot=VALUE"),
        (("models", "glyph"), 2, "did you mean 'glyphs'?"),
        (("recipes", str(Path(sosn.__file__).parent / "checkpoint" / "shipped" / "glyphs.safetensors")), 2, "is not a recipe"),
        (("train", "glyphs-5w1s", "shot=30"), 1, "30-shot with 1 queries needs 31"),
        (("train", "glyphs-5w1s", "device=banana"), 2, "device is 'banana'"),
        (("train", "glyphs-5w1s", "way=400"), 1, "lower way or val_way"),
        (("eval", "glyphs", "device=cuda:99"), 2, "device is 'cuda:99'"),
        (("eval", "nowhere"), 2, "there is no model 'nowhere'"),
        (("eval", "glyphs", "shots=5"), 2, "did you mean 'shot'?"),
        (("eval", "glyphs", "split=tests"), 2, "did you mean 'test'?"),
        (("recipes", "glyphs"), 2, "there is no recipe 'glyphs'"),
        (("no-such-command",), 2, "No such command"),
    ],
)
def test_wrong_input_ends_with_one_clear_sentence(cli: Cli, words: tuple[str, ...], code: int, sentence: str) -> None:
    ended, out, err = cli(*words)
    assert ended == code
    assert sentence in err
    assert out == ""
    assert "Traceback" not in err


def test_bad_images_are_named(cli: Cli, tmp_path: Path) -> None:
    for label in range(10):
        (tmp_path / "photos" / f"kind{label}").mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (30, 30), (20 * label, 0, number)).save(tmp_path / "photos" / f"kind{label}" / f"{number}.png")
    corrupt = tmp_path / "photos" / "kind3" / "2.png"
    corrupt.write_bytes(corrupt.read_bytes()[:40])
    code, _, err = cli(
        "train", "glyphs-5w1s", "data=folder:photos", "split_seed=1", "val_share=0", "test_share=0", "--out", "run"
    )
    assert code == 1
    assert "2.png" in err
    assert "replace or remove it" in err
    for file in (tmp_path / "photos" / "kind3").iterdir():
        file.unlink()
    code, _, err = cli("train", "glyphs-5w1s", "data=folder:photos", "val_share=0", "test_share=0", "--out", "run")
    assert code == 1
    assert "class 'kind3' has no images" in err


@pytest.mark.slow
def test_an_interrupted_training_prints_how_to_continue(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sosn.training.trainer import Trainer

    advance = Trainer.advance

    def interrupt_at_three(trainer: Trainer) -> object:
        if trainer.step == 3:
            raise KeyboardInterrupt
        return advance(trainer)

    words = ("train", "glyphs-5w1s", *TINY, "steps=5", "every=5", "--out", "run")
    monkeypatch.setattr(Trainer, "advance", interrupt_at_three)
    code, _, err = cli(*words)
    assert code == 130
    assert "`sosn train run --resume`" in err
    assert err.endswith("stopped\n")
    monkeypatch.setattr(Trainer, "advance", advance)
    assert cli("train", "run", "--resume")[0] == 0
    assert (tmp_path / "run" / "result.json").exists()


def test_data_is_prepared_listed_checked_and_shown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))
    code, out, _ = cli("data", "list")
    assert code == 0
    assert "sosn data prepare NAME --from PATH" in out
    assert "images_background" in out
    for split in ("train", "val"):
        for label in range(5):
            for number in range(3):
                file = tmp_path / "mini" / split / f"n{split}{label}" / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (84, 84), (40 * label, 40 * number, 99 if split == "val" else 0)).save(file)
    words = ("data", "prepare", "mini-imagenet", "--from", "mini")
    code, _, err = cli(*words, "--max-pixels", "7000")
    assert code == 1
    assert "84×84 pixels; 7,000 is the limit: shrink it, or raise --max-pixels" in err
    code, out, _ = cli(*words, "--max-pixels", "8000")
    assert code == 0
    assert "test: missing" in out
    code, out, _ = cli("data", "list", "--json")
    assert json.loads(out)["prepared"][0]["images"] == 30
    assert cli("data", "check", "mini-imagenet")[0] == 0
    (tmp_path / "mini" / "val" / "nval0" / "1.png").write_bytes(
        (tmp_path / "mini" / "train" / "ntrain0" / "1.png").read_bytes()
    )
    code, out, _ = cli("data", "check", "mini", "--json")
    assert code == 1
    assert [finding["kind"] for finding in json.loads(out)["findings"]] == ["identical across splits"]
    code, out, _ = cli("data", "show", "mini-imagenet", "--split", "val", "--out", "pictures")
    assert code == 0
    for line in out.splitlines():
        with Image.open(tmp_path / line) as picture:
            assert picture.width > 400
    code, _, err = cli("data", "prepare", "mini-imagenet", "--from", "nowhere")
    assert code == 1
    assert "'nowhere' does not exist" in err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "sosn", "models"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_polite_kill_ends_as_an_interrupt_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sosn", "train", "glyphs-5w1s", *TINY, "steps=100000", "--out", str(tmp_path / "run")]
    quiet = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]  # as a script starts what goes to the background
    child = subprocess.Popen(quiet, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert f"`sosn train {tmp_path / 'run'} --resume`" in err


@pytest.mark.slow
def test_a_terminal_shows_a_bar_with_loss_rate_and_time_left(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = (*TINY, "steps=30", "every=15", "--out", str(tmp_path / "run"))
    command = [sys.executable, "-m", "sosn", "train", "glyphs-5w1s", *words]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "140"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65536):
                shown += part
    os.close(ours)
    assert child.returncode == 0
    text = shown.decode()
    for piece in ("training", "evaluating", "/30", "loss 0.", "val ", "episodes/s", "left", "validation"):
        assert piece in text


def test_tables_read_well_in_eighty_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    compared = (
        "compare",
        "glyphs",
        f"{Path(sosn.__file__).parent}/checkpoint/shipped/glyphs.safetensors",
        "query=1",
        "episodes=2",
        "device=cpu",
    )
    for words in (("recipes",), ("models",), ("data", "list"), compared):
        code, out, err = cli(*words)
        assert code == 0, err
        lines = [re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", line) for line in out.splitlines()]
        assert max(map(len, lines)) <= 80, words
        assert "…" not in out.replace("part1…part4", ""), words  # nothing is cut short


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("something else"), False),
    ],
)
def test_missing_memory_is_reported_in_a_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: bool
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("sosn.bench.run_bench", fails)
    if expected:
        code, _, err = cli("bench", "--quick")
        assert code == 1
        assert err.startswith("error: not enough memory: lower episodes_per_step")
    else:
        with pytest.raises(RuntimeError, match="something else"):
            cli("bench", "--quick")


def test_only_the_first_process_on_a_machine_prints_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of torchrun")  # which passes on interrupts, so they are not ignored here
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        code, _, err = cli("train", "glyphs-5w1s", "stepz=3")
        assert code == 2
        assert err.count("stepz") == lines


def test_the_card_of_a_model_tells_its_limits(cli: Cli) -> None:
    code, out, _ = cli("models", "glyphs")
    assert code == 0
    for piece in ("limits:", "not for photos", "terms:", "glyphs test classes"):
        assert piece in out
    assert "trained on 32,000 episodes" in out
    assert "trained on 12,000 batches of 512 images, then 24,000 episodes" in cli("models", "omniglot")[1]
    code, out, _ = cli("models", "glyphs", "--json")
    assert json.loads(out)["recipe"]["data"]["name"] == "glyphs"


def test_a_model_with_tied_scores_warns(cli: Cli, tmp_path: Path) -> None:
    for label in range(10):
        (tmp_path / "grey" / f"kind{label}").mkdir(parents=True)
        for number in range(4):
            Image.new("L", (30, 30), 120).save(tmp_path / "grey" / f"kind{label}" / f"{number}.png")
    words = ("data=folder:grey", "data.val_share=0.5", "query=2", "episodes=5", "device=cpu")
    code, out, err = cli("eval", "glyphs", *words, "--json")
    assert code == 0, err
    assert json.loads(out)["ties"] == 1
    assert "note: for 100% of the queries, several classes share the highest score" in err


def test_a_long_training_says_early_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sosn.cli.show.SETTLED", 0.0)
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with RichProgress() as progress:
        for steps in (4, 10_000):
            progress.start(0, steps, 1)
            progress.step(1, 0.5)
            progress.step(2, 0.5)
    said = capsys.readouterr().err
    assert said.count("this training takes about") == 1
    assert " days at this speed" in said
