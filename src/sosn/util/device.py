"""Where the work is done."""

import platform
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from sosn.errors import SosnWarning, UsageError


def resolve_device(name: str) -> torch.device:
    """A device by name; auto is the GPU if there is one. Refuses what is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device is {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {name!r}; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device is {name!r} and there are {torch.cuda.device_count()} GPUs here: choose cpu")
    return torch.device("cpu") if device.type == "cpu" else device  # there is one, whatever its number


def machine(device: torch.device | None = None) -> str:
    """What computes here, or this device of it, in a few words."""
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads ({_processor()})"


def _processor() -> str:
    """What this machine's processor calls itself."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    return platform.processor() or platform.machine()


PATIENCE = 120  # seconds that a probe may take, of which most go to importing PyTorch
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


def check_bf16() -> None:
    """Refuse bf16 on a CPU whose bf16 convolutions kill the process, and say where they do not pay: a child process tries."""
    found = try_bf16()
    if isinstance(found, str):
        raise UsageError(f"bf16 convolutions {found} on this CPU: use precision=fp32")
    if found > 1:
        sentence = f"bf16 convolutions take {found:.1f} times as long as others on this CPU: precision=fp32 is faster"
        warnings.warn(sentence, SosnWarning, stacklevel=2)


@cache
def try_bf16() -> float | str:
    """How many times longer than others bf16 convolutions take, or what is wrong with them; a process finds out once."""
    try:
        tried = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return "do not come to an end"
    return "do not work" if tried.returncode else float(tried.stdout)
