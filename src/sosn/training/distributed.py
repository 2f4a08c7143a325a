"""The processes that Fabric starts for other devices, from the first of them."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch.distributed
from lightning_fabric import Fabric

LOOK = 1.0  # seconds between two looks at them
GRACE = 60.0  # seconds that this process has to notice by itself that one has died: gloo tells at once, NCCL may wait for ever


@contextmanager
def launched(fabric: Fabric, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Start them, watch over them, and end them if this process fails or is interrupted: they would wait in vain.

    lost is called where one of them has died and this process has not noticed after a while: it may wait for ever.
    """
    workers: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    try:
        fabric.launch()
        workers += _taken_over(fabric)
        if workers:
            threading.Thread(target=_watch, args=(workers, over, lost), daemon=True).start()
        yield
        _settle()
    except BaseException:
        for worker in (*workers, *_taken_over(fabric)):
            worker.kill()
            worker.wait()
        raise
    finally:
        over.set()


def _settle() -> None:
    """Wait until gloo has let go of all that went to other processes.

    A thread of its that drops the last tensor while Python already ends would abort this process.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        with suppress(RuntimeError):  # another process has ended, and all that this one had to do is done
            torch.distributed.barrier()


def _taken_over(fabric: Fabric) -> list[subprocess.Popen[bytes]]:
    """The processes that Fabric watches over, and no longer does: it would kill this one, unheard, when one of them ends."""
    watched = getattr(fabric.strategy.launcher, "procs", [])
    workers = list(watched)
    watched.clear()
    return workers


def _watch(workers: Sequence["subprocess.Popen[bytes]"], over: threading.Event, lost: Callable[[], None]) -> None:
    """Where a process has died and nobody has noticed after a while, end the others and say so."""
    while not over.wait(LOOK):
        codes = [worker.poll() for worker in workers]
        if any(codes):
            if not over.wait(GRACE):
                for worker in workers:
                    worker.kill()
                lost()
            return
        if all(code == 0 for code in codes):
            return
