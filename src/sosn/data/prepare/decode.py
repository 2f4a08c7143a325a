"""Images decoded in parallel into the rows of a file: by threads or, where that pays, by processes.

Threads wait for Python's lock, all the more the smaller the images and the more the cores. As with any use of processes in
Python, a script that prepares large datasets needs `if __name__ == "__main__"` around what it does; `sosn data prepare` has it.
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

CORES = 2  # from which on processes pay; with 2 they took 2.5 s for 9,600 small photos where threads took 3.9
IMAGES = 2048  # likewise: of 2,000 both ways take the same time, as processes have to start
MOST = 32  # threads, or processes of 40 MB each


class Readable(Protocol):
    """The central share, crop, of an image file, or of a row of a file of many."""

    @property
    def file(self) -> str: ...

    @property
    def row(self) -> int | None: ...

    @property
    def crop(self) -> float: ...

    def read(self, size: int, channels: int, max_pixels: int) -> Tensor: ...


Batch = tuple[int, Sequence[Readable]]  # the row of the first image, and images


def decode(entries: Sequence[Readable], done: int, batch: int, how: How) -> Generator[int, None, None]:
    """Decode the entries from number done on into their rows, and say after each batch how many of all are done.

    The first that cannot be read raises its error. Closing the generator early ends threads and processes.
    """
    batches = [(first, entries[first : first + batch]) for first in range(done, len(entries), batch)]
    count = max(1, min(cores(), len(batches), MOST))
    pool: Executor
    if pays(entries[done:]):
        context = multiprocessing.get_context("spawn")  # forking a process that has threads may hang it
        pool = ProcessPoolExecutor(count, context, start, (how,))
        tasks = [pool.submit(decode_files, first, [(one.file, one.crop) for one in some]) for first, some in batches]
    else:
        pool, decode_batch = ThreadPoolExecutor(count), _in_thread(how)
        tasks = [pool.submit(decode_batch, one) for one in batches]
    try:
        for (first, some), task in zip(batches, tasks, strict=True):
            task.result()
            yield first + len(some)
    except BrokenProcessPool as error:
        raise SosnError(
            "a process that decoded images has ended: is there enough memory, and room on the disk? A script that prepares "
            'data needs `if __name__ == "__main__"`'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pays(entries: Sequence[Readable]) -> bool:
    """Whether processes are worth their start. Of a file of many images each would hold a copy, so threads read those."""
    return cores() >= CORES and len(entries) >= IMAGES and all(entry.row is None for entry in entries)


def _in_thread(how: How) -> Callable[[Batch], None]:
    """What decodes a batch in a thread."""
    file, *sizes = how
    images = np.load(file, mmap_mode="r+")

    def decode_batch(batch: Batch) -> None:
        first, entries = batch
        for row, entry in enumerate(entries, first):
            images[row] = entry.read(*sizes).numpy()

    return decode_batch
