"""Compare what could find the nearest of 100,000 sketches: the gallery's own scan, and vector engines that run embedded.

    pip install lancedb qdrant-client usearch faiss-cpu sqlite-vec
    python benchmarks/gallery_engines.py --out results/gallery-engines.json

The sketches are synthetic: 256 numbers in half precision, of decreasing spread, in groups. Every engine runs in its own
process, with one thread. An engine that is not installed or cannot run is listed with its error.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

DIMENSIONS, FOUND, QUERIES, CHANGES = 256, 500, 50, 10
PACKAGES = {"scan": "sosn", "lancedb": "lancedb", "usearch": "usearch", "faiss": "faiss-cpu", "qdrant": "qdrant-client",
            "sqlite-vec": "sqlite-vec"}  # fmt: skip
Array = np.ndarray[Any, Any]


def sketches(count: int, key: int) -> Array:
    """Draw vectors (count, 256) in groups of about a hundred."""
    groups = np.random.default_rng(0).standard_normal((1_000, DIMENSIONS), np.float32)
    source = np.random.default_rng([1, key])
    spread = (1 + np.arange(DIMENSIONS, dtype=np.float32)) ** -0.5
    found = groups[source.integers(0, 1_000, count)] + 0.7 * source.standard_normal((count, DIMENSIONS), np.float32)
    return np.asarray(found * spread / 4, np.float16)


class Scan:
    """The gallery's: SQLite on disk, float16 in memory, compared by PyTorch."""

    def __init__(self, folder: Path, vectors: Array | None) -> None:
        import torch

        from sosn.classify.class_store import ClassStore

        torch.set_num_threads(1)
        self.torch = torch
        self.store = ClassStore(folder / "classes.sqlite", create=vectors is not None)
        if vectors is not None:
            self.store.add([(str(number), 1, b"", one.tobytes()) for number, one in enumerate(vectors)])
        self.index = self.open_index(folder, new=vectors is not None)
        self.index.refresh()

    def open_index(self, folder: Path, new: bool) -> Any:
        from sosn.classify.sketches import Sketches

        return Sketches(self.store)

    def nearest(self, query: Array) -> list[int]:
        self.index.refresh()
        return [one - 1 for one in self.index.nearest(self.torch.from_numpy(query[None]).float(), FOUND)[0]]

    def add(self, number: int, vector: Array) -> None:
        self.store.add([(str(number), 1, b"", vector.tobytes())])

    def remove(self, number: int) -> None:
        self.store.remove([str(number)])


class LanceDB(Scan):
    """SQLite, and beside it an inverted-file index on disk."""

    def open_index(self, folder: Path, new: bool) -> Any:
        from sosn.classify.lance_sketches import LanceSketches

        return (LanceSketches.build if new else LanceSketches)(self.store, folder / "index")

    def add(self, number: int, vector: Array) -> None:
        super().add(number, vector)
        self.index.refresh()

    def remove(self, number: int) -> None:
        super().remove(number)
        self.index.refresh()


class Usearch:
    """A graph (HNSW) in memory, saved as one file."""

    def __init__(self, folder: Path, vectors: Array | None) -> None:
        from usearch.index import Index

        self.index: Any = Index(ndim=DIMENSIONS, metric="l2sq", dtype="f16")
        if vectors is None:
            self.index.load(str(folder / "index"))
        else:
            self.index.add(np.arange(len(vectors)), vectors, threads=1)
            self.index.save(str(folder / "index"))

    def nearest(self, query: Array) -> list[int]:
        return list(self.index.search(query, FOUND).keys.tolist())

    def add(self, number: int, vector: Array) -> None:
        self.index.add(number, vector)

    def remove(self, number: int) -> None:
        self.index.remove(number)


class Faiss:
    """An exact scan in memory in single precision, saved as one file."""

    def __init__(self, folder: Path, vectors: Array | None) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self.index: Any
        if vectors is None:
            self.index = faiss.read_index(str(folder / "index"))
        else:
            self.index = faiss.IndexFlatL2(DIMENSIONS)
            self.index.add(vectors.astype(np.float32))
            faiss.write_index(self.index, str(folder / "index"))

    def nearest(self, query: Array) -> list[int]:
        return list(self.index.search(query[None].astype(np.float32), FOUND)[1][0].tolist())

    def add(self, number: int, vector: Array) -> None:
        self.index.add(vector[None].astype(np.float32))

    def remove(self, number: int) -> None:
        self.index.remove_ids(np.array([number], np.int64))


class Qdrant:
    """Qdrant's local mode."""

    def __init__(self, folder: Path, vectors: Array | None) -> None:
        from qdrant_client import QdrantClient, models

        self.client, self.models = QdrantClient(path=str(folder / "index")), models
        if vectors is not None:
            size = models.VectorParams(size=DIMENSIONS, distance=models.Distance.EUCLID)
            self.client.create_collection("sketches", vectors_config=size)
            for first in range(0, len(vectors), 2_000):
                part = vectors[first : first + 2_000].tolist()
                self.client.upsert("sketches", models.Batch(ids=list(range(first, first + len(part))), vectors=part))

    def nearest(self, query: Array) -> list[int]:
        return [int(point.id) for point in self.client.query_points("sketches", query=query.tolist(), limit=FOUND).points]

    def add(self, number: int, vector: Array) -> None:
        self.client.upsert("sketches", self.models.Batch(ids=[number], vectors=[vector.tolist()]))

    def remove(self, number: int) -> None:
        self.client.delete("sketches", [number])


