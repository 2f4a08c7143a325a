"""Keep freed memory in the process: a CPU step frees and takes hundreds of megabytes, and new pages cost time."""

import ctypes
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's mallopt


@cache
def keep_freed_memory() -> bool:
    """Tell glibc not to hand freed memory back to the system. Does nothing, and returns False, elsewhere.

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
