"""Decode images in parallel into the rows of a file, with threads or, if that is faster, with processes.

Threads wait for Python's global lock, longer with small images and many cores. As always with processes in Python, a script
that prepares large datasets needs `if __name__ == "__main__"`.
"""

import multiprocessing
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

import numpy as np
from torch import Tensor

from sosn.data.prepare.decoder import How, decode_files, start
from sosn.errors import SosnError

CORES = 2  # from which processes are faster; with 2 cores, 9,600 small photos took 2.5 s, and 3.9 s with threads
IMAGES = 2048  # likewise: for 2,000 images both take the same time, because processes have to start
MOST = 32  # threads, or processes of 40 MB each


class Readable(Protocol):
    """An image file, or a row of an array file, cropped to its central share."""

    @property
    def file(self) -> str: ...

    @property
    def row(self) -> int | None: ...

    @property
    def crop(self) -> float: ...

    def read(self, size: int, channels: int, max_pixels: int) -> Tensor: ...


Batch = tuple[int, Sequence[Readable]]  # row of the first image, and the images


def decode(entries: Sequence[Readable], done: int, batch: int, how: How) -> Generator[int, None, None]:
    """Decode the entries from number `done` into their rows, and yield the number of decoded images after each batch.

    Raises the error of the first image that cannot be read. Closing the generator stops threads and processes.
    """
    batches = [(first, entries[first : first + batch]) for first in range(done, len(entries), batch)]
    count = max(1, min(cores(), len(batches), MOST))
    pool: Executor
    if processes_are_faster(entries[done:]):
        context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
        pool = ProcessPoolExecutor(count, context, start, (how,))
        tasks = [pool.submit(decode_files, first, [(entry.file, entry.crop) for entry in part]) for first, part in batches]
    else:
        pool, decode_batch = ThreadPoolExecutor(count), _in_thread(how)
        tasks = [pool.submit(decode_batch, pair) for pair in batches]
    try:
        for (first, part), task in zip(batches, tasks, strict=True):
            task.result()
            yield first + len(part)
    except BrokenProcessPool as error:
        raise SosnError(
            "a process that decoded images has ended: is there enough memory and disk space? A script that prepares "
            'data needs `if __name__ == "__main__"`'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_are_faster(entries: Sequence[Readable]) -> bool:
    """Whether processes are faster. Array files are read by threads, because each process would hold a copy."""
    return cores() >= CORES and len(entries) >= IMAGES and all(entry.row is None for entry in entries)


def _in_thread(how: How) -> Callable[[Batch], None]:
    """Return a function that decodes a batch in a thread."""
    file, *sizes = how
    images = np.load(file, mmap_mode="r+")

    def decode_batch(batch: Batch) -> None:
        first, entries = batch
        for row, entry in enumerate(entries, first):
            images[row] = entry.read(*sizes).numpy()

    return decode_batch
