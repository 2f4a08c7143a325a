"""Watch the processes that Fabric starts for other devices."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch.distributed
from lightning_fabric import Fabric

LOOK = 1.0  # seconds between two checks
GRACE = 60.0  # seconds that this process has to notice a dead one by itself: gloo fails at once, NCCL may wait forever


@contextmanager
def launched(fabric: Fabric, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Start the processes, watch them, and kill them if this process fails or is interrupted.

    lost is called if one of them died and this process has not noticed within a minute: it may wait forever.
    """
    workers: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    try:
        fabric.launch()
        workers += _take_processes(fabric)
        if workers:
            threading.Thread(target=_watch, args=(workers, over, lost), daemon=True).start()
        yield
        _wait_for_gloo()
    except BaseException:
        for worker in (*workers, *_take_processes(fabric)):
            worker.kill()
            worker.wait()
        raise
    finally:
        over.set()


def _wait_for_gloo() -> None:
    """Wait until gloo has released all tensors that went to other processes.

    If a gloo thread frees the last tensor while Python exits, it aborts this process.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        with suppress(RuntimeError):  # another process has ended, and this one has finished its work
            torch.distributed.barrier()


def _take_processes(fabric: Fabric) -> list[subprocess.Popen[bytes]]:
    """Return Fabric's processes and stop Fabric from watching them: it would kill this process without a message."""
    watched = getattr(fabric.strategy.launcher, "procs", [])
    workers = list(watched)
    watched.clear()
    return workers


def _watch(workers: Sequence["subprocess.Popen[bytes]"], over: threading.Event, lost: Callable[[], None]) -> None:
    """If a process dies and the main thread does not notice within GRACE seconds, kill the others and call lost."""
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
