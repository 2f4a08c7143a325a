"""Process-wide settings of the command line, which a library must not change: memory, bf16 checks, a hard exit."""

import ctypes
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache

from sosn.errors import SosnWarning, UsageError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's mallopt
PATIENCE = 120  # seconds for a probe, most of them for importing PyTorch
PROBE = """
import time, torch

def seconds(dtype):
    net = torch.nn.Conv2d(64, 64, 3).to(dtype, memory_format=torch.channels_last)
    maps = torch.ones(16, 64, 33, 33, dtype=dtype).contiguous(memory_format=torch.channels_last)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        net(maps).sum().backward()
        times.append(time.perf_counter() - began)
    return min(times)

print(seconds(torch.bfloat16) / seconds(torch.float32))
"""


@cache
def keep_freed_memory() -> bool:
    """Configure glibc to keep freed memory for the rest of the process.

    A training step frees and allocates hundreds of megabytes, and new pages cost time. Does nothing and returns False on a
    machine with a GPU and on systems other than Linux.
    """
    import torch

    if not sys.platform.startswith("linux") or torch.cuda.is_available():  # no gain on a GPU
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**26))
    return all(mallopt(name, value) for name, value in settings)


def check_precision(precision: str, device: str) -> None:
    """Refuse bf16 on a CPU without working bf16 convolutions, which a child process tests."""
    from sosn.util.device import resolve_device

    if precision == "bf16" and resolve_device(device).type == "cpu":
        check_bf16()


def check_words(words: Sequence[str], precision: str = "fp32", device: str = "auto") -> None:
    """Check the precision and the device after key=value words have changed them."""
    given = dict(word.rpartition("=")[::2] for word in words if "=" in word)
    named = {key.rpartition(".")[2]: value for key, value in given.items()}
    check_precision(named.get("precision", precision), named.get("device", device))


def check_bf16() -> None:
    """Refuse bf16 if its convolutions crash, and warn if they are slower than fp32."""
    found = try_bf16()
    if isinstance(found, str):
        raise UsageError(f"bf16 convolutions {found} on this CPU: use precision=fp32")
    if found > 1:
        sentence = f"bf16 convolutions take {found:.1f} times as long as fp32 ones on this CPU: precision=fp32 is faster"
        warnings.warn(sentence, SosnWarning, stacklevel=2)


@cache
def try_bf16() -> float | str:
    """Return the time of bf16 convolutions divided by that of fp32, or what fails. A child process measures it once."""
    try:
        tried = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return "do not finish"
    return "do not work" if tried.returncode else float(tried.stdout)


def end_at_once(sentence: str) -> None:
    """Print an error and kill this process, whose main thread waits forever for a process that has died."""
    sys.stderr.write(f"error: {sentence}\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
