"""Open MIC: 866 exhibits of 10 museum exhibitions, phone (source) and wearable (target) photos (Koniusz et al., 2018)."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from PIL import Image

from sosn.data.bank import Bank
from sosn.data.prepare import arrays
from sosn.data.prepare.sources import check_split, is_image
from sosn.data.prepare.store import Entry, open_prepared, read_index
from sosn.errors import DataError, MissingSplitError, UsageError
from sosn.util.seeding import generator
from sosn.util.spelling import nearest

EXHIBITIONS = ("shn", "hon", "clv", "clk", "gls", "scl", "sci", "nat", "shx", "rlc")
UNIONS = {"p1": ("shn", "hon", "clv"), "p2": ("clk", "gls", "scl"), "p3": ("sci", "nat"), "p4": ("shx", "rlc")}
CROP = 0.875  # central share of each side, as in the paper
FINISHED = (84, 84)  # images of this size are already cropped and resized

Domain = Literal["target", "source", "any"]


def scan_open_mic(root: Path) -> list[Entry]:
    """List the images of the first known layout below root. Classes are named EX/CLASS, and domains are splits.

    Layouts: crops_EX/crops_{source,target}/PHOTO_crop{1,2,3}.jpg with list files of PATH LABEL lines; crops_EX.hd5 with data
    and label; museum/EX/{train,test}/CLASS/*.jpg; part{1,2,3,4}/CLASS/*.jpg. Crops of one photo are one group. Images are
    cropped to the central 0.875 of each side, unless they are 84×84.
    """
    for layout in (_authors_crops, _hdf5, _museums, _parts):
        entries = layout(root)
        if entries:
            return entries
    return []


def _exhibition(name: str) -> str | None:
    """Return the exhibition that a folder or file is named after, or None; rel is another name of rlc."""
    name = name.lower().removeprefix("crops_")
    name = "rlc" if name == "rel" else name
    return name if name in EXHIBITIONS else None


def _authors_crops(root: Path) -> list[Entry]:
    known: dict[tuple[str, str, str], Path] = {}  # exhibition, domain, file name
    for file in _images(root.rglob("crops_*/crops_*/*")):
        exhibition, domain = _exhibition(file.parent.parent.name), file.parent.name.removeprefix("crops_")
        if exhibition and domain in ("source", "target"):
            known[exhibition, domain, file.name] = file
    if not known:
        return []
    entries: dict[tuple[str, str, str], Entry] = {}
    for path in sorted(root.rglob("*.txt")):
        for line in path.read_text("utf-8").splitlines():
            words = line.rsplit(None, 1)
            if len(words) < 2 or not words[1].isdigit():
                continue  # a heading or other text
            written, label = words
            place = _place(Path(written.strip().replace("\\", "/")), path)
            if place not in known:
                raise DataError(f"{str(path)!r} lists {written!r}, which is not in a crops_EX folder below {str(root)!r}")
            file = known[place]
            entry = _entry(place[1], place[0], f"{int(label):04}", file)
            if entries.setdefault(place, entry).label != entry.label:
                raise DataError(f"image {str(file)!r} has two labels, {entries[place].label} and {entry.label}: keep one")
    if not entries:
        raise DataError(f"the crops below {str(root)!r} are without list files of PATH LABEL lines: add them")
    return list(entries.values())


def _place(written: Path, source: Path) -> tuple[str, str, str]:
    """Return exhibition, domain and file name of a line, from its path or else from the path of the list."""
    hints = [*reversed(written.parts[:-1]), *re.split(r"[_.\W]+", source.name), *reversed(source.parts[:-1])]
    exhibition = next((found for part in hints if (found := _exhibition(part))), "")
    domains = (part.lower().removeprefix("crops_") for part in hints)
    return exhibition, next((part for part in domains if part in ("source", "target")), ""), written.name


def _hdf5(root: Path) -> list[Entry]:
    entries: list[Entry] = []
    for file in sorted(path for path in root.rglob("crops_*") if path.suffix.lower() in arrays.HDF5):
        exhibition = _exhibition(file.stem)
        if exhibition:
            images, labels = arrays.images(file), arrays.column(file, "label")[:]
            if len(images) != len(labels):
                raise DataError(f"{str(file)!r} has {len(images)} images and {len(labels)} labels: the numbers must match")
            crop = 1.0 if images[0].shape[:2] == FINISHED else CROP
            entries += [
                Entry("", f"{exhibition}/{int(label):04}", str(file), row=row, crop=crop)
                for row, label in enumerate(labels.reshape(len(images)))
            ]
    return entries


def _museums(root: Path) -> list[Entry]:
    domains = {"train": "source", "test": "target"}
    return [
        _entry(domains[file.parts[-3]], exhibition, file.parent.name, file)
        for file in _images(root.rglob("*/*/*/*"))
        if file.parts[-3] in domains and (exhibition := _exhibition(file.parts[-4]))
    ]


def _parts(root: Path) -> list[Entry]:
    return [_entry("", f"p{file.parts[-3][-1]}", file.parent.name, file) for file in _images(root.rglob("part[1-4]/*/*"))]


