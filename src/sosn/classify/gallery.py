"""Thousands of classes: a shortlist by descriptors, ranked by the similarity net, in a file that survives a crash."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.checkpoint.registry import load
from sosn.checkpoint.storage import WEIGHTS_FILE, load_method, save_method
from sosn.classify.background import Inverting, background_for
from sosn.classify.reader import Reader
from sosn.classify.support import encode_images
from sosn.data.image import Pictures, list_pictures
from sosn.errors import CheckpointError, DataError, UsageError
from sosn.method.base import Method
from sosn.second_order import upper_triangle
from sosn.util.device import resolve_device
from sosn.util.spelling import nearest

CLASSES_FILE = "classes.sqlite"
SHORTLIST = 50  # classes that the similarity net looks at
SCHEMA = "create table if not exists classes (label text primary key, images integer not null, descriptor blob not null)"


@dataclass(frozen=True)
class Match:
    """A class that a picture may be of."""

    label: str
    similarity: float  # of the similarity net, between 0 and 1


class Gallery:
    """Classes by name, each remembered as its second-order descriptor, on disk and in memory.

    A folder holds the model (safetensors) and the classes (SQLite): every add and remove is a transaction, whole or not
    there, and touches no other class. A query is compared with all descriptors by cosine (FAISS where it is installed, a
    matrix product elsewhere), and the similarity net ranks the nearest ones. A gallery remembers the polarity it was
    created with.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu") -> None:
        """Open a gallery that create made. Refuses a folder that holds none."""
        self.folder = Path(folder)
        if not (self.folder / CLASSES_FILE).is_file():
            raise CheckpointError(f"{str(folder)!r} holds no gallery: make one with Gallery.create")
        method, about = load_method(self.folder / WEIGHTS_FILE)
        self.method = _checked(method.to(resolve_device(device)))
        self._reader = Reader(method.preprocessing, about.get("polarity", "auto"))
        rows = self._rows()
        self.labels: list[str] = [label for label, _ in rows]
        shape = self._shape()
        flat = np.frombuffer(b"".join(blob for _, blob in rows), np.float16)
        if flat.size != len(rows) * int(np.prod(shape)):
            raise CheckpointError(f"the classes in {str(folder)!r} belong to another model: create the gallery again")
        self._described = torch.from_numpy(flat.copy()).view(len(rows), *shape)  # half precision: 8 kB a class
        self._index = _index(self._directions(self._described))

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        model: str | os.PathLike[str],
        device: str = "cpu",
        polarity: Inverting = "auto",
    ) -> Self:
        """An empty gallery for a SoSN model, by name or run folder. Refuses a folder that holds something else.

        polarity: "auto" inverts drawings on the other background than those that the model was trained on, and warns of it;
        "as_is" leaves all pictures as they are.
        """
        path = Path(folder)
        if path.exists() and any(path.iterdir()):
            raise UsageError(f"{str(folder)!r} is not empty: choose another folder, or open it with Gallery")
        method = _checked(load(os.fspath(model)))
        background_for(method.preprocessing, polarity)  # refuses a polarity that there is not
        path.mkdir(parents=True, exist_ok=True)
        save_method(path / WEIGHTS_FILE, method, {"polarity": polarity})
        with closing(sqlite3.connect(path / CLASSES_FILE)) as base, base:
            base.execute(SCHEMA)
        return cls(folder, device)

    def __len__(self) -> int:
        return len(self.labels)

    def __contains__(self, label: object) -> bool:
        return label in self.labels

    def add(self, label: str, images: Pictures) -> None:
        """Add a class from one or more pictures. Refuses one that is there."""
        self._add({label: images})

    def add_classes(self, classes: "dict[str, Any]") -> None:
        """Add many classes, pictures by label, all or none of them."""
        self._add(classes)

    def _add(self, classes: "dict[str, Any]") -> None:
        known = set(self.labels)
        for label in classes:
            if not isinstance(label, str) or not label:
                raise UsageError(f"a class is called {label!r}; names are words")
            if label in known:
                raise UsageError(f"class {label!r} is in the gallery: remove it first")
        pictures = {label: list_pictures(images) for label, images in classes.items()}
        found = [self._describe(self._reader.read_all(own), together=True)[0] for own in pictures.values()]
        described = torch.stack(found).cpu().half()
        rows = [(label, len(own), one.numpy().tobytes()) for (label, own), one in zip(pictures.items(), described, strict=True)]
        with self._base() as base:
            base.executemany("insert into classes values (?, ?, ?)", rows)
        self.labels += pictures
        self._described = torch.cat((self._described, described))
        self._index.add(self._directions(described))
        self._reader.warn(stacklevel=3)

    def remove(self, label: str) -> None:
        """Forget a class. Refuses one that is not there."""
        if label not in self.labels:
            raise DataError(f"there is no class {label!r} in the gallery{nearest(label, self.labels)}")
        with self._base() as base:
            base.execute("delete from classes where label = ?", (label,))
        place = self.labels.index(label)
        del self.labels[place]
        self._described = torch.cat((self._described[:place], self._described[place + 1 :]))
        self._index.remove(place)

    @torch.inference_mode()
    def search(self, images: Pictures, top: int = 5, shortlist: int | None = SHORTLIST) -> list[list[Match]]:
        """For each picture the most similar classes, best first. shortlist=None has the similarity net score all classes."""
        if not self.labels:
            raise DataError("the gallery is empty: add classes first")
        if top < 1 or (shortlist is not None and shortlist < 1):
            raise UsageError(f"top is {top} and shortlist {shortlist}; both are 1 or more")
        queries = self._queries(images, 1)
        if shortlist is None or shortlist >= len(self.labels):
            rows = torch.arange(len(self.labels)).expand(len(queries), -1)
        else:
            rows = self._index.nearest(self._directions(queries.cpu()), shortlist)
        found = []
        for query, row in zip(queries, rows, strict=True):
            support = self._described[row].to(self.method.device, self.method.dtype)
            logits = self.method.compare(support.unsqueeze(0), query[None, None])[0, 0]
            places = logits.topk(min(top, len(row))).indices.cpu()  # not of scores, which near 1 are the same to the bit
            scores = self.method.score(logits).cpu()[places]
            found.append([Match(self.labels[int(row[p])], float(s)) for s, p in zip(scores, places, strict=True)])
        return found

    def shortlist(self, images: Pictures, size: int = SHORTLIST) -> list[list[str]]:
        """The classes whose descriptors are nearest to each picture's, before the similarity net has looked at them."""
        queries = self._queries(images).cpu()
        rows = self._index.nearest(self._directions(queries), min(size, len(self.labels)))
        return [[self.labels[place] for place in row.tolist()] for row in rows]

    def _queries(self, images: Pictures, decorators: int = 0) -> Tensor:
        """Descriptions of pictures, one each; decorators: of the function that a user calls."""
        found = self._reader.read_all(list_pictures(images))
        self._reader.warn(stacklevel=3 + decorators)
        return self._describe(found, together=False)

    def _describe(self, images: Tensor, together: bool) -> Tensor:
        """Descriptors (B, P, S, K, K) of images, or (1, …) of one class that they all show."""
        maps = encode_images(self.method, images)
        with torch.inference_mode():
            return self.method.describe(maps.unsqueeze(0) if together else maps.unsqueeze(1))

    def _directions(self, described: Tensor) -> Tensor:
        return _directions(described, symmetric=described.ndim == 5)

    def _shape(self) -> tuple[int, ...]:
        """Of the description of a class."""
        size, channels = self.method.preprocessing.source, self.method.preprocessing.channels
        blank = torch.zeros(1, channels, size, size, dtype=torch.uint8)
        return tuple(self._describe(blank, together=True).shape[1:])

    def _rows(self) -> list[tuple[str, bytes]]:
        with self._base() as base:
            return list(base.execute("select label, descriptor from classes order by rowid"))

    @contextmanager
    def _base(self) -> Iterator[sqlite3.Connection]:
        """The file of classes, for one transaction."""
        try:
            with closing(sqlite3.connect(self.folder / CLASSES_FILE)) as base, base:
                yield base
        except sqlite3.IntegrityError as error:
            raise UsageError(f"another process has added the same class meanwhile ({error}): open the gallery again") from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{str(self.folder / CLASSES_FILE)!r} cannot be used ({error})") from error


