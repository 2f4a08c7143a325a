"""Episodes that workers read ahead equal those drawn in the main process."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import sosn
from sosn.data.prepare import store as prepared
from sosn.data.prepare.catalog import prepare_dataset
from sosn.errors import UsageError
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.training import Silent
from sosn.training.run import Run
from sosn.training.trainer import Trainer

WORDS = "alphabets=10 characters=6 drawings=8 query=1 episodes_per_step=2 val_query=2 val_episodes=3 report_episodes=3".split()
WORDS += "recalibrate=2 warmup=0 device=cpu steps=6 every=3 rotate=episode translate=0.1".split()


def tiny(*words: str) -> Recipe:
    return override(load_recipe("glyphs-5w1s"), [*WORDS, *words])


def same(first: Path, second: Path) -> bool:
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_workers_give_the_same_episodes_from_any_step(tmp_path: Path) -> None:
    alone, helped = (Trainer(tiny(f"workers={count}"), Run(tmp_path), Silent()) for count in (0, 2))
    state = torch.random.get_rng_state()
    for purpose, number in (("train", 0), ("train", 1), ("recalibrate", 0), ("train", 2), ("train", 5), ("train", 1)):
        one, other = alone.episode(purpose, number), helped.episode(purpose, number)
        assert torch.equal(one.support, other.support)
        assert torch.equal(one.query, other.query)
        assert one.labels is not None
        assert other.labels is not None
        assert torch.equal(one.labels, other.labels)
    assert torch.equal(torch.random.get_rng_state(), state)
    helped.source.close()


@pytest.mark.slow
def test_workers_give_the_same_weights_to_the_bit(tmp_path: Path) -> None:
    for count in (0, 2):
        sosn.train(tiny(f"workers={count}"), tmp_path / str(count))
    assert same(tmp_path / "0", tmp_path / "2")


@pytest.mark.slow
def test_a_run_with_workers_killed_in_the_middle_resumes_to_the_same_weights(tmp_path: Path) -> None:
    words = ["steps=16", "every=2", "val_episodes=2"]
    sosn.train(tiny(*words), tmp_path / "whole")
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "sosn", "train", "glyphs-5w1s", *WORDS, *words, "workers=2", "--out", str(broken)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (broken / "checkpoint.safetensors").exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (broken / "result.json").exists()
    sosn.train(tiny(*words, "workers=1"), broken, resume=True)  # where images are read is no part of a run
    assert same(tmp_path / "whole", broken)


def test_fewer_than_no_workers_are_refused() -> None:
    with pytest.raises(UsageError, match="workers is -1; it must be 0 or more"):
        tiny("workers=-1")


@pytest.fixture
def scattered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Omniglot with three alphabets, the middle one of another split, prepared; returns its folder."""
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))
    number = 0
    for alphabet in ("Greek", "Hebrew", "Latin"):
        for character in range(2):
            folder = tmp_path / "source" / "images_background" / alphabet / f"character{character:02}"
            folder.mkdir(parents=True)
            for drawing in range(3):
                Image.new("L", (28, 28), 10 * number).save(folder / f"{drawing}.png")
                number += 1
    prepare_dataset("omniglot", tmp_path / "source")
    return tmp_path / "home" / "omniglot-28"


def test_scattered_rows_of_a_large_bank_are_mapped_from_a_file_not_copied(
    scattered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = sosn.open_bank("omniglot", "train")
    assert not list(scattered.glob("part-*"))
    monkeypatch.setattr(prepared, "IN_MEMORY", 0)
    monkeypatch.setattr(prepared, "ROWS", 5)
    for _ in range(2):
        large = sosn.open_bank("omniglot", "train")
        (part,) = scattered.glob("part-*")
        assert torch.equal(large.images, small.images)
        assert large.fingerprint == small.fingerprint
    stored = np.load(part, mmap_mode="r+")
    stored[0] = 200  # what the file says, the bank says
    stored.flush()
    assert int(sosn.open_bank("omniglot", "train").images[0].min()) == 200
    sosn.open_bank("omniglot", "val")
    assert len(list(scattered.glob("part-*"))) == 1  # val is one run of rows


def test_preparing_again_drops_the_parts_of_the_old_bank(scattered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "IN_MEMORY", 0)
    sosn.open_bank("omniglot", "train")
    prepare_dataset("omniglot", scattered.parent.parent / "source")
    assert sorted(path.name for path in scattered.iterdir()) == ["images.npy", "index.json"]
