"""Image files as phones, browsers and interrupted downloads leave them."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, features

from sosn.data import pixels
from sosn.data.image import read_image
from sosn.data.listing import class_files, list_classes
from sosn.errors import DataError, SosnWarning


def photo(side: int = 96) -> Image.Image:
    """Smooth colours, the same on every run."""
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(("suffix", "package"), [(".heic", "pillow_heif"), (".avif", ""), (".webp", "")])
def test_photos_of_phones_and_browsers_are_read(suffix: str, package: str, tmp_path: Path) -> None:
    if package:
        pytest.importorskip(package).register_heif_opener()
    elif not features.check(suffix[1:]):
        pytest.skip(f"this Pillow does not read {suffix}")
    photo().save(tmp_path / f"x{suffix}")
    difference = read_image(tmp_path / f"x{suffix}", 32, 3).float() - read_image(photo(), 32, 3).float()
    assert difference.abs().mean() < 8  # the formats lose a little


def test_without_its_package_an_image_of_a_phone_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    pixels._reads_heif.cache_clear()
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "x.HEIC").write_bytes(b"")
    with pytest.raises(DataError, match=r"x.HEIC' needs the package pillow-heif: pip install 'sosn\[heif\]'"):
        read_image(tmp_path / "cat" / "x.HEIC", 8, 3)
    pixels._reads_heif.cache_clear()
    assert class_files(tmp_path) == ({"cat": [tmp_path / "cat" / "x.HEIC"]}, [])


@pytest.mark.parametrize(("suffix", "options"), [(".jpg", {}), (".jpg", {"progressive": True}), (".png", {})])
def test_an_image_without_its_last_bytes_is_read_with_a_warning(suffix: str, options: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / f"x{suffix}"
    photo().save(file, **options)
    whole, content = read_image(file, 32, 3).float(), file.read_bytes()
    file.write_bytes(content[: -20 if suffix == ".jpg" else -40])
    with pytest.warns(SosnWarning, match=rf"x{suffix}' is incomplete"):
        torn = read_image(file, 32, 3).float()
    assert (torn - whole)[:, :24].abs().max() <= 2
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    if not options:  # a progressive JPEG shows the whole image early
        file.write_bytes(content[: len(content) // 3])
        with pytest.raises(DataError, match=r"cannot be read \(\d\d% of it is missing\)"):
            read_image(file, 32, 3)


def test_images_in_folders_of_a_class_belong_to_it(tmp_path: Path) -> None:
    for place in ("cat/1.png", "cat/more/2.png", "cat/more/deep/3.png", "dog/1.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        photo(8).save(tmp_path / place)
    files, labels = list_classes(tmp_path)
    assert [str(file.relative_to(tmp_path)) for file in files][:3] == ["cat/1.png", "cat/more/2.png", "cat/more/deep/3.png"]
    assert labels == ["cat", "cat", "cat", "dog"]
    (tmp_path / "cat" / "1.png").unlink()
    with pytest.raises(DataError, match="pass the folder whose folders contain images"):
        list_classes(tmp_path)


def test_a_csv_lists_images_and_one_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    with table.open("w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets write it
        csv.writer(file).writerows([("path", "label"), ("a.png", "Kätzchen"), ("/b.png", "dog")])
    assert list_classes(table) == ([tmp_path / "a.png", Path("/b.png")], ["Kätzchen", "dog"])
    for content, message in (
        ("path,label\na.png,Kätzchen\n".encode("latin-1"), "is not a CSV in UTF-8"),
        (b"path;label\na.png;cat\n", "separated by commas"),
        (b"path,label\n", "lists no images"),
    ):
        table.write_bytes(content)
        with pytest.raises(DataError, match=message):
            list_classes(table)
