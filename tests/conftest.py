"""What tests share."""

import json
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: spinning threads starve one another on a busy machine

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if not Path("/dev/nvidia0").exists():  # before triton is imported: without a GPU its kernels run in the interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from filelock import FileLock

from sosn.cli import main
from sosn.cli.process import keep_freed_memory
from sosn.data.prepare.catalog import prepare_dataset
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


@pytest.fixture(scope="session")
def real_omniglot(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A home with Omniglot at 42×42, prepared once by whichever process of the suite comes first, and what that told."""
    own = tmp_path_factory.getbasetemp()
    home = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "omniglot-home"
    with FileLock(f"{home}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOSN_HOME", str(home))
        told = home / "told.json"
        if not told.exists():
            done = prepare_dataset("omniglot", real_data / "omniglot.tar.xz", 42)
            told.write_text(json.dumps(done, default=str))
    return home, json.loads(told.read_text())


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


def heed() -> None:
    """Let interrupts through, which a shell tells what it starts in the background to ignore; for preexec_fn."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Listener(Silent):
    """Progress that remembers what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)
