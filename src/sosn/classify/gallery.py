"""A gallery of thousands of classes: a shortlist by descriptors, ranked by the similarity net, stored in SQLite."""

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
SHORTLIST = 50  # classes that the similarity net ranks
SCHEMA = "create table if not exists classes (label text primary key, images integer not null, descriptor blob not null)"


@dataclass(frozen=True)
class Match:
    """A class and its similarity to an image."""

    label: str
    similarity: float  # of the similarity net, between 0 and 1


class Gallery:
    """A collection of named classes, each stored as its second-order descriptor, on disk and in memory.

    The folder contains the model (safetensors) and the classes (SQLite). Every add and remove is one transaction and does not
    touch other classes. A query is compared with all descriptors by cosine similarity, with FAISS if it is installed, and the
    similarity net ranks the nearest classes. The polarity of `create` is stored with the gallery.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu") -> None:
        """Open a gallery that `create` wrote. Refuses a folder without one."""
        self.folder = Path(folder)
        if not (self.folder / CLASSES_FILE).is_file():
            raise CheckpointError(f"there is no gallery in {str(folder)!r}: create one with Gallery.create")
        method, about = load_method(self.folder / WEIGHTS_FILE)
        self.method = _checked(method.to(resolve_device(device)))
        self._reader = Reader(method.preprocessing, about.get("polarity", "auto"))
        rows = self._rows()
        self.labels: list[str] = [label for label, _ in rows]
        shape = self._shape()
        flat = np.frombuffer(b"".join(blob for _, blob in rows), np.float16)
        if flat.size != len(rows) * int(np.prod(shape)):
            raise CheckpointError(f"the classes in {str(folder)!r} belong to another model: create the gallery again")
        self._described = torch.from_numpy(flat.copy()).view(len(rows), *shape)  # half precision: 8 kB per class
        self._index = _index(self._directions(self._described))

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        model: str | os.PathLike[str],
        device: str = "cpu",
        polarity: Inverting = "auto",
    ) -> Self:
        """Create an empty gallery for a SoSN model, given by name or run folder. Refuses a folder that is not empty.

        polarity: "auto" inverts light-on-dark drawings for models trained on dark-on-light ones, or the reverse, and warns of
        it; "as_is" never inverts.
        """
        path = Path(folder)
        if path.exists() and any(path.iterdir()):
            raise UsageError(f"{str(folder)!r} is not empty: choose another folder, or open it with Gallery")
        method = _checked(load(os.fspath(model)))
        background_for(method.preprocessing, polarity)  # refuses an unknown polarity
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
        """Add a class from one or more images. Refuses a class that is already there."""
        self._add({label: images})

    def add_classes(self, classes: "dict[str, Any]") -> None:
        """Add many classes, given as images by label, in one transaction."""
        self._add(classes)

    def _add(self, classes: "dict[str, Any]") -> None:
        known = set(self.labels)
        for label in classes:
            if not isinstance(label, str) or not label:
                raise UsageError(f"label {label!r} is not a name: labels must be non-empty strings")
            if label in known:
                raise UsageError(f"class {label!r} is already in the gallery: remove it first")
        pictures = {label: list_pictures(images) for label, images in classes.items()}
        found = [self._describe(self._reader.read_all(shots), together=True)[0] for shots in pictures.values()]
        described = torch.stack(found).cpu().half()
        blobs = [one.numpy().tobytes() for one in described]
        rows = [(label, len(shots), blob) for (label, shots), blob in zip(pictures.items(), blobs, strict=True)]
        with self._base() as base:
            base.executemany("insert into classes values (?, ?, ?)", rows)
        self.labels += pictures
        self._described = torch.cat((self._described, described))
        self._index.add(self._directions(described))
        self._reader.warn(stacklevel=3)

    def remove(self, label: str) -> None:
        """Remove a class. Refuses a class that is not there."""
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
        """Return the most similar classes of each image, best first.

        top: classes to return. shortlist: classes that the similarity net ranks; None ranks all.
        """
        if not self.labels:
            raise DataError("the gallery is empty: add classes first")
        if top < 1 or (shortlist is not None and shortlist < 1):
            raise UsageError(f"top is {top} and shortlist is {shortlist}; both must be 1 or more")
        queries = self._queries(images, 1)
        if shortlist is None or shortlist >= len(self.labels):
            rows = torch.arange(len(self.labels)).expand(len(queries), -1)
        else:
            rows = self._index.nearest(self._directions(queries.cpu()), shortlist)
        found = []
        for query, row in zip(queries, rows, strict=True):
            support = self._described[row].to(self.method.device, self.method.dtype)
            logits = self.method.compare(support.unsqueeze(0), query[None, None])[0, 0]
            places = logits.topk(min(top, len(row))).indices.cpu()  # logits, because scores near 1 are equal in floating point
            scores = self.method.score(logits).cpu()[places]
            found.append([Match(self.labels[int(row[p])], float(s)) for s, p in zip(scores, places, strict=True)])
        return found

    def shortlist(self, images: Pictures, size: int = SHORTLIST) -> list[list[str]]:
        """Return the classes whose descriptors are nearest to those of each image, without the similarity net."""
        queries = self._queries(images).cpu()
        rows = self._index.nearest(self._directions(queries), min(size, len(self.labels)))
        return [[self.labels[place] for place in row.tolist()] for row in rows]

    def _queries(self, images: Pictures, decorators: int = 0) -> Tensor:
        """Return a descriptor for each image. decorators: those of the public caller, for the place of a warning."""
        found = self._reader.read_all(list_pictures(images))
        self._reader.warn(stacklevel=3 + decorators)
        return self._describe(found, together=False)

    def _describe(self, images: Tensor, together: bool) -> Tensor:
        """Return descriptors (B, P, S, K, K) of images, or with `together` (1, …), that of one class with these shots."""
        maps = encode_images(self.method, images)
        with torch.inference_mode():
            return self.method.describe(maps.unsqueeze(0) if together else maps.unsqueeze(1))

    def _directions(self, described: Tensor) -> Tensor:
        return _directions(described, symmetric=self.method.second_order is not None and described.ndim == 5)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of a class descriptor."""
        size, channels = self.method.preprocessing.source, self.method.preprocessing.channels
        blank = torch.zeros(1, channels, size, size, dtype=torch.uint8)
        return tuple(self._describe(blank, together=True).shape[1:])

    def _rows(self) -> list[tuple[str, bytes]]:
        with self._base() as base:
            return list(base.execute("select label, descriptor from classes order by rowid"))

    @contextmanager
    def _base(self) -> Iterator[sqlite3.Connection]:
        """Open the file of classes for one transaction."""
        try:
            with closing(sqlite3.connect(self.folder / CLASSES_FILE)) as base, base:
                yield base
        except sqlite3.IntegrityError as error:
            raise UsageError(f"another process added the same class ({error}): open the gallery again") from error
        except sqlite3.DatabaseError as error:
            raise CheckpointError(f"{str(self.folder / CLASSES_FILE)!r} cannot be used ({error})") from error


