"""The sketches of a gallery in an index of LanceDB on disk, for more classes than memory should hold or a scan should visit."""

import math
import shutil
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sosn.classify.class_store import Array, ClassStore
from sosn.errors import UsageError

INDEX_FOLDER = "index"  # in a gallery's folder
TABLE = "sketches"
AT_ONCE = 50_000  # sketches written at once
SCANNED = 10_000  # sketches up to which LanceDB compares all
PROBED = 80  # parts of the index that are searched; there are √n


class LanceSketches:
    """Does what Sketches does, and keeps only ids in memory. It follows the store, so it can be deleted at any time."""

    def __init__(self, store: ClassStore, folder: Path) -> None:
        """Open an index that `build` wrote."""
        self.store = store
        self.table = _connect(folder).open_table(TABLE)
        self.ids = np.sort(self.table.search().select(["id"]).limit(None).to_arrow()["id"].to_numpy())
        self.last = int(self.ids[-1]) if len(self.ids) else 0

    @classmethod
    def build(cls, store: ClassStore, folder: Path) -> "LanceSketches":
        """Build the index of a store, or build it again. An interrupted call leaves the index as it was."""
        new = folder.with_name(f".{folder.name}-new")
        shutil.rmtree(new, ignore_errors=True)
        base = _connect(new)
        ids, sketches = store.sketches_after(0, AT_ONCE)
        table = base.create_table(TABLE, _rows(ids, sketches))
        while len(ids):
            ids, sketches = store.sketches_after(int(ids[-1]), AT_ONCE)
            if len(ids):
                table.add(_rows(ids, sketches))
        count = table.count_rows()
        if count > SCANNED:
            from lancedb.index import IvfFlat

            table.create_index("sketch", config=IvfFlat(distance_type="l2", num_partitions=math.isqrt(count)))
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
        return cls(store, folder)

    def __len__(self) -> int:
        return len(self.ids)

    def refresh(self) -> None:
        """Follow the changes of the store, also those of other processes, which may write the same rows."""
        while True:
            ids, sketches = self.store.sketches_after(self.last, AT_ONCE)
            if not len(ids):
                break
            self.table.merge_insert("id").when_not_matched_insert_all().execute(_rows(ids, sketches))
            self.ids, self.last = np.concatenate((self.ids, ids)), int(ids[-1])
        if len(self) != len(self.store):
            kept = np.isin(self.ids, self.store.ids())
            for part in np.array_split(self.ids[~kept], math.ceil((~kept).sum() / 1_000)):
                self.table.delete(f"id in ({', '.join(map(str, part))})")
            self.ids = self.ids[kept]

    def nearest(self, queries: Tensor, count: int) -> list[list[int]]:
        """Return the ids of the sketches nearest to each query (Q, SIZE), nearest first. It misses a few."""
        found = []
        for query in queries.numpy():
            search = self.table.search(query, vector_column_name="sketch").distance_type("l2").limit(min(count, len(self)))
            search = search.nprobes(PROBED).select(["id", "_distance"])
            found.append(search.to_arrow()["id"].to_pylist())
        return found


def _connect(folder: Path) -> Any:  # LanceDB's annotations are incomplete
    if find_spec("lancedb") is None:
        raise UsageError(f"the index {str(folder)!r} needs LanceDB: pip install 'lancedb>=0.30', or go on without that folder")
    import lancedb

    return lancedb.connect(folder, read_consistency_interval=timedelta(0))


def _rows(ids: Array, sketches: Array) -> Any:
    import pyarrow

    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(sketches.ravel()), max(1, sketches.shape[1]))
    return pyarrow.table({"id": pyarrow.array(ids), "sketch": vectors})
