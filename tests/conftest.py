"""What tests share."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: spinning threads starve one another on a busy machine

from collections.abc import Iterator
from pathlib import Path

if not Path("/dev/nvidia0").exists():  # before triton is imported: without a GPU its kernels run in the interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from sosn.memory import keep_freed_memory

keep_freed_memory()


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
