"""The classes of a gallery in an SQLite file: label, number of images, descriptor, and a short sketch of the descriptor."""

import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sosn.errors import CheckpointError, UsageError

Array = np.ndarray[Any, Any]
SCHEMA = (
    "create table if not exists classes (label text primary key, images integer not null, descriptor blob not null)",
    # ids only rise, so that a reader finds new classes by id
    "create table if not exists sketches "
    "(id integer primary key autoincrement, label text not null unique, sketch blob not null)",
    "create trigger if not exists removed after delete on classes begin delete from sketches where label = old.label; end",
    "create table if not exists settings (name text primary key, value text not null)",
)
WAIT = 30.0  # seconds for another process to finish its change
AT_ONCE = 1_000  # rows


@dataclass(frozen=True)
class Classes:
    """Some classes: labels, numbers of images, and descriptors (n, …) in half precision."""

    labels: list[str]
    images: list[int]
    descriptors: Tensor

    def take(self, places: Sequence[int]) -> "Classes":
        """Return the classes at these places, in this order."""
        return Classes([self.labels[p] for p in places], [self.images[p] for p in places], self.descriptors[list(places)])


class ClassStore:
    """Classes on disk. Every change is one transaction; several processes may read and write."""

    def __init__(self, path: Path, create: bool = False) -> None:
        self.path = path
        if create:
            with self.open() as base:
                for command in SCHEMA:
                    base.execute(command)

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction."""
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT)) as base, base:
                yield base
        except sqlite3.IntegrityError as error:
            raise UsageError(f"another process has just added the same class ({error}): remove it first") from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{str(self.path)!r} cannot be used ({error})") from error

    def mend(self, sketch: Callable[[bytes], bytes]) -> None:
        """Add missing tables and sketches, which galleries of earlier versions lack. Changes nothing if none are missing."""
        with self.open() as base:
            names = {name for (name,) in base.execute("select name from sqlite_master")}
            if {"sketches", "removed", "settings"} <= names and len(self) == _count(base, "sketches"):
                return
            for command in SCHEMA:
                base.execute(command)
            base.execute("begin immediate")
            unknown = "from classes where label not in (select label from sketches)"
            labels = [label for (label,) in base.execute(f"select label {unknown} order by rowid")]
            for label in labels:
                (blob,) = base.execute("select descriptor from classes where label = ?", (label,)).fetchone()
                base.execute("insert into sketches (label, sketch) values (?, ?)", (label, sketch(blob)))

    def __len__(self) -> int:
        with self.open() as base:
            return _count(base, "classes")

    def __contains__(self, label: object) -> bool:
        with self.open() as base:
            return base.execute("select 1 from classes where label = ?", (label,)).fetchone() is not None

    def labels(self) -> list[str]:
        """All labels, in the order in which they were added."""
        with self.open() as base:
            return [label for (label,) in base.execute("select label from sketches order by id")]

    def ids(self) -> list[int]:
        """All ids, rising."""
        with self.open() as base:
            return [one for (one,) in base.execute("select id from sketches order by id")]

    def descriptor_bytes(self) -> int | None:
        """The size of a descriptor, or None if there are no classes."""
        with self.open() as base:
            found = base.execute("select length(descriptor) from classes limit 1").fetchone()
        return None if found is None else int(found[0])

    def setting(self, name: str) -> str | None:
        with self.open() as base:
            found = base.execute("select value from settings where name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def set(self, name: str, value: str) -> None:
        with self.open() as base:
            base.execute("insert or replace into settings values (?, ?)", (name, value))

    def add(self, rows: Sequence[tuple[str, int, bytes, bytes]]) -> None:
        """Add classes: label, number of images, descriptor, sketch. All or none."""
        with self.open() as base:
            base.executemany("insert into classes values (?, ?, ?)", [row[:3] for row in rows])
            base.executemany("insert into sketches (label, sketch) values (?, ?)", [(row[0], row[3]) for row in rows])

    def remove(self, labels: Sequence[str]) -> None:
        """Remove classes. All or none."""
        with self.open() as base:
            base.executemany("delete from classes where label = ?", [(label,) for label in labels])

    def fetch(self, ids: Sequence[int], shape: tuple[int, ...]) -> Classes:
        """Return the classes with these ids, in their order, without those that were removed meanwhile."""
        found: dict[int, tuple[str, int, bytes]] = {}
        with self.open() as base:
            for first in range(0, len(ids), AT_ONCE):
                part = list(ids[first : first + AT_ONCE])
                marks = ", ".join("?" * len(part))
                query = f"select id, label, images, descriptor from sketches join classes using (label) where id in ({marks})"
                found |= {row[0]: row[1:] for row in base.execute(query, part)}
        rows = [found[one] for one in ids if one in found]
        flat = np.frombuffer(bytearray().join(blob for _, _, blob in rows), np.float16)
        return Classes([row[0] for row in rows], [row[1] for row in rows], torch.from_numpy(flat).view(len(rows), *shape))

    def sketches_after(self, known: int, most: int = sys.maxsize) -> tuple[Array, Array]:
        """Return the ids (n,) and sketches (n, d) of the first classes with an id above `known`, without a second copy."""
        with self.open() as base:
            where = "from sketches where id > ? order by id limit ?"
            count, size = base.execute(
                f"select count(*), max(length(sketch)) from (select sketch {where})", (known, most)
            ).fetchone()
            ids, sketches = np.empty(count, np.int64), np.empty((count, (size or 0) // 2), np.float16)
            cursor = base.execute(f"select id, sketch {where}", (known, count))
            for first in range(0, count, AT_ONCE):
                rows = cursor.fetchmany(AT_ONCE)
                ids[first : first + len(rows)] = [row[0] for row in rows]
                blobs = b"".join(row[1] for row in rows)
                sketches[first : first + len(rows)] = np.frombuffer(blobs, np.float16).reshape(len(rows), -1)
        return ids, sketches


def _count(base: sqlite3.Connection, table: str) -> int:
    return int(base.execute(f"select count(*) from {table}").fetchone()[0])
