"""Datasets that few-shot people use, in the forms they have them in, with the splits that are usual."""

import csv
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sosn
from sosn.cli.app import app
from sosn.data.dataset import DATASETS
from sosn.data.dataset.cifar import SUPERCLASSES, cifar_fs_split, fc100_split
from sosn.data.prepare import arrays
from sosn.data.prepare.catalog import CATALOG, prepare_dataset
from sosn.data.prepare.check import check
from sosn.errors import DataError

SPLITS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def _temporary_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))


def pixels(count: int, size: int, first: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Images of one colour each, which tells their number."""
    numbers = np.arange(first, first + count, dtype=np.uint8)
    return np.broadcast_to(numbers[:, None, None, None], (count, size, size, 3)).copy()


def photo(file: Path, number: int, size: int = 20) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(1, size, number)[0]).save(file, quality=100)


def dump(file: Path, content: Any, protocol: int = 2) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(content, protocol))


def shades(bank: sosn.Bank) -> dict[str, list[int]]:
    return {name: bank.class_images(name)[:, 0, 3, 3].tolist() for name in bank.names}


# miniImageNet


def test_mini_imagenet_is_read_from_cache_pickles(tmp_path: Path) -> None:
    for place, split in enumerate(SPLITS):
        classes = {f"n0000000{place}": [3, 0, 1], f"n0000001{place}": [2, 4, 5]}
        dump(tmp_path / "source" / f"mini-imagenet-cache-{split}.pkl", {"image_data": pixels(6, 84), "class_dict": classes})
    done = prepare_dataset("mini-imagenet", tmp_path / "source")
    assert done["missing"] == []
    assert shades(sosn.open_bank("mini-imagenet", "val")) == {"n00000001": [0, 1, 3], "n00000011": [2, 4, 5]}
    assert check("mini-imagenet")[1] == 18


@pytest.mark.parametrize("named", [True, False])
def test_mini_imagenet_is_read_from_category_split_pickles(tmp_path: Path, named: bool) -> None:
    for place, part in enumerate(("train_phase_train", "val", "test")):
        content: dict[Any, Any] = {b"data": pixels(4, 84), b"labels": [2 * place, 2 * place + 1] * 2}
        if named:
            content[b"catname2label"] = {f"n0000000{place}": 2 * place, f"n0000001{place}": 2 * place + 1}
        dump(tmp_path / f"miniImageNet_category_split_{part}.pickle", content)
    dump(tmp_path / "miniImageNet_category_split_train_phase_val.pickle", {"data": pixels(9, 84), "labels": [0] * 9})
    prepare_dataset("mini-imagenet", tmp_path)
    names = ("n00000002", "n00000012") if named else tuple(f"miniImageNet_category_split_test/000{number}" for number in (4, 5))
    assert shades(sosn.open_bank("mini-imagenet", "test")) == {names[0]: [0, 2], names[1]: [1, 3]}
    assert len(sosn.open_bank("mini-imagenet", "train")) == 4


def test_a_pickle_whose_labels_do_not_fit_is_refused(tmp_path: Path) -> None:
    dump(tmp_path / "miniImageNet_category_split_val.pickle", {"data": pixels(4, 84), "labels": [0, 1]})
    with pytest.raises(DataError, match="2 labels for 4 images"):
        prepare_dataset("mini-imagenet", tmp_path)
    dump(tmp_path / "mini-imagenet-cache-val.pkl", {"image_data": pixels(2, 84), "class_dict": {"n01532829": [0, 2]}})
    with pytest.raises(DataError, match="row 2 for class 'n01532829', and only 2 rows"):
        prepare_dataset("mini-imagenet", tmp_path)


def test_mini_imagenet_lists_pick_the_nth_image_of_an_imagenet_class(tmp_path: Path) -> None:
    """Files are counted from 1 in the order of their numbers, which is not that of their names."""
    numbers = {10007: 40, 9: 10, 283: 20, 1001: 30}
    for number, shade in numbers.items():
        photo(tmp_path / "train" / "n01532829" / f"n01532829_{number}.JPEG", shade, 300)
        photo(tmp_path / "train" / "n09999999" / f"n09999999_{number}.JPEG", 99)
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("filename", "label"))
        rows.writerows((f"n01532829{position:08}.jpg", "n01532829") for position in (1, 4, 3))
    done = prepare_dataset("mini-imagenet", tmp_path, 224)
    assert (done["classes"], done["images"]) == (1, 3)
    bank = sosn.open_bank("mini-imagenet", "train", size=224)
    assert bank.images.shape == (3, 3, 224, 224)
    assert sorted(shades(bank)["n01532829"]) == [10, 30, 40]
    (tmp_path / "train" / "n01532829" / "n01532829_9.JPEG").unlink()
    with pytest.raises(DataError, match=r"train.csv.* lists 'n0153282900000004.jpg'"):
        prepare_dataset("mini-imagenet", tmp_path, 224)


def test_an_imagenet_tree_without_lists_is_not_taken_for_mini_imagenet(tmp_path: Path) -> None:
    for number in range(101):
        photo(tmp_path / "train" / f"n{number:08}" / "a.png", 1, 4)
    with pytest.raises(DataError, match=r"more than 100 classes.*train.csv"):
        prepare_dataset("mini-imagenet", tmp_path)


def test_mini_imagenet_has_rotations_as_training_classes(tmp_path: Path) -> None:
    for split in SPLITS:
        image = np.zeros((84, 84, 3), np.uint8)
        image[:, :42] = 255
        (tmp_path / split / "n00000001").mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / split / "n00000001" / "a.png")
    prepare_dataset("mini-imagenet", tmp_path)
    bank = sosn.open_bank("mini-imagenet", "train", rotations=True)
    assert bank.names == ("n00000001", "n00000001@90", "n00000001@180", "n00000001@270")
    assert torch.equal(bank.images[1], bank.images[0].rot90(1, (-2, -1)))
    assert len(sosn.open_bank("mini-imagenet", "val", rotations=True).names) == 1


# tieredImageNet


@pytest.mark.parametrize("form", ["png", "npz"])
def test_tiered_imagenet_is_read_from_its_pickles(tmp_path: Path, form: str) -> None:
    for place, split in enumerate(SPLITS):
        labels = {"label_specific": np.array([1, 0, 1]), "label_specific_str": [f"n0{place}", f"n1{place}"]}
        dump(tmp_path / f"{split}_labels.pkl", labels)
        if form == "npz":
            np.savez(tmp_path / f"{split}_images.npz", images=pixels(3, 84, 3 * place)[..., ::-1])  # blue first
            continue
        encoded = []
        for image in pixels(3, 84, 3 * place):
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, "PNG")
            encoded.append(np.frombuffer(stream.getvalue(), np.uint8))
        dump(tmp_path / f"{split}_images_png.pkl", encoded)
    prepare_dataset("tiered-imagenet", tmp_path)
    assert shades(sosn.open_bank("tiered-imagenet", "test")) == {"n02": [7], "n12": [6, 8]}
    (tmp_path / "val_labels.pkl").unlink()
    with pytest.raises(DataError, match=r"has no val_labels\.pkl beside it"):
        prepare_dataset("tiered-imagenet", tmp_path)


def test_tiered_imagenet_is_read_from_trees(tmp_path: Path) -> None:
    for number, split in enumerate(SPLITS):
        photo(tmp_path / "tiered" / split / f"n0000000{number}" / "a.jpg", number)
    assert prepare_dataset("tiered-imagenet", tmp_path)["splits"]["val"] == {"classes": 1, "images": 1}


# CUB


def test_cub_classes_are_split_by_their_numbers(tmp_path: Path) -> None:
    for number in range(1, 9):
        photo(tmp_path / "CUB_200_2011" / "images" / f"{number:03}.Bird_{number}" / "a.jpg", number)
    prepare_dataset("cub", tmp_path)
    names = {split: [int(name[:3]) for name in sosn.open_bank("cub", split).names] for split in SPLITS}
    assert names == {"train": [1, 3, 5, 7], "val": [2, 6], "test": [4, 8]}


# CIFAR-FS and FC100


def test_every_class_of_cifar_100_has_one_split_in_both() -> None:
    classes = [name for names in SUPERCLASSES.values() for name in names.split()]
    assert len(set(classes)) == 100
    sizes = [
        [sum(split_of(name) == split for name in classes) for split in SPLITS] for split_of in (cifar_fs_split, fc100_split)
    ]
    assert sizes == [[64, 16, 20], [60, 20, 20]]
    for names in SUPERCLASSES.values():
        assert len({fc100_split(name) for name in names.split()}) == 1


def cifar_100(root: Path) -> Path:
    """cifar-100-python with five images; image n has shade 10·n in its left half's red."""
    names = sorted(name for names in SUPERCLASSES.values() for name in names.split())
    dump(root / "cifar-100-python" / "meta", {"fine_label_names": names})
    number = 0
    for half, classes in (("train", ["whale", "apple", "whale"]), ("test", ["whale", "otter"])):
        data = np.zeros((len(classes), 3, 32, 32), np.uint8)
        for row in data:
            row[0, :, :16] = 10 * number
            number += 1
        labels = [names.index(name) for name in classes]
        dump(root / "cifar-100-python" / half, {b"data": data.reshape(len(classes), 3072), b"fine_labels": labels})
    return root


def test_cifar_100_files_contain_both_datasets(tmp_path: Path) -> None:
    root = cifar_100(tmp_path / "source")
    prepare_dataset("cifar-fs", root)
    prepare_dataset("fc100", root)
    assert shades(sosn.open_bank("cifar-fs", "test")) == {"whale": [30, 0, 20]}  # the file test stands before train
    assert shades(sosn.open_bank("cifar-fs", "val")) == {"otter": [40]}
    assert shades(sosn.open_bank("cifar-fs", "train")) == {"apple": [10]}
    assert sosn.open_bank("fc100", "test").names == ("otter", "whale")
    image = sosn.open_bank("fc100", "train").images[0]
    assert image.shape == (3, 32, 32)
    assert (int(image[0, 5, 15]), int(image[0, 5, 16]), int(image[1].max())) == (10, 0, 0)


def test_cifar_fs_and_fc100_are_read_from_folders_and_pickles(tmp_path: Path) -> None:
    for number, name in enumerate(("whale", "apple", "otter")):
        photo(tmp_path / "tree" / "cifar100" / "data" / name / "a.png", number, 32)
    assert {split: part["classes"] for split, part in prepare_dataset("cifar-fs", tmp_path / "tree")["splits"].items()} == {
        "train": 1, "val": 1, "test": 1,
    }  # fmt: skip
    for prefix, name in (("FC100", "fc100"), ("CIFAR_FS", "cifar-fs")):
        for split in SPLITS:
            dump(tmp_path / name / f"{prefix}_{split}.pickle", {"data": pixels(2, 32), "labels": [7, 8]})
        assert prepare_dataset(name, tmp_path / name)["images"] == 6
        assert [label[-5:] for label in sosn.open_bank(name, "val").names] == ["/0007", "/0008"]
        assert list(shades(sosn.open_bank(name, "val")).values()) == [[0], [1]]


# All of them


def test_every_dataset_that_is_prepared_can_be_opened_and_is_listed_with_its_forms() -> None:
    assert set(CATALOG) == set(DATASETS) - {"glyphs", "folder"}
    forms = json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)["forms"]
    assert set(forms) == set(CATALOG)


