"""Measure the time to prepare a dataset, and to open it afterwards in a new process.

    python benchmarks/prepare.py --data omniglot --from omniglot.tar.xz --out results/prepare-cpu.json
    python benchmarks/prepare.py --data mini-imagenet --from mini-imagenet --out results/prepare-cpu.json

Every measurement runs in a separate process, in a bank folder that is removed afterwards. The row of a dataset is added to the
file, or replaces an earlier one. Files have just been written, so they are still cached in memory when they are opened.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import sosn

PREPARE = """
import json, sys, time
from pathlib import Path
from sosn.data.prepare.catalog import prepare_dataset
began = time.perf_counter()
found = prepare_dataset(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) or None)
print(json.dumps(found | {"seconds": time.perf_counter() - began}))
"""
OPEN = """
import time
began = time.perf_counter()
import json, sys
from sosn.data.dataset import open_bank
from sosn.errors import MissingSplitError
imported = time.perf_counter()
try:
    bank = open_bank(sys.argv[1], sys.argv[2], size=int(sys.argv[3]))
except MissingSplitError:
    print("null")
else:
    opened = time.perf_counter()
    found = {"classes": len(bank.names), "images": len(bank), "seconds": opened - imported, "import_seconds": imported - began}
    print(json.dumps(found))
"""


def child(program: str, home: Path, *words: str) -> tuple[Any, float]:
    """Return the JSON output of a new process and its run time."""
    began = time.perf_counter()
    environment = os.environ | {"SOSN_HOME": str(home)}
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(ended.stdout), time.perf_counter() - began


def opening(home: Path, data: str, split: str, size: int, repeats: int) -> dict[str, Any] | None:
    """Return the median times to open a split, or None if it is missing."""
    found: dict[str, Any] = {}
    for _ in range(repeats):
        one, wall = child(OPEN, home, data, split, str(size))
        if one is None:
            return None
        found |= {name: one[name] for name in ("classes", "images")}
        for name, value in (("seconds", one["seconds"]), ("import_seconds", one["import_seconds"]), ("process_seconds", wall)):
            found.setdefault(name, []).append(value)
    return {name: statistics.median(value) if isinstance(value, list) else value for name, value in found.items()}


def weight(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def measure(data: str, source: Path, size: int, repeats: int) -> dict[str, Any]:
    """Return the row of a dataset."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        found, _ = child(PREPARE, home, data, str(source), str(size))
        bank = weight(home)
        splits = {split: opening(home, data, split, found["size"], repeats) for split in ("train", "val", "test")}
    return {
        "data": data, "size": found["size"], "classes": found["classes"], "images": found["images"],
        "source_bytes": weight(source), "bank_bytes": bank, "prepare_seconds": found["seconds"],
        "open": {split: row for split, row in splits.items() if row},
        "machine": f"CPU, {os.cpu_count()} cores", "load_before": load,
        "versions": {"sosn": sosn.__version__, "torch": torch.__version__},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--size", type=int, default=0, help="side of the images; 0 is the default")
    parser.add_argument("--repeats", type=int, default=5, help="openings of each split")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    row = measure(wanted.data, wanted.source, wanted.size, wanted.repeats)
    rows = json.loads(wanted.out.read_text("utf-8"))["rows"] if wanted.out.exists() else []
    rows = [one for one in rows if (one["data"], one["size"]) != (row["data"], row["size"])] + [row]
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "what": "preparing datasets, and opening them in fresh processes",
        "rows": sorted(rows, key=lambda one: one["data"]),
    }
    wanted.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
