"""A gallery of very many classes: a shortlist by descriptors, ranked by the similarity net, stored in SQLite."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sosn.checkpoint.registry import load
from sosn.checkpoint.storage import WEIGHTS_FILE, load_method, save_method
from sosn.classify.background import Inverting, background_for
from sosn.classify.class_store import Classes, ClassStore
from sosn.classify.image_type import fitting_model, type_of_pictures
from sosn.classify.lance_sketches import INDEX_FOLDER, LanceSketches
from sosn.classify.reader import Reader
from sosn.classify.sketches import Sketches, sketch
from sosn.classify.support import IMAGES, encode_images
from sosn.data.image import Picture, Pictures, list_pictures
from sosn.data.listing import class_files, warn_skipped
from sosn.errors import CheckpointError, DataError, UsageError
from sosn.evaluation.calibration import CALIBRATION_FILE, Calibration, calibration_of, probabilities, read_calibration
from sosn.method.base import Method
from sosn.second_order import upper_triangle
from sosn.util.checks import one_of
from sosn.util.device import resolve_device
from sosn.util.files import write_atomically
from sosn.util.spelling import nearest

CLASSES_FILE = "classes.sqlite"
SHORTLIST = 50  # classes that the similarity net ranks
REFINED = 10  # times as many classes are found by sketches, and compared by their whole descriptors
TRANSACTION = 2_048  # images of classes that add_folder adds at once


@dataclass(frozen=True)
class Match:
    """A class and its similarity to an image."""

    label: str
    similarity: float  # of the similarity net, between 0 and 1
    probability: float | None = None  # among the shortlist; None for a model without calibration


@dataclass(frozen=True)
class Added:
    """What add_folder did: the number of added classes, known classes that it skipped, and files that cannot be read."""

    classes: int
    known: list[str]
    errors: list[str]


class Gallery:
    """A collection of named classes on disk, each stored as its descriptor.

    The folder contains the model (safetensors) and the classes (SQLite). Every change is one transaction and does not touch
    other classes; changes of other processes are seen by the next call. A query is compared with short sketches of all
    descriptors, the nearest classes by their whole descriptors, and the similarity net ranks the nearest of these. Only the
    sketches are in memory, 512 bytes a class; `build_index` keeps them on disk. The polarity of `create` is stored, too.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu") -> None:
        """Open a gallery that `create` wrote. Refuses a folder without one."""
        self.folder, self._device = Path(folder), resolve_device(device)
        if not (self.folder / CLASSES_FILE).is_file():
            raise CheckpointError(
                f"there is no gallery in {str(folder)!r}: create one with `sosn gallery create` or Gallery.create"
            )
        self._store = ClassStore(self.folder / CLASSES_FILE)
        index = self.folder / INDEX_FOLDER
        self._sketches = LanceSketches(self._store, index) if index.is_dir() else Sketches(self._store)
        self._method: Method | None = None
        self.model: str | None = None  # its name; None before it is chosen, and in galleries of earlier versions
        if (self.folder / WEIGHTS_FILE).is_file() or self._store.setting("model") != "auto":
            self._open_model()

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        model: str | os.PathLike[str] = "auto",
        device: str = "cpu",
        polarity: Inverting = "auto",
    ) -> Self:
        """Create an empty gallery. Refuses a folder that is not empty.

        model: the name of a shipped model, a run folder, or "auto", which chooses the shipped model for drawings or for photos
        when the first classes are added. polarity: "auto" inverts light-on-dark drawings for models trained on dark-on-light
        ones, or the reverse, and warns of it; "as_is" never inverts.
        """
        path = Path(folder)
        if path.is_file() or (path.exists() and any(path.iterdir())):
            raise UsageError(f"{str(folder)!r} is not empty: choose another folder, or open it with Gallery")
        one_of(("auto", "as_is"), polarity=polarity)
        method = None if model == "auto" else _checked(load(os.fspath(model)))
        path.mkdir(parents=True, exist_ok=True)
        if method is not None:
            _save_model(path, method, os.fspath(model), polarity)
        store = ClassStore(path / CLASSES_FILE, create=True)
        store.set("model", os.fspath(model))
        store.set("polarity", polarity)
        return cls(folder, device)

    @property
    def method(self) -> Method:
        """The model. Raises DataError before it is chosen."""
        if self._method is None and (self.folder / WEIGHTS_FILE).is_file():  # another process has chosen it
            self._open_model()
        if self._method is None:
            raise DataError("the gallery is empty: its model is chosen when the first classes are added")
        return self._method

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the model, if it has one."""
        return self._calibration if self.method else None

    @property
    def labels(self) -> list[str]:
        """All labels, in the order in which they were added."""
        return self._store.labels()

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, label: object) -> bool:
        return label in self._store

    def add(self, label: str, images: Pictures) -> None:
        """Add a class from one or more images. Refuses a class that is already there."""
        self._add({label: images})

    def add_classes(self, classes: Mapping[str, Pictures]) -> None:
        """Add many classes, given as images by label, in one transaction."""
        self._add(classes)

    def add_folder(self, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Added:
        """Add a folder with one subfolder of images per class, a few hundred classes a transaction.

        Classes that are already there are skipped, so an interrupted call can be repeated. Files that cannot be read are left
        out. Memory does not grow with the number of images. progress receives the finished number of images and the total.
        """
        found, others = class_files(Path(folder))
        warn_skipped(Path(folder), others)
        labels = set(self.labels)
        new = {label: cast(list[Picture], files) for label, files in found.items() if label not in labels}
        total, done, added = sum(map(len, new.values())), 0, 0
        errors: list[str] = []
        if new:
            self._choose_model(new)
        for names in _groups(new, TRANSACTION):
            rows = self._rows({name: new[name] for name in names}, errors)
            self._store.add(rows)
            added, done = added + len(rows), done + sum(len(new[name]) for name in names)
            if progress:
                progress(done, total)
        if new:
            self._reader.warn()
        return Added(added, [label for label in found if label in labels], errors)

    def build_index(self) -> None:
        """Build an index of the sketches on disk with LanceDB, for very many classes, or build it again after many changes.

        From then on, queries use it. Deleting the folder `index` goes back to sketches in memory. Refuses an empty gallery.
        """
        if not len(self):
            raise DataError("the gallery is empty: add classes first")
        self._sketches = LanceSketches.build(self._store, self.folder / INDEX_FOLDER)

    def remove(self, *labels: str) -> None:
        """Remove classes in one transaction. Refuses a class that is not there."""
        for label in labels:
            if label not in self:
                raise DataError(f"there is no class {label!r} in the gallery{nearest(label, self.labels)}")
        self._store.remove(labels)

    def search(
        self, images: Pictures, top: int = 5, shortlist: int | None = SHORTLIST, reject: float | None = None
    ) -> list[list[Match]]:
        """Return the most similar classes of each image, best first.

        top: classes to return. shortlist: classes that the similarity net ranks; None ranks all. reject: share of images of
        known classes that may be rejected, from 0.01 to 0.5; an image that is rejected gets an empty list. It was calibrated
        on up to 20 classes; with more, fewer images are rejected, known and unknown. Refused for a model without calibration.
        """
        self.check_query(top, shortlist, reject)
        found: list[list[Match]] = []
        for features in self._features(list_pictures(images)):
            found += self.search_features(features, top, shortlist, reject)
        self._reader.warn()
        return found

    @torch.inference_mode()
    def search_features(
        self, features: Tensor, top: int = 5, shortlist: int | None = SHORTLIST, reject: float | None = None
    ) -> list[list[Match]]:
        """Return the most similar classes for features of encode_images, as `search` does."""
        self.check_query(top, shortlist, reject)
        queries = self.method.describe(features.unsqueeze(1))
        if shortlist is None:
            every, logits = self._all_logits(queries)
            return [self._matches(every, row, top, reject) for row in logits]
        found = []
        for query, listed in zip(queries, self._shortlists(queries, shortlist), strict=True):
            found.append(self._matches(listed, self._logits(listed.descriptors, query[None])[0], top, reject))
        return found

    def shortlist(self, images: Pictures, size: int = SHORTLIST) -> list[list[str]]:
        """Return the classes whose descriptors are nearest to those of each image, without the similarity net."""
        self.check_query(1, size, None)
        found: list[list[str]] = []
        for features in self._features(list_pictures(images)):
            with torch.inference_mode():
                queries = self.method.describe(features.unsqueeze(1))
            found += [listed.labels for listed in self._shortlists(queries, size)]
        self._reader.warn()
        return found

    def check_query(self, top: int, shortlist: int | None, reject: float | None) -> None:
        """Refuse wrong arguments of `search`, and an empty gallery."""
        if top < 1 or (shortlist is not None and shortlist < 1):
            raise UsageError(f"top is {top} and shortlist is {shortlist}; both must be 1 or more")
        if not len(self):
            raise DataError("the gallery is empty: add classes first")
        if reject is None:
            return
        if self.calibration is None:
            raise UsageError(
                "reject needs a calibrated model, and that of this gallery is not: remove reject, or create the gallery again "
                "with a shipped model"
            )
        self.calibration.threshold(1, 1, reject)

    def new_reader(self) -> Reader:
        """Return a reader of images for the model."""
        return Reader(self.method.preprocessing, self._polarity)

    def _add(self, classes: Mapping[str, Pictures]) -> None:
        for label in classes:
            if not isinstance(label, str) or not label:
                raise UsageError(f"label {label!r} is not a name: labels must be non-empty strings")
            if label in self:
                raise UsageError(f"class {label!r} is already in the gallery: remove it first")
        pictures = {label: list_pictures(images) for label, images in classes.items()}
        self._choose_model(pictures)
        self._store.add(self._rows(pictures, None))
        self._reader.warn(stacklevel=3)

    def _rows(self, classes: Mapping[str, Sequence[Picture]], errors: list[str] | None) -> list[tuple[str, int, bytes, bytes]]:
        """Return rows for the store. errors: receives what cannot be read, and the rest is used; None: refuse it."""
        rows = []
        for names in _groups(classes, IMAGES):
            owners = [name for name in names for _ in classes[name]]
            pictures = [picture for name in names for picture in classes[name]]
            kept: list[str] = []
            features: list[Tensor] = []
            for first in range(0, len(pictures), IMAGES):
                read = self._reader.try_read(pictures[first : first + IMAGES])
                if errors is None:
                    read.all()
                else:
                    errors += map(str, read.errors.values())
                kept += [owners[first + place] for place in read.places]
                if read.places:
                    features.append(encode_images(self.method, read.images))
            counts = Counter(kept)
            parts = torch.cat(features).split(list(counts.values())) if kept else ()
            for name, shots in zip(counts, parts, strict=True):
                with torch.inference_mode():
                    described = self.method.describe(shots.unsqueeze(0)).cpu().half()
                rows.append((name, len(shots), described.numpy().tobytes(), self._sketch(described)))
        return rows

    def _sketch(self, described: Tensor) -> bytes:
        return sketch(self._directions(described)).half().numpy().tobytes()

    def _features(self, pictures: Sequence[Picture]) -> Iterator[Tensor]:
        for first in range(0, len(pictures), IMAGES):
            yield encode_images(self.method, self._reader.read_all(pictures[first : first + IMAGES]))

    def _shortlists(self, queries: Tensor, size: int) -> Iterator[Classes]:
        """Yield the classes whose descriptors are nearest to each query, nearest first."""
        directions = self._directions(queries.cpu())
        self._sketches.refresh()
        for direction, ids in zip(directions, self._sketches.nearest(sketch(directions), REFINED * size), strict=True):
            listed = self._store.fetch(ids, self._shape)
            cosines = self._directions(listed.descriptors) @ direction
            yield listed.take(cosines.topk(min(size, len(cosines))).indices.tolist())

    def _all_logits(self, queries: Tensor) -> tuple[Classes, Tensor]:
        """Return all classes, without their descriptors, and the logits (Q, L)."""
        ids, parts, logits = self._store.ids(), [], []
        for first in range(0, len(ids), TRANSACTION):
            part = self._store.fetch(ids[first : first + TRANSACTION], self._shape)
            logits.append(torch.cat([self._logits(part.descriptors, query[None]) for query in queries]))
            parts.append(part)
        labels, images = [one for part in parts for one in part.labels], [one for part in parts for one in part.images]
        return Classes(labels, images, torch.empty(len(labels), 0)), torch.cat(logits, 1)

    def _logits(self, descriptors: Tensor, queries: Tensor) -> Tensor:
        """Logits (Q, L)."""
        support = descriptors.to(self.method.device, self.method.dtype)
        return self.method.compare(support.unsqueeze(0), queries.unsqueeze(0))[0].float().cpu()

    def _matches(self, listed: Classes, logits: Tensor, top: int, reject: float | None) -> list[Match]:
        """Return the best classes by their logits, because similarities near 1 are equal in floating point."""
        if not len(logits):
            return []
        chances: list[float | None] = [None] * len(logits)
        if self.calibration is not None:
            shot = min(listed.images)
            way = 1 if self.method.linear else len(self)  # of linear methods, only thresholds of one class are absolute
            if reject is not None and float(logits.max()) < self.calibration.threshold(way, shot, reject):
                return []
            chances = probabilities(logits, self.calibration.temperature(len(self), shot)).tolist()
        scores = self.method.score(logits).tolist()
        places = logits.topk(min(top, len(logits))).indices.tolist()
        return [Match(listed.labels[place], scores[place], chances[place]) for place in places]

    def _directions(self, described: Tensor) -> Tensor:
        return _directions(described, symmetric=self.method.second_order is not None and described.ndim == 5)

    def _choose_model(self, classes: Mapping[str, Sequence[Picture]]) -> None:
        """Choose the model from the first images, if `create` was given "auto" and no process has chosen it yet."""
        if self._method is not None:
            return
        pictures = [picture for shots in classes.values() for picture in shots]
        name = fitting_model(type_of_pictures(pictures), min(map(len, classes.values())))
        with self._store.open() as base:
            base.execute("begin immediate")  # one process at a time
            if not (self.folder / WEIGHTS_FILE).is_file():
                _save_model(self.folder, _checked(load(name)), name, self._store.setting("polarity") or "auto")
        self._open_model()

    def _open_model(self) -> None:
        method, about = load_method(self.folder / WEIGHTS_FILE)
        self._method = _checked(method.to(self._device))
        self.model = about.get("model_name")
        self._calibration = read_calibration(self.folder / CALIBRATION_FILE)
        self._polarity = cast(Inverting, about.get("polarity", "auto"))
        self._reader = self.new_reader()
        size, channels = method.preprocessing.source, method.preprocessing.channels
        blank = encode_images(method, torch.zeros(1, channels, size, size, dtype=torch.uint8))
        with torch.inference_mode():
            self._shape = tuple(method.describe(blank.unsqueeze(0)).shape[1:])  # of a descriptor
        if self._store.descriptor_bytes() not in (None, 2 * torch.Size(self._shape).numel()):
            raise CheckpointError(f"the classes in {str(self.folder)!r} belong to another model: create the gallery again")
        self._store.mend(lambda blob: self._sketch(torch.frombuffer(bytearray(blob), dtype=torch.half).view(1, *self._shape)))


def _save_model(folder: Path, method: Method, name: str, polarity: str) -> None:
    """Save a model and its calibration, the weights last."""
    background_for(method.preprocessing, cast(Inverting, polarity))
    calibration = calibration_of(name)
    if calibration is not None and not calibration.classes:
        write_atomically(folder / CALIBRATION_FILE, json.dumps(calibration.to_json()).encode())
    save_method(folder / WEIGHTS_FILE, method, {"polarity": polarity, "model_name": name})


def _checked(method: Method) -> Method:
    """Return a method. Refuses one that is untrained or has no class descriptors of fixed size."""
    if not method.describes_images or not method.fixed_size:
        raise UsageError(
            "a gallery needs a model with class descriptors of fixed size, such as SoSN with relation average, ranked, or_like "
            f"or difference, not {method.name!r}"
        )
    method.check_trained()
    return method


def _groups(classes: Mapping[str, Sequence[Any]], images: int) -> Iterator[list[str]]:
    """Yield the labels of classes in groups of about this number of images; a larger class is a group."""
    group: list[str] = []
    size = 0
    for label, shots in classes.items():
        if group and size + len(shots) > images:
            yield group
            group, size = [], 0
        group.append(label)
        size += len(shots)
    if group:
        yield group


def _directions(described: Tensor, symmetric: bool) -> Tensor:
    """Return descriptors as unit vectors; of matrices (B, P, S, K, K), the upper triangles of the first permutation."""
    vectors = upper_triangle(described[:, 0].float(), isometric=True) if symmetric else described.float()
    return F.normalize(vectors.flatten(1), dim=1)