@pytest.mark.filterwarnings("ignore:100% of the queries")  # pictures of one colour
def test_a_model_trained_on_one_dataset_is_evaluated_on_another(tmp_path: Path) -> None:
    """Grey 28×28 characters in training, colour photos of another size in the test."""
    for number in range(1, 17):
        for image in range(3):
            photo(tmp_path / "CUB_200_2011" / "images" / f"{number:03}.Bird" / f"{image}.jpg", 9 * number + image)
    prepare_dataset("cub", tmp_path)
    words = ["eval", "glyphs", "data=cub", "split=test", "way=3", "query=2", "episodes=4", "device=cpu", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["data"], result["split"], result["way"], result["episodes"]) == ("cub", "test", 3, 4)
    assert 0 <= result["accuracy"] <= 1


@pytest.mark.filterwarnings("ignore:100% of the queries")  # pictures of one colour
def test_omniglot_is_evaluated_within_one_alphabet(tmp_path: Path) -> None:
    number = 0
    for alphabet, characters in (("Keble", 4), ("Tibetan", 3), ("ULOG", 2)):
        for character in range(characters):
            for drawing in range(2):
                photo(tmp_path / "images_evaluation" / alphabet / f"character{character:02}" / f"{drawing}.png", number)
                number += 5
    prepare_dataset("omniglot", tmp_path)
    words = ["eval", "glyphs", "data=omniglot", "way=3", "query=1", "within=alphabet", "split=test", "episodes=4", "device=cpu"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["within"] == "alphabet"
    assert "1 of 3 alphabets have fewer than 3 classes and are skipped" in done.stderr
    model, bank = sosn.load("glyphs"), sosn.open_bank("omniglot", "test")
    sizes = {"way": 3, "query": 1, "episodes": 4}
    inside, anywhere = (sosn.evaluate(model, bank, within=within, **sizes) for within in ("alphabet", None))  # type: ignore[arg-type]
    assert inside.fingerprint == json.loads(done.stdout)["fingerprint"] != anywhere.fingerprint


def test_tiered_imagenets_arrays_have_blue_first(tmp_path: Path) -> None:
    red = np.zeros((1, 4, 4, 3), dtype=np.uint8)
    red[..., 2] = 200  # as its authors' reader stores red
    np.savez(tmp_path / "train_images.npz", images=red)
    assert arrays.read_row(str(tmp_path / "train_images.npz"), 0, 4, 3)[:, 0, 0].tolist() == [200, 0, 0]
