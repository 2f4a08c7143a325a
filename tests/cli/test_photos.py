"""`sosn classify`: what it prints, where, and with which exit code."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sosn
from sosn.checkpoint.registry import shipped_models
from sosn.classify.batch import expectation, find_images
from sosn.classify.classifier import FewShotClassifier
from sosn.errors import SosnWarning
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """support/: three characters, two drawings each; query/: two more of each; other/: a character of another alphabet."""
    root = tmp_path_factory.mktemp("drawings")
    bank = sosn.open_bank("glyphs", "test", alphabets=10, characters=4, drawings=4, seed=3)
    for number, name in enumerate((*bank.names[:3], bank.names[-1])):
        for place, image in enumerate(bank.class_images(name)):
            part = "other" if number == 3 else "support" if place < 2 else "query"
            folder = root / part / f"letter {number}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(folder / f"{place}.png")
    return root


def test_a_folder_is_classified_as_a_table(cli: Cli, drawings: Path) -> None:
    code, out, err = cli("classify", "--support", str(drawings / "support"), str(drawings / "query"))
    assert code == 0, err
    rows = [line for line in out.splitlines() if ".png" in line]
    assert len(rows) == 6
    assert sum(f"query/letter {number}" in row and f" letter {number} " in row for row in rows for number in range(3)) >= 5
    assert "3 classes of drawings with 2 images each" in err
    assert "More images of each class help most" in err


def test_json_is_one_document_with_the_scores_of_all_classes(cli: Cli, drawings: Path) -> None:
    files = sorted((drawings / "query").glob("*/*.png"))
    code, out, err = cli("classify", "--support", str(drawings / "support"), "--model", "glyphs", "--json", *map(str, files))
    assert code == 0, err
    printed = json.loads(out)
    assert printed["model"] == "glyphs"
    assert printed["image_type"] == "drawings"
    assert printed["calibrated"] is True
    assert printed["classes"] == {"letter 0": 2, "letter 1": 2, "letter 2": 2}
    assert [answer["image"] for answer in printed["answers"]] == [str(file) for file in files]
    for answer in printed["answers"]:
        assert set(answer["probabilities"]) == set(answer["similarities"]) == set(printed["classes"])
        assert answer["answer"] == max(answer["similarities"], key=lambda name: answer["similarities"][name])
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert printed["failed"] == []


def test_a_corrupt_file_is_reported_and_the_rest_go_on(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    good = drawings / "query" / "letter 1" / "2.png"
    torn = tmp_path / "torn.png"
    torn.write_bytes(good.read_bytes()[:60])
    words = ["--support", str(drawings / "support"), str(torn), str(good)]
    code, out, err = cli("classify", "--csv", *words)
    assert code == 1
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["image"] for row in rows] == [str(torn), str(good)]
    assert [bool(row["error"]) for row in rows] == [True, False]
    assert rows[1]["answer"] == "letter 1"
    assert 0 < float(rows[1]["probability"]) <= 1
    assert "torn.png" in err
    code, out, _ = cli("classify", "--json", *words)
    assert code == 1
    printed = json.loads(out)
    assert len(printed["answers"]) == 1
    assert [one["image"] for one in printed["failed"]] == [str(torn)]


def test_unknown_classes_are_none_of_these(cli: Cli, drawings: Path) -> None:
    words = ["--support", str(drawings / "support"), "--reject", "0.1", "--json"]
    code, out, err = cli("classify", *words, str(drawings / "other"), str(drawings / "query"))
    assert code == 0, err
    answers = json.loads(out)["answers"]
    assert sum(answer["answer"] is None for answer in answers[:4]) >= 3
    assert sum(answer["answer"] is None for answer in answers[4:]) <= 1
    code, _, err = cli("classify", *words, "--reject", "0.9", str(drawings / "other"))
    assert code == 2
    assert "from 0.01 to 0.5" in err


def test_the_page_shows_every_image_and_its_nearest_example(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    torn = tmp_path / "<torn>.png"
    torn.write_bytes(b"no image")
    words = ["--support", str(drawings / "support"), "--html", str(tmp_path / "page.html"), str(drawings / "query"), str(torn)]
    code, out, err = cli("classify", *words)
    assert code == 1
    assert "could not be read" in out
    assert "page.html" in err
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 6 + 2 * 6  # the support, the queries, and what each is most alike
    assert "&lt;torn&gt;.png" in page
    assert "<torn>" not in page


def test_wrong_options_are_reported(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    support = ["--support", str(drawings / "support")]
    (tmp_path / "empty").mkdir()
    for words, code, message in (
        ([*support, "--csv", "--json", "x.png"], 2, "choose one"),
        ([*support, str(drawings / "query"), "nowhere.png"], 1, "there is no file or folder 'nowhere.png'"),
        ([*support, "empty"], 1, "contains no images"),
        ([*support, "--model", "glyfs", str(drawings / "query")], 2, "did you mean 'glyphs'?"),
        (["--support", "nowhere", str(drawings / "query")], 1, "there is no folder 'nowhere'"),
        (["--support", "empty", str(drawings / "query")], 1, "needs one for each class"),
    ):
        found, out, err = cli("classify", *words)
        assert found == code, err
        assert message in err
        assert out == ""


@pytest.mark.slow
def test_photos_print_what_to_expect_and_what_is_stronger() -> None:
    photos = list(np.random.default_rng(0).integers(0, 256, (2, 84, 84, 3), dtype=np.uint8))
    said = expectation(FewShotClassifier().fit(photos, ["a", "b"]))
    card = shipped_models()["mini-imagenet"]
    sizes = {(one["way"], one["shot"]): one["accuracy"] for one in card["calibration"]["sizes"]}
    assert f"Accuracy on 2-way 1-shot tasks of mini-imagenet (val classes): {100 * sizes[2, 1]:.1f}%" in said
    five = expectation(FewShotClassifier("mini-imagenet").fit(photos * 6, ["a", "b"] * 6))
    assert f"2-way 5-shot tasks of mini-imagenet (val classes): {100 * sizes[2, 5]:.1f}%" in five
    assert "Model 'mini-imagenet-5shot'" in expectation(FewShotClassifier().fit(photos * 5, ["a", "b"] * 5))
    assert "Model 'mini-imagenet'" in expectation(FewShotClassifier().fit(photos * 5, ["a", *"bb" * 4, "b"]))
    like_its_card = expectation(FewShotClassifier().fit(photos * 3, list("abcdea")))
    assert f"5-way 1-shot tasks of mini-imagenet (val classes): {100 * card['accuracy']:.1f}%" in like_its_card
    for choice in ("More images", "sosn tune", "timm:NAME"):
        assert choice in said
    assert "not trained on photos" in expectation(FewShotClassifier("omniglot").fit(photos, ["a", "b"]))


def test_a_single_class_is_warned_of(cli: Cli, drawings: Path) -> None:
    one = ["--support", str(drawings / "other"), str(drawings / "query" / "letter 0")]
    code, _, err = cli("classify", *one)
    assert code == 0, err
    assert "one class of drawings with 4 images. With a single class, every image gets that class: add a second class" in err
    assert "right on" not in err
    _, out, _ = cli("classify", *one, "--reject", "0.5")
    assert "nearest is letter 3" in out
    assert "nearest is letter 3 100%" not in out


def test_an_image_outside_the_class_folders_is_skipped_and_reported(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    shutil.copytree(drawings / "support", tmp_path / "support")
    shutil.copy(next((drawings / "query").glob("*/*.png")), tmp_path / "support" / "stray.png")
    code, _, err = cli("classify", "--support", "support", str(drawings / "query"))
    assert code == 0
    assert "skipped 1 file in 'support': stray.png" in err


def test_drawings_on_a_blackboard_are_inverted_with_one_message(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    files = sorted((drawings / "query").glob("*/*.png"))
    for number, file in enumerate(files):
        Image.fromarray(255 - np.array(Image.open(file))).save(tmp_path / f"{number}.png")
    boards = [*(f"{number}.png" for number in range(len(files))), "torn.png"]
    (tmp_path / "torn.png").write_bytes(b"\x89PNG")
    words = ["classify", "--support", str(drawings / "support"), "--model", "glyphs", "--json"]
    _, out, err = cli(*words, *map(str, files))
    assert "inverted" not in err
    expected = [answer["probabilities"] for answer in json.loads(out)["answers"]]
    code, out, err = cli(*words, "--html", "page.html", *boards)
    assert code == 1  # for the torn one
    assert err.count("inverted ") == 1
    assert "note: inverted 6 of 6 images from light on dark to dark on light" in err
    assert "--polarity as_is" in err
    assert [answer["probabilities"] for answer in json.loads(out)["answers"]] == expected
    code, out, err = cli(*words, "--polarity", "as_is", *boards[:-1])
    assert code == 0, err
    assert "inverted" not in err
    assert [answer["probabilities"] for answer in json.loads(out)["answers"]] != expected
    code, _, err = cli(*words, "--polarity", "inverted", *boards[:-1])
    assert code == 2
    assert "choose auto or as_is" in err


def test_a_page_never_overwrites_another_file(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    photo, notes = tmp_path / "photo.png", tmp_path / "notes.html"
    photo.write_bytes(next((drawings / "query").glob("*/*.png")).read_bytes())
    notes.write_text("<p>mine</p>")
    words = ["--support", str(drawings / "support"), "--model", "glyphs", str(drawings / "query" / "letter 0")]
    for place, said in ((photo, "needs a file name that ends in .html"), (notes, "not a page that sosn wrote")):
        before = place.read_bytes()
        code, out, err = cli("classify", "--html", str(place), *words)
        assert (code, out) == (2, "")
        assert said in err
        assert place.read_bytes() == before
    for _ in range(2):  # a page of ours may be written again
        code, _, err = cli("classify", "--html", str(tmp_path / "page.html"), *words)
        assert code == 0, err


def test_of_what_is_none_of_these_the_nearest_class_is_named(cli: Cli, drawings: Path) -> None:
    words = ["--support", str(drawings / "support"), "--model", "glyphs", "--reject", "0.5", str(drawings / "other")]
    code, out, err = cli("classify", *words)
    assert code == 0, err
    assert "nearest is letter" in out
    code, out, err = cli("classify", "--csv", *words)
    rows = [row for row in csv.DictReader(io.StringIO(out)) if not row["answer"]]
    assert rows
    assert all(row["likeliest"].startswith("letter ") and float(row["probability"]) > 0.3 for row in rows)


def test_folders_are_searched_once_and_skipped_files_are_counted(drawings: Path, tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "loop").symlink_to(tmp_path / "q")
    (tmp_path / "q" / "one.png").write_bytes(next((drawings / "query").glob("*/*.png")).read_bytes())
    (tmp_path / "q" / "phone.HEIC").write_bytes(b"")
    (tmp_path / "q" / "notes.txt").write_text("")
    (tmp_path / "q" / "film.mov").write_text("")
    with pytest.warns(SosnWarning, match=r"skipped 2 files in .*, not images: film.mov, notes.txt"):
        assert find_images([tmp_path / "q"]) == [tmp_path / "q" / "one.png", tmp_path / "q" / "phone.HEIC"]


def test_a_page_can_name_files_that_are_not_utf8(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/bad\xff.png"
    Path(os.fsdecode(odd)).write_bytes(next((drawings / "query").glob("*/*.png")).read_bytes())
    words = [
        "--support",
        str(drawings / "support"),
        "--model",
        "glyphs",
        "--html",
        str(tmp_path / "page.html"),
        os.fsdecode(odd),
    ]
    code, _, err = cli("classify", *words)
    assert code == 0, err
    assert "bad?.png" in (tmp_path / "page.html").read_text("utf-8")
