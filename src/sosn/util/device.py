"""The device that computes, and its name."""

import platform
import re
from contextlib import suppress
from pathlib import Path

import torch

from sosn.errors import UsageError


def resolve_device(name: str) -> torch.device:
    """Return a device by name; "auto" is the GPU if there is one. Refuses a device that does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device is {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {name!r}; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device is {name!r}, but this machine has {torch.cuda.device_count()} GPUs: choose cpu")
    return torch.device("cpu") if device.type == "cpu" else device  # there is only one CPU: drop the index


def machine(device: torch.device | None = None) -> str:
    """Describe the device, or by default the machine, in a few words."""
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads ({_processor()})"


def _processor() -> str:
    """The name of the CPU."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
        if found:
            return " ".join(found[1].split())
    return platform.processor() or platform.machine()