def _checked(method: Method) -> Method:
    """A trained method that describes a class by one thing of a fixed size, whatever its number of pictures."""
    if not method.describes_images or not method.fixed_size:
        raise UsageError(
            f"a gallery needs a model that describes each class by itself, such as SoSN with relation average, ranked, or_like "
            f"or difference, not {method.name!r}"
        )
    method.check_trained()
    return method


def _directions(described: Tensor, symmetric: bool) -> Tensor:
    """Descriptions as unit vectors; of symmetric matrices (B, P, S, K, K) the upper triangles of the first permutation."""
    own = upper_triangle(described[:, 0].float(), isometric=True) if symmetric else described.float()
    return F.normalize(own.flatten(1), dim=1)


class _Exact:
    """Unit vectors, and which of them have the largest inner products with a query's."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors

    def add(self, vectors: Tensor) -> None:
        self.vectors = torch.cat((self.vectors, vectors))

    def remove(self, place: int) -> None:
        self.vectors = torch.cat((self.vectors[:place], self.vectors[place + 1 :]))

    def nearest(self, queries: Tensor, count: int) -> Tensor:
        """Rows (Q, count), nearest first."""
        return (queries @ self.vectors.T).topk(count, dim=1).indices


class _Faiss:
    """The same by FAISS, whose flat index shifts the rows behind a removed one as a list does."""

    def __init__(self, vectors: Tensor) -> None:
        import faiss

        self.index: Any = faiss.IndexFlatIP(vectors.shape[1])  # its annotations know less than it does
        self.add(vectors)

    def add(self, vectors: Tensor) -> None:
        self.index.add(vectors.numpy())

    def remove(self, place: int) -> None:
        self.index.remove_ids(np.array([place], np.int64))

    def nearest(self, queries: Tensor, count: int) -> Tensor:
        return torch.from_numpy(self.index.search(queries.numpy(), count)[1])


def _index(vectors: Tensor) -> "_Exact | _Faiss":
    return _Exact(vectors) if find_spec("faiss") is None else _Faiss(vectors)
