"""Images decoded in parallel into the rows of a file: by threads or, where that pays, by processes.

Threads wait for Python's lock, all the more the smaller the images and the more the cores. The processes are plain ones that
run data.prepare.decoder and are asked through pipes: unlike those of multiprocessing they never import the script that wanted them,
which may thus go without `if __name__ == "__main__"`, and they do without PyTorch.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from torch import Tensor

from sosn import errors
from sosn.data.prepare.decoder import Batch, How
from sosn.errors import SosnError

CORES = 2  # from which on processes pay; with 2 they took 2.5 s for 9,600 small photos where threads took 3.9
IMAGES = 2048  # likewise: of 2,000 both ways take the same time, as processes have to start
MOST = 32  # threads, or processes of 40 MB each
START = "from sosn.data.prepare.decoder import serve; serve()"


class Readable(Protocol):
    """The central share, crop, of an image file, or of a row of a file of many."""

    @property
    def file(self) -> str: ...

    @property
    def row(self) -> int | None: ...

    @property
    def crop(self) -> float: ...

    def read(self, size: int, channels: int, max_pixels: int) -> Tensor: ...


Some = tuple[int, Sequence[Readable]]  # the row of the first image, and images


def decode(entries: Sequence[Readable], done: int, batch: int, how: How) -> Generator[int, None, None]:
    """Decode the entries from number done on into their rows, and say after each batch how many of all are done.

    The first that cannot be read raises its error. Closing the generator early ends threads and processes.
    """
    batches = [(first, entries[first : first + batch]) for first in range(done, len(entries), batch)]
    count = max(1, min(cores(), len(batches), MOST))
    processes = _Processes(count, how) if pays(entries[done:]) else None
    pool = ThreadPoolExecutor(count)
    try:
        work = processes.decode if processes and processes.ready() else _decoder(how)
        for (first, some), _ in zip(batches, pool.map(work, batches), strict=True):
            yield first + len(some)
    finally:
        if processes:
            processes.kill()  # before threads are waited for: they wait for answers
        pool.shutdown(cancel_futures=True)
        if processes:
            processes.close()


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pays(entries: Sequence[Readable]) -> bool:
    """Whether processes are worth their start. Of a file of many images each would hold a copy, so threads read those."""
    able = bool(sys.executable) and not getattr(sys, "frozen", False)
    return able and cores() >= CORES and len(entries) >= IMAGES and all(entry.row is None for entry in entries)


def _decoder(how: How) -> Callable[[Some], None]:
    """What decodes a batch in the thread that asks for it."""
    file, *kind = how
    images = np.load(file, mmap_mode="r+")

    def decode_batch(batch: Some) -> None:
        first, entries = batch
        for row, entry in enumerate(entries, first):
            images[row] = entry.read(*kind).numpy()

    return decode_batch


class _Processes:
    """Processes that decode a batch each at a time, asked by as many threads."""

    def __init__(self, count: int, how: How) -> None:
        self._count, self._how = count, how
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        with suppress(OSError):  # the system may have no room for more
            for _ in range(count):
                self._all.append(_start())
                self._idle.put(self._all[-1])

    def ready(self) -> bool:
        """Whether all have started and opened the file; waits for them."""
        try:
            for process in self._all:
                _send(process, self._how)
            return len(self._all) == self._count and all(_receive(process) is None for process in self._all)
        except SosnError:
            return False

    def decode(self, batch: Some) -> None:
        first, entries = batch
        process = self._idle.get()
        try:
            _send(process, (first, [(entry.file, entry.crop) for entry in entries]))
            error = _receive(process)
        finally:
            self._idle.put(process)
        if error:
            raise error

    def kill(self) -> None:
        """End all at once. The system keeps what they have written."""
        for process in self._all:
            process.kill()

    def close(self) -> None:
        for process in self._all:
            process.communicate()


def _start() -> "subprocess.Popen[bytes]":
    """A process that finds modules where this one does, and that an interrupt from the keyboard does not reach."""
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, "-P", "-c", START], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)


def _send(process: "subprocess.Popen[bytes]", message: How | Batch) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        raise _ended(process) from None


def _receive(process: "subprocess.Popen[bytes]") -> SosnError | None:
    """The error that a process met, if any."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise _ended(process)
    answer = json.loads(line)
    if answer is None:
        return None
    kind, text = answer
    known = getattr(errors, kind, None)
    return known(text) if isinstance(known, type) and issubclass(known, SosnError) else SosnError(f"{kind}: {text}")


def _ended(process: "subprocess.Popen[bytes]") -> SosnError:
    return SosnError(f"process {process.pid}, which decoded images, has ended: is there enough memory, and room on the disk?")
