"""How much memory this process may use."""

import math
import os
from pathlib import Path

_GROUPS = (  # cgroups v2 and v1: the mark in /proc/self/cgroup, the mount point, and the files with limit, usage and cache
    ("0::", "/sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")),
    (":memory:", "/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
)


def free_memory() -> float:
    """Bytes that this process may use, including those it uses now; all memory if the system does not say more."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    try:
        available = dict(line.split(":") for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1]) * page
        return min(float(1024 * int(available["MemAvailable"].split()[0])), _left_by_container()) + resident
    except (OSError, KeyError, ValueError):
        return float(page * os.sysconf("SC_PHYS_PAGES")) if page else 8e9


def _left_by_container() -> float:
    """Bytes left by the memory limits of a container or job, counting cached files as free; infinite without a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text("ascii").splitlines()
    except OSError:
        return math.inf
    free = math.inf
    for mark, root, files in _GROUPS:
        for line in lines:
            _, found, path = line.partition(mark)
            group = Path(root, path.strip().lstrip("/"))
            for folder in (group, *group.parents) if found else ():
                if folder.is_relative_to(root):
                    free = min(free, _left_by_group(folder, *files))
    return free


def _left_by_group(folder: Path, limit: str, used: str, cached: str) -> float:
    try:
        most, taken = (int((folder / file).read_text("ascii")) for file in (limit, used))
        lines = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        return max(0.0, float(most - taken + int(lines[cached])))
    except (OSError, KeyError, ValueError):  # no such files, or "max"
        return math.inf
