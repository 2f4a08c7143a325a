"""Memory of the CPU: how much there is, and freed memory kept, as a step frees and takes hundreds of megabytes."""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's mallopt


@cache
def keep_freed_memory() -> bool:
    """Tell glibc not to hand freed memory back to the system: new pages cost time. Does nothing, returns False, elsewhere.

    Training and evaluation call it; it holds for the rest of the process.
    """
    import torch

    if not sys.platform.startswith("linux") or torch.cuda.is_available():  # on a GPU there is nothing to gain
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**26))
    return all(mallopt(name, value) for name, value in settings)


def free_memory() -> float:
    """Bytes that this process may use, those it has already among them; where the system does not say, all there are."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        own = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * page
        return float(1024 * int(told["MemAvailable"].split()[0]) + own)
    except (OSError, KeyError, ValueError):
        return float(page * os.sysconf("SC_PHYS_PAGES")) if page else 8e9
