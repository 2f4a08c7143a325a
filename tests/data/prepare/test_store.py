"""Datasets prepared from the files people have: found, decoded once, opened by split, checked."""

import csv
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sosn
from sosn.data.dataset.omniglot import vinyals_split
from sosn.data.prepare import store as prepared
from sosn.data.prepare.archive import unpack
from sosn.data.prepare.catalog import prepare_dataset, summary
from sosn.data.prepare.check import check
from sosn.errors import DataError, MissingSplitError, UsageError
from sosn.reproduce.omniglot import OVERLAP


@pytest.fixture(autouse=True)
def _temporary_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))


def drawing(file: Path, number: int, size: int = 105) -> None:
    """A black square on white whose place tells its number, 1 bit deep like Omniglot's files."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("1", (size, size), 1)
    image.paste(0, (number % 10 * 10, number // 10 * 10, number % 10 * 10 + 10, number // 10 * 10 + 10))
    image.save(file)


def photo(file: Path, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (90, 90), (number % 256, number * 7 % 256, 100)).save(file)


def omniglot_tree(root: Path) -> Path:
    number = 0
    for part, alphabets in (("images_background", ("Greek", "Hebrew")), ("images_evaluation", ("Keble", "Gurmukhi"))):
        for alphabet in alphabets:
            for character in (1, 42):
                for drawer in range(2):
                    drawing(root / part / alphabet / f"character{character:02}" / f"{number:04}_{drawer:02}.png", number)
                    number += 1
    return root


def mini_tree(root: Path, splits: tuple[str, ...] = ("train", "val")) -> Path:
    for place, split in enumerate(splits):
        for label in range(2):
            wnid = f"n000000{place}{label}"
            for number in range(3):
                photo(root / split / wnid / f"{wnid}0000000{number}.png", 9 * place + 3 * label + number)
    return root


def test_omniglot_folders_become_a_bank_with_the_vinyals_splits(tmp_path: Path) -> None:
    done = prepare_dataset("omniglot", omniglot_tree(tmp_path / "source"))
    assert (done["classes"], done["images"], done["missing"]) == (8, 16, [])
    names = {split: set(sosn.open_bank("omniglot", split).names) for split in ("train", "val", "test")}
    assert names["train"] == {f"images_{p}/character{c}" for p in ("background/Greek",) for c in ("01", "42")} | {
        "images_evaluation/Gurmukhi/character01"
    }
    assert names["val"] == {"images_background/Hebrew/character01", "images_background/Hebrew/character42"}
    assert "images_evaluation/Gurmukhi/character42" in names["test"]
    bank = sosn.open_bank("omniglot", "val")
    assert bank.images.shape == (4, 1, 28, 28)
    with Image.open(next((tmp_path / "source").rglob("Hebrew/character01/*_00.png"))) as opened:
        expected = np.asarray(opened.convert("L").resize((28, 28), Image.Resampling.BILINEAR))
    assert torch.equal(bank.images[0, 0], torch.from_numpy(expected.copy()))


def test_rotations_are_new_training_classes(tmp_path: Path) -> None:
    prepare_dataset("omniglot", omniglot_tree(tmp_path / "source"))
    plain, turned = (sosn.open_bank("omniglot", "train", rotations=wanted) for wanted in (False, True))
    assert len(turned.names) == 4 * len(plain.names)
    name = plain.names[0]
    assert torch.equal(turned.class_images(f"{name}@90"), plain.class_images(name).rot90(1, (-2, -1)))
    assert torch.equal(turned.class_images(name), plain.class_images(name))
    assert len(sosn.open_bank("omniglot", "test", rotations=True).names) == len(sosn.open_bank("omniglot", "test").names)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_all_rotations_rotates_the_classes_of_all_splits(tmp_path: Path, split: str) -> None:
    prepare_dataset("omniglot", omniglot_tree(tmp_path / "source"))
    plain, turned = (sosn.open_bank("omniglot", split, all_rotations=wanted) for wanted in (False, True))
    assert turned.names == tuple(f"{name}{angle}" for angle in ("", "@90", "@180", "@270") for name in plain.names)
    name = plain.names[0]
    assert torch.equal(turned.class_images(f"{name}@180"), plain.class_images(name).rot90(2, (-2, -1)))


def test_the_papers_partition_needs_every_character(tmp_path: Path) -> None:
    prepare_dataset("omniglot", omniglot_tree(tmp_path / "source"))
    with pytest.raises(DataError, match="1,623"):
        sosn.open_bank("omniglot", "train", partition="paper")


@pytest.mark.parametrize("form", ["zip", "tar.gz", "two zips"])
def test_archives_are_read_like_folders(tmp_path: Path, form: str) -> None:
    tree = omniglot_tree(tmp_path / "tree")
    source = tmp_path / "source"
    source.mkdir()
    if form == "tar.gz":
        with tarfile.open(source / "omniglot.tar.gz", "w:gz") as archive:
            archive.add(tree, "omniglot")
    else:
        for part in ("images_background", "images_evaluation"):
            name = f"{part}.zip" if form == "two zips" else "omniglot.zip"
            with zipfile.ZipFile(source / name, "a") as zipped:
                for file in (tree / part).rglob("*.png"):
                    zipped.write(file, file.relative_to(tree))
    assert prepare_dataset("omniglot", source)["images"] == 16
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["omniglot-28"]


def test_archives_cannot_write_outside_their_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr("../escaped.txt", "x")
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        member = tarfile.TarInfo("../escaped.txt")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    for name in ("bad.zip", "bad.tar"):
        with pytest.raises(DataError, match="outside its folder"):
            unpack(tmp_path / name, tmp_path / "unpacked")
    assert not (tmp_path / "escaped.txt").exists()
    (tmp_path / "broken.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "broken.zip", tmp_path / "unpacked")


def test_mini_imagenet_trees_keep_their_splits_and_report_a_missing_split(tmp_path: Path) -> None:
    done = prepare_dataset("mini-imagenet", mini_tree(tmp_path / "source"))
    assert done["splits"] == {"train": {"classes": 2, "images": 6}, "val": {"classes": 2, "images": 6}}
    assert done["missing"] == ["test"]
    bank = sosn.open_bank("mini-imagenet", "val")
    assert bank.names == ("n00000010", "n00000011")
    assert bank.images[0, :, 40, 40].tolist() == [9, 63, 100]
    with pytest.raises(MissingSplitError, match="without test images"):
        sosn.open_bank("mini-imagenet", "test")


def test_mini_imagenet_is_read_from_one_folder_with_lists(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(6):
        photo(source / "images" / f"n0000000{number // 3}0000000{number % 3}.png", number)
    for split, numbers in (("train", (0, 1, 2)), ("test", (3, 4, 5))):
        with (source / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("filename", "label"))
            rows.writerows((f"n0000000{n // 3}0000000{n % 3}.png", f"n0000000{n // 3}") for n in numbers)
    assert prepare_dataset("mini-imagenet", source)["missing"] == ["val"]
    assert sosn.open_bank("mini-imagenet", "test").names == ("n00000001",)
    (source / "images" / "n0000000100000002.png").unlink()
    with pytest.raises(DataError, match="n0000000100000002"):
        prepare_dataset("mini-imagenet", source)


def test_preparing_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "BATCH", 2)
    source = mini_tree(tmp_path / "source")
    files = sorted(source.rglob("*.png"))
    good = files[7].read_bytes()
    files[7].write_bytes(b"damaged")
    with pytest.raises(DataError, match=files[7].name):
        prepare_dataset("mini-imagenet", source)
    with pytest.raises(DataError, match="not prepared"):
        sosn.open_bank("mini-imagenet", "train")
    files[7].write_bytes(good)
    counts: list[int] = []
    prepare_dataset("mini-imagenet", source, progress=lambda done, _: counts.append(done))
    assert counts == [8, 10, 12]
    expected = [int(Image.open(file).getpixel((0, 0))[0]) for file in files]  # type: ignore[index]
    images = np.load(tmp_path / "home" / "mini-imagenet-84" / "images.npy")
    assert images[:, 0, 0, 0].tolist() == expected


def test_a_second_size_stands_beside_the_first(tmp_path: Path) -> None:
    source = mini_tree(tmp_path / "source")
    prepare_dataset("mini-imagenet", source)
    prepare_dataset("mini-imagenet", source, size=32)
    assert sosn.open_bank("mini-imagenet", "train", size=32).size == 32
    assert summary("mini-imagenet", 84)["images"] == summary("mini-imagenet", 32)["images"] == 12
    with pytest.raises(DataError, match="--size 64"):
        sosn.open_bank("mini-imagenet", "train", size=64)


def test_groups_of_entries_reach_the_sampler(tmp_path: Path) -> None:
    entries = []
    for number in range(8):
        photo(tmp_path / f"{number}.png", number)
        entries.append(prepared.Entry("train", f"class{number // 4}", str(tmp_path / f"{number}.png"), f"photo{number // 2}"))
    prepared.prepare("grouped", entries, 16, 3)
    bank = prepared.open_prepared("grouped", 16, "train", lambda _label, split: split == "train")
    assert bank.groups is not None
    assert bank.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    sosn.EpisodeSampler(bank, 2, 2, 2)


def test_wrong_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'omniglot'"):
        prepare_dataset("omniglott", tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        prepare_dataset("omniglot", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images of omniglot"):
        prepare_dataset("omniglot", tmp_path / "empty")


def test_a_check_finds_what_is_wrong_in_a_folder(tmp_path: Path) -> None:
    root = mini_tree(tmp_path / "photos")
    assert check(str(root)) == ([], 12)
    files = sorted(root.rglob("*.png"))
    files[1].write_bytes(files[0].read_bytes())
    files[6].write_bytes(files[0].read_bytes())
    files[9].write_bytes(b"no image")
    photo(root / "train" / "lonely" / "one.png", 200)
    Image.new("RGB", (10, 10), (1, 2, 3)).save(root / "val" / "n00000010" / "small.png")
    findings, images = check(str(root))
    assert images == 14
    assert sorted(finding.kind for finding in findings) == sorted(
        ["identical", "identical across splits", "unreadable", "tiny class", "wrong size"]
    )
    places = {finding.kind: finding.where for finding in findings}
    assert places["unreadable"] == (str(files[9]),)
    assert places["tiny class"] == ("train/lonely",)
    assert places["identical across splits"] == (str(files[0]), str(files[6]))
    with pytest.raises(UsageError, match="is not a prepared dataset, a folder or a CSV"):
        check(str(tmp_path / "nowhere"))


def test_a_check_finds_identical_images_in_a_bank(tmp_path: Path) -> None:
    root = mini_tree(tmp_path / "photos")
    files = sorted(root.rglob("*.png"))
    files[6].write_bytes(files[0].read_bytes())
    prepare_dataset("mini-imagenet", root)
    findings, images = check("mini-imagenet")
    assert images == 12
    assert [finding.kind for finding in findings] == ["identical across splits"]
    with pytest.raises(DataError, match="not prepared"):
        check("omniglot")


@pytest.mark.real_data
@pytest.mark.slow
def test_real_omniglot_has_the_published_splits_and_one_known_pair(
    real_data: Path, real_omniglot: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    home, done = real_omniglot
    monkeypatch.setenv("SOSN_HOME", str(home))
    assert (done["classes"], done["images"]) == (1623, 32_460)
    published = json.loads((real_data / "splits" / "omniglot-vinyals.json").read_text())
    assert {split: set(sosn.open_bank("omniglot", split, size=42).names) for split in published} == {
        split: set(names) for split, names in published.items()
    }
    assert all(vinyals_split(name) == split for split, names in published.items() for name in names)
    paper = {
        split: set(sosn.open_bank("omniglot", split, partition="paper", size=42).names) for split in ("train", "val", "test")
    }
    assert [len(names) for names in paper.values()] == [1100, 100, 423]
    assert len(set.union(*paper.values())) == 1623
    shared = [sum(vinyals_split(name) == split for name in paper["test"]) for split in ("train", "val")]
    assert {"tests": 423, "trained": shared[0], "chose": shared[1]} == OVERLAP  # as the page on the reproduction says
    bank = sosn.open_bank("omniglot", "train", size=42)
    assert 0.85 < bank.mean_std()[0][0] < 0.95  # dark ink on white
    (twins,) = check("omniglot")[0]
    assert [Path(file).name for file in twins.where] == ["0192_03.png", "0192_19.png"]


@pytest.mark.real_data
@pytest.mark.slow
def test_a_part_of_real_mini_imagenet_has_identical_pairs_within_and_across_splits(real_data: Path, tmp_path: Path) -> None:
    for name in ("train-0", "val"):  # all of it has 2 and 6 pairs, and takes twice as long
        (tmp_path / f"{name}.tar.xz").symlink_to(real_data / "mini-imagenet" / f"{name}.tar.xz")
    done = prepare_dataset("mini-imagenet", tmp_path)
    assert done["splits"] == {"train": {"classes": 22, "images": 13_200}, "val": {"classes": 16, "images": 9_600}}
    assert done["missing"] == ["test"]
    findings, _ = check("mini-imagenet")
    assert sorted(finding.kind for finding in findings) == ["identical"] + ["identical across splits"] * 5
    assert sosn.open_bank("mini-imagenet", "train").images.shape == (13_200, 3, 84, 84)


def test_photos_of_many_sizes_and_notes_beside_them_are_nothing_wrong(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"kind{number % 2}").mkdir(exist_ok=True)
        Image.new("RGB", (20 + number, 20), (number, 0, 0)).save(tmp_path / f"kind{number % 2}" / f"{number}.png")
    (tmp_path / "kind0" / "notes.txt").write_text("mine")
    findings, images = check(str(tmp_path))
    assert images == 4
    assert sorted(finding.kind for finding in findings) == ["left out", "sizes differ"]
    assert not any(finding.wrong for finding in findings)
    Image.new("RGB", (20, 20), (9, 0, 0)).save(tmp_path / "stray.png")
    findings, images = check(f"folder:{tmp_path}")
    assert images == 4
    assert ("left out", ("stray.png",), "not in a class folder") in {
        (found.kind, found.where, found.detail) for found in findings
    }


def test_a_csv_is_checked_like_a_folder(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (20, 20), (number // 2, 0, 0)).save(tmp_path / f"{number}.png")
    lines = ["path,label", "0.png,ant", "1.png,ant", "2.png,bee", "3.png,cat", "no.png,bee"]
    (tmp_path / "mine.csv").write_text("\n".join(lines), "utf-8")
    findings, images = check(str(tmp_path / "mine.csv"))
    assert images == 5
    found = {finding.kind: [Path(name).name for name in finding.where] for finding in findings}
    assert found["unreadable"] == ["no.png"]
    assert found["tiny class"] == ["cat"]
    assert {finding.where[0][-5:] for finding in findings if finding.kind == "identical"} == {"0.png", "2.png"}
    (tmp_path / "mine.csv").write_text("path,label\n", "utf-8")
    with pytest.raises(DataError, match="lists no images"):
        check(str(tmp_path / "mine.csv"))
    with pytest.raises(DataError, match="there is no file"):
        check("nowhere.csv")
    with pytest.raises(UsageError, match="'nowhere' is not a prepared dataset, a folder or a CSV"):
        check("nowhere")


def test_what_an_earlier_attempt_has_unpacked_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "unpacked-999999999-x").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        prepare_dataset("omniglot", tmp_path / "empty")
    assert list((tmp_path / "home").iterdir()) == []
