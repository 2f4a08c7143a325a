"""What tests share."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: spinning threads starve one another on a busy machine

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if not Path("/dev/nvidia0").exists():  # before triton is imported: without a GPU its kernels run in the interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from sosn.cli import main
from sosn.memory import keep_freed_memory
from sosn.training.progress import Silent

keep_freed_memory()

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Tests that build models draw the same weights on every run."""
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests on small tensors, where threads would spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder named by SOSN_DATA; tests that need it are skipped elsewhere."""
    folder = os.environ.get("SOSN_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SOSN_DATA names no folder with real data")
    return Path(folder)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run `sosn WORDS…` in an empty folder: exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["sosn", *words])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


class Listener(Silent):
    """Progress that remembers what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)