def _images(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if is_image(path))


def _entry(domain: str, place: str, label: str, file: Path) -> Entry:
    photo = re.fullmatch(r"(.+)_crop\d+", file.stem)
    group = f"{domain}/{place}/{label}/{photo[1]}" if photo else ""
    try:
        with Image.open(file) as opened:
            crop = 1.0 if opened.size == FINISHED else CROP
    except (OSError, Image.DecompressionBombError) as error:
        raise DataError(f"image {str(file)!r} cannot be read ({error}): replace or remove it") from error
    return Entry(domain, f"{place}/{label}", str(file), group, crop=crop)


def open_mic(
    split: str = "train",
    train: str = "p1",
    test: str = "p2",
    train_domain: Domain = "target",
    test_domain: Domain = "target",
    size: int = 84,
    val_share: float = 0.2,
    split_seed: int = 0,
) -> Bank:
    """Photos of exhibits. train and test are exhibitions, p1 to p4, or unions such as shn+hon.

    Protocol I trains on one of p1 to p4 and tests on another, with photos of wearable cameras. Protocol II uses the same
    exhibition for both, with train_domain="source" and test_domain="target". val_share of the training classes, drawn with
    split_seed, are validation classes. Images without a domain count as target. Classes of source photos are named
    EX/CLASS@source. Refuses test photos that are also training photos.
    """
    check_split(split)
    if not 0 < val_share < 1:
        raise UsageError(f"val_share is {val_share}; it must lie between 0 and 1")
    sides = {"train": (train, train_domain), "test": (test, test_domain)}
    shared = _places(train) & _places(test)
    if shared and (train_domain == test_domain or "any" in (train_domain, test_domain)):
        raise UsageError(f"train={train!r} and test={test!r} share photos of {', '.join(sorted(shared))}: choose others")
    wanted, domain = sides["test" if split == "test" else "train"]
    keep = _class_filter(wanted, domain, size)
    if split != "test":
        names = sorted({name for name, origin in _classes(size) if keep(name, origin)})
        order = torch.randperm(len(names), generator=generator("open-mic val", split_seed)).tolist()
        chosen = {names[number] for number in order[: round(val_share * len(names))]}
        bank = open_prepared(
            "open-mic", size, f"{wanted} ({split}, {domain})", lambda n, o: keep(n, o) and (n in chosen) == (split == "val")
        )
    else:
        bank = open_prepared("open-mic", size, f"{wanted} ({domain})", keep)
    return replace(bank, names=tuple(f"{name}@source" for name in bank.names)) if domain == "source" else bank


def _classes(size: int) -> list[tuple[str, str]]:
    index = read_index("open-mic", size)
    return list(zip(index["classes"], index["splits"], strict=True))


def _places(wanted: str) -> set[str]:
    """Return the exhibitions of a union. Refuses unknown names."""
    places: set[str] = set()
    for part in wanted.split("+"):
        exhibition = _exhibition(part)
        if not exhibition and part not in UNIONS:
            known = (*UNIONS, *EXHIBITIONS)
            raise UsageError(f"there is no exhibition {part!r}{nearest(part, known)}; choose one of {', '.join(known)}")
        places |= {exhibition} if exhibition else set(UNIONS[part])
    return places


def _class_filter(wanted: str, domain: Domain, size: int) -> Callable[[str, str], bool]:
    """Return a function that selects the classes of a union and a domain. Refuses exhibitions that were not prepared."""
    places = _places(wanted)
    prepared = {name.split("/")[0] for name, _ in _classes(size)}
    places |= {union for union, members in UNIONS.items() if places >= set(members) and union in prepared}
    covered = places & prepared
    missing = places - prepared - {member for union in covered & UNIONS.keys() for member in UNIONS[union]}
    if missing:
        there, absent = (", ".join(sorted(names)) for names in (prepared, missing))
        raise MissingSplitError(f"open-mic at {size}×{size} was prepared with {there} and without {absent}")
    origins = {"target": ("target", ""), "source": ("source",), "any": ("target", "source", "")}[domain]
    return lambda name, origin: name.split("/")[0] in covered and origin in origins