def _checked(method: Method) -> Method:
    """Return a method. Refuses one that is untrained or has no class descriptors of fixed size."""
    if not method.describes_images or not method.fixed_size:
        raise UsageError(
            "a gallery needs a model with class descriptors of fixed size, such as SoSN with relation average, ranked, or_like "
            f"or difference, not {method.name!r}"
        )
    method.check_trained()
    return method


def _directions(described: Tensor, symmetric: bool) -> Tensor:
    """Return descriptors as unit vectors; of matrices (B, P, S, K, K), the upper triangles of the first permutation."""
    vectors = upper_triangle(described[:, 0].float(), isometric=True) if symmetric else described.float()
    return F.normalize(vectors.flatten(1), dim=1)


class _Exact:
    """Exact search for the unit vectors with the largest inner products with a query."""

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
    """The same search with FAISS. Its flat index shifts the rows after a removed one, as a list does."""

    def __init__(self, vectors: Tensor) -> None:
        import faiss

        self.index: Any = faiss.IndexFlatIP(vectors.shape[1])  # FAISS's type annotations are incomplete
        self.add(vectors)

    def add(self, vectors: Tensor) -> None:
        self.index.add(vectors.numpy())

    def remove(self, place: int) -> None:
        self.index.remove_ids(np.array([place], np.int64))

    def nearest(self, queries: Tensor, count: int) -> Tensor:
        return torch.from_numpy(self.index.search(queries.numpy(), count)[1])


def _index(vectors: Tensor) -> "_Exact | _Faiss":
    return _Exact(vectors) if find_spec("faiss") is None else _Faiss(vectors)
