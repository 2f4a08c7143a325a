"""The processes that Fabric starts for other devices, from the first of them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed
from lightning_fabric import Fabric

LOOK = 1.0  # seconds between two looks at them
GRACE = 60.0  # seconds that this process has to notice by itself that one has died: gloo tells at once, NCCL may wait for ever


@contextmanager
def launched(fabric: Fabric) -> Iterator[None]:
    """Start them, watch over them, and end them if this process fails or is interrupted: they would wait in vain.

    What connects them is closed in the end: its threads, left to run, at times abort a process that exits.
    """
    workers: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    connected = _connected()  # by a caller, who may need it still
    try:
        fabric.launch()
        workers += _taken_over(fabric)
        if workers:
            threading.Thread(target=_watch, args=(workers, over), daemon=True).start()
        yield
        if _connected() and not connected:
            fabric.barrier()  # nobody is in the middle of anything
            torch.distributed.destroy_process_group()
    except BaseException:
        for worker in (*workers, *_taken_over(fabric)):
            worker.kill()
            worker.wait()
        raise
    finally:
        over.set()


def _connected() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _taken_over(fabric: Fabric) -> list[subprocess.Popen[bytes]]:
    """The processes that Fabric watches over, and no longer does: it would kill this one, unheard, when one of them ends."""
    watched = getattr(fabric.strategy.launcher, "procs", [])
    workers = list(watched)
    watched.clear()
    return workers


def _watch(workers: Sequence["subprocess.Popen[bytes]"], over: threading.Event) -> None:
    """Where a process has died and nobody has noticed after a while, say so and end all of them, this one too."""
    while not over.wait(LOOK):
        codes = [worker.poll() for worker in workers]
        if any(codes):
            if not over.wait(GRACE):
                sys.stderr.write("error: another process of this run has ended, and this one waited for it in vain\n")
                sys.stderr.flush()
                for worker in workers:
                    worker.kill()
                os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
            return
        if all(code == 0 for code in codes):
            return
