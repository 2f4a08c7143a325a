"""A folder of classes becomes a bank; what cannot be read is refused by its path."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from sosn.data.bank import Bank
from sosn.data.dataset import dataset_options, open_bank
from sosn.data.dataset.folder import folder
from sosn.data.image import read_image
from sosn.errors import DataError, MissingSplitError, SosnWarning, UsageError

SPLITS = ("train", "val", "test")
Pixels = npt.NDArray[np.uint8]
GREY: Pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16


def make_classes(root: Path, names: list[str], images: int = 2) -> Path:
    """A folder for each class; image i of class n is of one grey, 10·n + i."""
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for index in range(images):
            Image.new("L", (4, 4), 10 * number + index).save(root / name / f"{index}.png")
    return root


@pytest.fixture
def ten_classes(tmp_path: Path) -> Path:
    return make_classes(tmp_path / "photos", [f"class{n}" for n in range(10)])


def open_small(root: Path, split: str = "train", split_seed: int = 0) -> Bank:
    return folder(str(root), split, size=4, channels=1, split_seed=split_seed)


# Classes and splits


def test_splits_by_class_are_disjoint_and_exhaustive_with_a_fifth_each_for_val_and_test(ten_classes: Path) -> None:
    parts = [set(open_small(ten_classes, split).names) for split in SPLITS]
    assert [len(part) for part in parts] == [6, 2, 2]
    assert set.union(*parts) == {f"class{n}" for n in range(10)}


def test_a_class_keeps_its_images_in_every_split(ten_classes: Path) -> None:
    for split in SPLITS:
        bank = open_small(ten_classes, split)
        for name in bank.names:
            number = int(name.removeprefix("class"))
            assert bank.class_images(name)[:, 0, 0, 0].tolist() == [10 * number, 10 * number + 1]


def test_the_same_split_seed_gives_the_same_split_and_others_give_others(ten_classes: Path) -> None:
    names = [open_small(ten_classes, "test", seed).names for seed in (0, 0, 1, 2, 3)]
    assert names[0] == names[1]
    assert len(set(names)) > 1


def test_shares_decide_the_sizes_of_the_splits(ten_classes: Path) -> None:
    sizes = [len(folder(str(ten_classes), split, 4, 1, val_share=0.1, test_share=0.4).names) for split in SPLITS]
    assert sizes == [5, 1, 4]


def test_train_val_and_test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    for split, names in zip(SPLITS, (["ant", "bee"], ["cat"], ["dog", "eel", "fox"]), strict=True):
        make_classes(tmp_path / split, names)
    assert [open_small(tmp_path, split).names for split in SPLITS] == [("ant", "bee"), ("cat",), ("dog", "eel", "fox")]


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", ["ant", ".cache"])
    (tmp_path / "train" / "ant" / ".DS_Store").write_text("not an image")
    (tmp_path / "train" / "notes.txt").write_text("not a class")
    assert open_small(tmp_path).names == ("ant",)


def test_open_bank_reads_a_folder_by_its_name_and_path(ten_classes: Path) -> None:
    bank = open_bank(f"folder:{ten_classes}", "train", size=8, channels=3)
    assert bank.images.shape == (12, 3, 8, 8)
    assert bank.images.dtype == torch.uint8


def test_a_folder_refuses_options_of_other_datasets() -> None:
    wanted = {"size", "channels", "split_seed", "val_share", "test_share", "max_pixels"}
    assert set(dataset_options("folder:anywhere")) == wanted


# Refusals


def test_a_folder_without_its_path_is_refused_with_how_to_write_it() -> None:
    for name in ("folder", "folder:"):
        with pytest.raises(UsageError, match="write folder:PATH"):
            open_bank(name, "train")


def refusal(root: Path, split: str = "train") -> str:
    with pytest.raises(DataError) as refused:
        open_small(root, split)
    return str(refused.value)


def test_a_missing_folder_is_refused_with_its_path(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in message
    assert "pass one that has a folder of images for each class" in message


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal(tmp_path / "file")


@pytest.mark.parametrize("inside", ["", "train"])
def test_a_folder_without_classes_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    message = refusal(tmp_path)
    assert repr(str(tmp_path / inside)) in message
    assert "needs one for each class" in message


def test_an_empty_class_is_refused_by_name_and_path_with_the_way_out(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", ["ant", "bee"])
    (tmp_path / "train" / "cat").mkdir()
    message = refusal(tmp_path)
    assert "class 'cat' has no images" in message
    assert str(tmp_path / "train" / "cat") in message
    assert "add some or remove the folder" in message


def test_a_missing_split_is_refused_with_the_existing_splits(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", ["ant"])
    make_classes(tmp_path / "test", ["bee"])
    with pytest.raises(MissingSplitError) as refused:
        open_small(tmp_path, "val")
    assert str(tmp_path) in str(refused.value)
    assert "has train, test and no 'val'" in str(refused.value)


def test_too_few_classes_for_a_split_are_refused_with_the_way_out(tmp_path: Path) -> None:
    make_classes(tmp_path / "photos", ["ant", "bee"])
    with pytest.raises(MissingSplitError, match="2 classes leave none for 'val': add classes or change val_share"):
        open_small(tmp_path / "photos", "val")


def test_an_unknown_split_is_refused_with_the_existing_splits(ten_classes: Path) -> None:
    with pytest.raises(UsageError, match="split is 'dev'; choose train, val or test"):
        open_small(ten_classes, "dev")


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A grey PNG file with a header and these chunks, each a kind and its content."""
    header = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    parts = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in (header, *chunks)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG file of that size by its header, with no pixels."""
    return png(width, height, (b"IDAT", zlib.compress(b"")), (b"IEND", b""))


def truncated_jpeg(file: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    file.write_bytes(file.read_bytes()[:1500])


def truncated_png(file: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    file.write_bytes(file.read_bytes()[:1500])


def damaged_png(file: Path) -> None:
    Image.fromarray(GREY).save(file, "PNG")
    content = bytearray(file.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 0xFF
    file.write_bytes(bytes(content))


def png_with_a_broken_chunk(file: Path) -> None:
    noise = np.random.default_rng(0)
    pixels = zlib.compress(b"".join(b"\0" + noise.bytes(64) for _ in range(64)))
    file.write_bytes(png(64, 64, (b"IDAT", pixels[:300]), (b"\0\1\2\3", pixels[300:])))


def text_file(file: Path) -> None:
    file.write_text("this is no image")


def empty_file(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("spoil", [truncated_jpeg, truncated_png, damaged_png, png_with_a_broken_chunk, text_file, empty_file])
def test_a_damaged_file_is_refused_with_its_path_and_advice(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    make_classes(tmp_path / "train", ["ant", "bee"])
    bad = tmp_path / "train" / "bee" / "bad.jpg"
    spoil(bad)
    message = refusal(tmp_path)
    assert repr(str(bad)) in message
    assert "cannot be read" in message
    assert "replace or remove it" in message


def test_an_oversized_image_is_refused_by_path_with_its_size_and_the_limit(tmp_path: Path) -> None:
    (tmp_path / "huge.png").write_bytes(png_that_claims(8000, 7000))
    with pytest.raises(DataError) as refused:
        read_image(tmp_path / "huge.png", 4, 1)
    for part in (str(tmp_path / "huge.png"), "8000×7000 pixels", "50,000,000 is the limit"):
        assert part in str(refused.value)


def test_a_decompression_bomb_is_refused_by_path(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_that_claims(60_000, 60_000))
    with pytest.raises(DataError, match=r"bomb\.png"):
        read_image(tmp_path / "bomb.png", 4, 1)


# Pixels


def read_grey(file: Path) -> list[list[int]]:
    pixels: list[list[int]] = read_image(file, 4, 1)[0].tolist()
    return pixels


def one_colour(file: Path, channels: int = 3) -> list[int]:
    """The colour of an image that has only one."""
    image = read_image(file, 4, channels)
    assert image.shape == (channels, 4, 4)
    assert (image == image[:, :1, :1]).all()
    pixel: list[int] = image[:, 0, 0].tolist()
    return pixel


def test_pixels_of_a_colour_image_are_read_exactly_in_the_order_red_green_blue(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 4, 3).numpy().tolist() == pixels.transpose(2, 0, 1).tolist()


def test_colour_becomes_grey_by_luma_and_grey_becomes_colour_by_repetition(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (200, 100, 50)).save(tmp_path / "colour.png")
    Image.new("L", (4, 4), 90).save(tmp_path / "grey.png")
    assert one_colour(tmp_path / "colour.png", channels=1) == [round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)]
    assert one_colour(tmp_path / "grey.png") == [90, 90, 90]


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, GREY),
        (2, np.fliplr(GREY)),
        (3, np.rot90(GREY, 2)),
        (4, np.flipud(GREY)),
        (5, GREY.T),
        (6, np.rot90(GREY, -1)),
        (7, np.rot90(GREY, 2).T),
        (8, np.rot90(GREY, 1)),
    ],
    ids=range(1, 9),
)
def test_an_image_is_rotated_by_its_exif_orientation(tmp_path: Path, orientation: int, upright: Pixels) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(GREY).save(tmp_path / "turned.png", exif=exif)
    assert read_grey(tmp_path / "turned.png") == upright.tolist()


def test_a_camera_jpeg_held_sideways_is_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pixels[:, 8:] = 255  # white on the right; turned a quarter clockwise, white is below
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=100, exif=exif)
    image = read_image(tmp_path / "photo.jpg", 16, 3)
    assert (image[:, :8] < 5).all()
    assert (image[:, 8:] > 250).all()


def test_a_palette_image_has_the_colours_of_its_palette(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.save(tmp_path / "palette.png")
    assert one_colour(tmp_path / "palette.png") == [200, 100, 50]


def test_the_transparent_colour_of_a_palette_is_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.save(tmp_path / "palette.png", transparency=1)
    image.save(tmp_path / "palette.gif", transparency=1)
    assert one_colour(tmp_path / "palette.png") == [255, 255, 255]
    assert one_colour(tmp_path / "palette.gif") == [255, 255, 255]


@pytest.mark.parametrize("alpha", [0, 51, 128, 255])
def test_transparency_lets_white_shine_through(tmp_path: Path, alpha: int) -> None:
    Image.new("RGBA", (4, 4), (200, 0, 40, alpha)).save(tmp_path / "alpha.png")
    Image.new("LA", (4, 4), (0, alpha)).save(tmp_path / "grey.png")
    share = alpha / 255
    assert one_colour(tmp_path / "alpha.png") == pytest.approx([255 + share * (c - 255) for c in (200, 0, 40)], abs=1)
    assert one_colour(tmp_path / "grey.png", channels=1) == pytest.approx([255 * (1 - share)], abs=1)


@pytest.mark.parametrize("kind", ["jpg", "tif"])
def test_a_cmyk_image_has_the_colour_of_its_inks(tmp_path: Path, kind: str) -> None:
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / f"red.{kind}")  # magenta and yellow make red
    Image.new("CMYK", (4, 4), (0, 0, 0, 155)).save(tmp_path / f"dark.{kind}")
    assert one_colour(tmp_path / f"red.{kind}") == pytest.approx([255, 0, 0], abs=2)
    assert one_colour(tmp_path / f"dark.{kind}") == pytest.approx([100, 100, 100], abs=2)
    assert one_colour(tmp_path / f"red.{kind}", channels=1) == pytest.approx([76], abs=2)


def test_a_one_bit_image_is_black_and_white(tmp_path: Path) -> None:
    stripes = np.array([[0, 255, 0, 255]] * 4, dtype=np.uint8)
    Image.fromarray(stripes).convert("1").save(tmp_path / "stripes.png")
    assert read_grey(tmp_path / "stripes.png") == stripes.tolist()
    assert read_image(tmp_path / "stripes.png", 4, 3)[2].tolist() == stripes.tolist()


def test_a_larger_image_is_averaged_down_not_subsampled(tmp_path: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "board.png")
    assert ((read_image(tmp_path / "board.png", 8, 1).int() - 128).abs() < 8).all()


def test_an_oblong_image_fills_the_whole_square(tmp_path: Path) -> None:
    halves = np.zeros((10, 40), dtype=np.uint8)
    halves[:, 20:] = 255
    Image.fromarray(halves).save(tmp_path / "oblong.png")
    image = read_image(tmp_path / "oblong.png", 10, 1)[0]
    assert (image[:, :4] == 0).all()
    assert (image[:, 6:] == 255).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bit_grey_is_scaled_not_cut_off(tmp_path: Path, channels: int) -> None:
    Image.fromarray(np.array([[0, 4096], [32768, 65535]], dtype=np.uint16)).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", 2, channels)[0].tolist() == [[0, 16], [128, 255]]


def test_floating_point_images_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 0.5, dtype=np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(DataError, match=r"float\.tiff"):
        read_image(tmp_path / "float.tiff", 2, 1)


@pytest.mark.parametrize(("val", "test"), [(-0.2, 0.2), (0.8, 0.8), (0.5, 0.5), (float("nan"), 0.2)])
def test_shares_that_leave_nothing_or_overlap_are_refused(ten_classes: Path, val: float, test: float) -> None:
    with pytest.raises(UsageError, match="leave some for train"):
        folder(str(ten_classes), val_share=val, test_share=test)


@pytest.mark.parametrize(("size", "channels"), [(0, 3), (8, 2)])
def test_impossible_sizes_and_channels_are_refused(ten_classes: Path, size: int, channels: int) -> None:
    with pytest.raises(UsageError, match="channels"):
        folder(str(ten_classes), size=size, channels=channels)


def test_a_dataset_without_a_place_takes_none() -> None:
    with pytest.raises(UsageError, match="folder:PATH"):
        open_bank("folder:", "train")
    assert len(open_bank("glyphs:", "val", alphabets=10, characters=2, drawings=2)) == 4


def test_a_class_in_two_splits_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        make_classes(tmp_path / split, ["shared", split])
    with pytest.raises(DataError, match="class 'shared' is in train and in test"):
        folder(str(tmp_path), "train")


def write_list(tmp_path: Path, rows: list[str]) -> str:
    make_classes(tmp_path / "pictures", [f"kind{number}" for number in range(4)], images=4)
    files = sorted((tmp_path / "pictures").rglob("*.*"))
    lines = [rows[0], *(row.format(file=file.relative_to(tmp_path)) for row, file in zip(rows[1:], files, strict=False))]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "list.csv")


def test_a_list_of_files_gives_classes_groups_and_splits(tmp_path: Path) -> None:
    rows = ["path,label,group,split"]
    rows += [f"{{file}},{'ab'[n // 8]},{n // 2},{('train', 'val')[n // 8]}" for n in range(16)]
    listed = write_list(tmp_path, rows)
    bank = folder(listed, "train", size=8)
    assert bank.names == ("a",)
    assert bank.groups is not None
    assert bank.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert folder(listed, "val", size=8).names == ("b",)
    with pytest.raises(MissingSplitError, match="and no 'test'"):
        folder(listed, "test", size=8)


def test_a_list_without_splits_is_split_by_class(tmp_path: Path) -> None:
    listed = write_list(tmp_path, ["path,label", *(f"{{file}},{n % 5}" for n in range(15))])
    names = [set(folder(listed, split, size=8).names) for split in ("train", "val", "test")]
    assert sorted(map(len, names)) == [1, 1, 3]
    assert set.union(*names) == set("01234")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["file,label", "{file},a"], "path and label are needed"),
        (["path,label,split", "{file},a,training"], "line 2"),
        (["path,label", "{file},"], "line 2"),
        (["path,label,split", "{file},a,train", "{file},a,test"], "class 'a' is in train and in test"),
        (["path,label,split", "nowhere.png,a,train"], "nowhere.png"),
    ],
)
def test_a_bad_list_is_refused(tmp_path: Path, rows: list[str], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        folder(write_list(tmp_path, rows), "train", size=8)
    with pytest.raises(DataError, match="there is no file"):
        folder(str(tmp_path / "missing.csv"))


def test_files_without_an_image_extension_are_skipped_and_counted(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", ["ant", "bee"])
    for name in ("ant/Thumbs.db", "bee/notes.txt"):
        (tmp_path / "train" / name).write_text("not an image")
    with pytest.warns(SosnWarning, match=r"skipped 2 files in .*: train/ant/Thumbs.db, train/bee/notes.txt"):
        assert len(open_small(tmp_path)) == 4


def test_a_class_more_moves_few_of_the_others(tmp_path: Path) -> None:
    make_classes(tmp_path, [f"class{n:02}" for n in range(40)], images=1)
    before = {name: split for split in SPLITS for name in open_small(tmp_path, split).names}
    make_classes(tmp_path, ["another"], images=1)
    after = {name: split for split in SPLITS for name in open_small(tmp_path, split).names}
    assert sum(before[name] != after[name] for name in before) <= 2


def test_images_one_folder_too_deep_are_pointed_out(tmp_path: Path) -> None:
    make_classes(tmp_path / "photos" / "animals", ["ant", "bee"])
    assert "pass the folder whose folders contain images" in refusal(tmp_path / "photos")


# Animated and huge images


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animated_image_the_first_frame_is_read(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (6, 6), shade) for shade in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(tmp_path / "moving", kind, save_all=True, append_images=frames[1:], **lossless)
    with Image.open(tmp_path / "moving") as opened:
        assert getattr(opened, "n_frames", 1) == 3
    assert read_image(tmp_path / "moving", 6, 3)[:, 3, 3].tolist() == [250, 0, 0]


def test_an_image_beyond_the_limit_is_refused_and_read_when_the_limit_is_raised(ten_classes: Path) -> None:
    Image.new("L", (40, 30), 7).save(ten_classes / "class0" / "0.png")
    with pytest.raises(DataError, match=r"40×30 pixels; 1,000 is the limit: shrink it, or raise max_pixels"):
        folder(str(ten_classes), "train", 4, 1, val_share=0, test_share=0, max_pixels=1000)
    bank = folder(str(ten_classes), "train", 4, 1, val_share=0, test_share=0, max_pixels=1200)
    assert int(bank.class_images("class0")[0, 0, 0, 0]) == 7


def test_the_way_out_of_the_limit_exists_where_it_is_named(ten_classes: Path, tmp_path: Path) -> None:
    Image.new("L", (40, 30), 7).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"1,000 is the limit: shrink it$"):
        read_image(tmp_path / "a.png", 4, 1, max_pixels=1000)


def test_a_raised_limit_exceeds_the_limit_of_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    Image.new("1", (9000, 6000)).save(tmp_path / "wide.png")
    with pytest.raises(DataError, match=r"cannot be read|is the limit"):
        read_image(tmp_path / "wide.png", 4, 1)
    assert read_image(tmp_path / "wide.png", 4, 1, max_pixels=54_000_000).tolist() == [[[0] * 4] * 4]