class SqliteVec:
    """An extension of SQLite that scans vectors on disk."""

    def __init__(self, folder: Path, vectors: Array | None) -> None:
        import sqlite3

        import sqlite_vec

        self.base = sqlite3.connect(folder / "index")
        self.base.enable_load_extension(True)
        sqlite_vec.load(self.base)
        if vectors is not None:
            self.base.execute(f"create virtual table sketches using vec0(id integer primary key, vector float[{DIMENSIONS}])")
            for number, one in enumerate(vectors):
                self.base.execute("insert into sketches values (?, ?)", (number, one.astype(np.float32).tobytes()))
            self.base.commit()

    def nearest(self, query: Array) -> list[int]:
        wanted = "select id from sketches where vector match ? and k = ? order by distance"
        return [one for (one,) in self.base.execute(wanted, (query.astype(np.float32).tobytes(), FOUND))]

    def add(self, number: int, vector: Array) -> None:
        with self.base:
            self.base.execute("insert into sketches values (?, ?)", (number, vector.astype(np.float32).tobytes()))

    def remove(self, number: int) -> None:
        with self.base:
            self.base.execute("delete from sketches where id = ?", (number,))


ENGINES: dict[str, Any] = {
    "scan": Scan, "lancedb": LanceDB, "usearch": Usearch, "faiss": Faiss, "qdrant": Qdrant, "sqlite-vec": SqliteVec
}  # fmt: skip


def timed(act: Any, values: Any) -> tuple[list[Any], float]:
    """Return the results of calls, and the time of the fastest, which other programs disturb least, in milliseconds."""
    found, seconds = [], []
    for one in values:
        began = time.perf_counter()
        found.append(act(*one))
        seconds.append(time.perf_counter() - began)
    return found, 1e3 * min(seconds)


def resident() -> float:
    """Memory of this process in MB, without files that are mapped, such as libraries."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text("utf-8"))
    return int(found[1]) / 1000 if found else 0.0


def build(name: str, folder: Path, count: int) -> dict[str, Any]:
    if name in ("scan", "lancedb"):
        import sosn.classify.gallery  # noqa: F401  # the time of importing PyTorch is not that of building
    vectors, began = sketches(count, 0), time.perf_counter()
    ENGINES[name](folder, vectors)
    seconds = time.perf_counter() - began
    return {"build_seconds": seconds, "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())}


def ask(name: str, folder: Path, count: int) -> dict[str, Any]:
    if name in ("scan", "lancedb"):
        import sosn.classify.gallery  # noqa: F401  # the memory of PyTorch is not that of the index
    before, began = resident(), time.perf_counter()
    engine = ENGINES[name](folder, None)
    seconds = time.perf_counter() - began
    queries = sketches(QUERIES, 1)
    engine.nearest(queries[0])
    found, milliseconds = timed(engine.nearest, [(query,) for query in queries])
    told = {"open_seconds": seconds, "query_ms": milliseconds, "mb": resident() - before}
    told["add_ms"] = timed(engine.add, [(count + place, queries[place]) for place in range(CHANGES)])[1]
    told["remove_ms"] = timed(engine.remove, [(count + place,) for place in range(CHANGES)])[1]
    vectors = sketches(count, 0).astype(np.float32)
    squares = np.square(vectors).sum(1)
    exact = [np.argpartition(squares - 2 * vectors @ query.astype(np.float32), FOUND)[:FOUND] for query in queries]
    told["recall"] = float(np.mean([len(set(one) & set(row.tolist())) / FOUND for one, row in zip(found, exact, strict=True)]))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step", choices=["build", "ask"], help=argparse.SUPPRESS)  # in a process of its own
    wanted = parser.parse_args()
    if wanted.step:
        measure = build if wanted.step == "build" else ask
        print(json.dumps(measure(wanted.engines[0], wanted.out, wanted.classes)))
        return
    import torch

    from sosn.util.device import machine

    torch.set_num_threads(1)
    known = json.loads(wanted.out.read_text("utf-8"))["rows"] if wanted.out.exists() else []
    rows = {(row["classes"], row["engine"]): row for row in known}  # those of earlier calls stay
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LANCE_CPU_THREADS": "1"}
    for name in wanted.engines:
        row: dict[str, Any] = {"classes": wanted.classes, "engine": name}
        with tempfile.TemporaryDirectory() as folder:
            for step in ("build", "ask"):
                words = ["--engines", name, "--classes", str(wanted.classes), "--out", folder, "--step", step]
                done = subprocess.run(
                    [sys.executable, __file__, *words], env=os.environ | alone, capture_output=True, text=True
                )
                if done.returncode:
                    row["error"] = done.stderr.strip().splitlines()[-1]
                    break
                row |= json.loads(done.stdout.strip().splitlines()[-1]) | {"version": version(PACKAGES[name])}
        rows[wanted.classes, name] = row
        print(json.dumps(row), flush=True)
        document = {"found": FOUND, "machine": machine(torch.device("cpu")), "rows": list(rows.values())}
        wanted.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
