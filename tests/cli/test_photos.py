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


def test_a_pipe_gets_tab_separated_lines_with_whole_paths(cli: Cli, drawings: Path) -> None:
    code, out, err = cli("classify", "--support", str(drawings / "support"), str(drawings / "query"))
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == [str(file) for file in sorted((drawings / "query").glob("*/*.png"))]
    assert sum(Path(row[0]).parent.name == row[1] for row in rows) >= 5
    assert all(row[2].endswith("%") and row[3].startswith("letter ") for row in rows)
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
        assert Path(answer["nearest"]).parent.parent == drawings / "support"
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
        ([*support, "--html", "missing/page.html", str(drawings / "query")], 2, "there is no folder 'missing' for --html"),
        ([*support, "--reject", "0.9", str(drawings / "query")], 2, "from 0.01 to 0.5"),
        ([*support, "--save", str(drawings / "query"), str(drawings / "query")], 2, "holds other files, such as 'letter 0'"),
        ([*support, "--labelled", str(drawings / "query"), "x.png"], 2, "--labelled takes one folder"),
        ([*support, "--classifier", "kept", str(drawings / "query")], 2, "give either --support"),
        (["--classifier", "kept", "--model", "glyphs", str(drawings / "query")], 2, "remove --model"),
        ([str(drawings / "query")], 2, "give either --support"),
        ([*support, "--model", "glyfs", str(drawings / "query")], 2, "did you mean 'glyphs'?"),
        (["--support", "nowhere", str(drawings / "query")], 1, "there is no folder 'nowhere'"),
        (["--support", "empty", str(drawings / "query")], 1, "needs one for each class"),
    ):
        found, out, err = cli("classify", *words)
        assert found == code, err
        assert message in err
        assert out == ""


@pytest.mark.slow
def test_photos_print_what_to_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    photos = list(np.random.default_rng(0).integers(0, 256, (2, 84, 84, 3), dtype=np.uint8))
    said = expectation(FewShotClassifier().fit(photos, ["a", "b"]))
    card = shipped_models()["photos"]
    sizes = {(one["way"], one["shot"]): one["accuracy"] for one in card["calibration"]["sizes"]}
    assert "Model 'photos'; 2 classes of photos with 1 image each" in said
    assert f"Accuracy on 2-way 1-shot tasks of {card['data']} (val classes): {100 * sizes[2, 1]:.1f}%" in said
    assert "calibrated on the data of the model's card" in said
    assert "More images" in said
    more = [image // 16 * 16 + place for image in photos for place in range(6)]
    several = expectation(FewShotClassifier().fit(more, ["a"] * 6 + ["b"] * 6))
    assert "each left out in turn: 100% (12 of 12; 95% interval 76–100%)" in several
    assert "calibrated on your images and the data of the model's card" in several
    assert "not trained on photos" in expectation(FewShotClassifier("omniglot").fit(photos, ["a", "b"]))
    monkeypatch.setattr("sosn.classify.image_type.is_installed", lambda size: False)
    for shots, model in ((1, "mini-imagenet"), (5, "mini-imagenet-5shot")):
        with pytest.warns(SosnWarning, match=r"pip install 'sosn\[photos\]'"):
            assert FewShotClassifier().fit(photos * shots, ["a", "b"] * shots).model_ == model


def test_a_single_class_is_warned_of(cli: Cli, drawings: Path) -> None:
    one = ["--support", str(drawings / "other"), str(drawings / "query" / "letter 0")]
    code, _, err = cli("classify", *one)
    assert code == 0, err
    assert "one class of drawings with 4 images. With a single class, every image gets that class: add a second class" in err
    assert "right on" not in err
    _, out, _ = cli("classify", *one, "--reject", "0.5")
    assert "likeliest is letter 3" in out
    assert "likeliest is letter 3 100%" not in out


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
    assert "likeliest is letter" in out
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


def test_a_saved_classifier_gives_the_same_answers_without_the_support(cli: Cli, drawings: Path) -> None:
    code, first, err = cli("classify", "--support", str(drawings / "support"), "--save", "kept", str(drawings / "query"))
    assert code == 0, err
    code, second, err = cli("classify", "--classifier", "kept", str(drawings / "query"))
    assert code == 0, err
    assert first == second


def test_support_images_that_cannot_be_read_are_skipped_unless_a_class_has_no_other(
    cli: Cli, drawings: Path, tmp_path: Path
) -> None:
    shutil.copytree(drawings / "support", tmp_path / "support")
    (tmp_path / "support" / "letter 0" / "torn.png").write_bytes(b"no image")
    code, out, err = cli("classify", "--support", "support", "--json", str(drawings / "query"))
    assert code == 0, err
    assert "note: skipped 1 of 7 images, which cannot be read: support/letter 0/torn.png" in err
    assert json.loads(out)["classes"] == {"letter 0": 2, "letter 1": 2, "letter 2": 2}
    for file in (tmp_path / "support" / "letter 0").iterdir():
        file.write_bytes(b"no image")
    code, _, err = cli("classify", "--support", "support", str(drawings / "query"))
    assert code == 1
    assert "class 'letter 0' has no image that can be read" in err


def test_labelled_images_are_evaluated(cli: Cli, drawings: Path, tmp_path: Path) -> None:
    """The other character has no examples: rejecting it is right."""
    files = sorted([*(drawings / "query").glob("*/*.png"), *(drawings / "other").glob("*/*.png")])
    rows = [("path", "label"), *((str(file), file.parent.name) for file in files)]
    (tmp_path / "labels.csv").write_text("".join(f"{path},{label}\n" for path, label in rows))
    words = ["--support", str(drawings / "support"), "--reject", "0.1", "--labelled", "labels.csv"]
    code, out, err = cli("classify", *words, "--json", "--html", "page.html")
    assert code == 0, err
    printed = json.loads(out)
    found, answers = printed["evaluation"], printed["answers"]
    right = [answer["answer"] == (None if answer["label"] == "letter 3" else answer["label"]) for answer in answers]
    assert [answer["right"] for answer in answers] == right
    assert (found["images"], found["right"], found["unknown"]) == (10, sum(right), 4)
    assert found["right"] >= 8
    assert found["interval"][0] < found["accuracy"] <= found["interval"][1]
    page = (tmp_path / "page.html").read_text("utf-8")
    assert f"{found['right']} of 10 labelled images" in page
    assert page.count(" data-wrong") == 10 - found["right"]
    assert "http" not in page  # works offline
    code, out, err = cli("classify", *words, "--csv")
    assert [row["right"] == "true" for row in csv.DictReader(io.StringIO(out))] == right
    assert f"{found['right']} of 10 right" in err
    code, out, err = cli("classify", *words[:2], *words[4:])
    assert "note: 4 images are of classes without examples and count as mistakes" in err
    assert "Most confident mistakes\nimage\ttrue class\tanswer\tprobability\n" in out
    assert "of 10 right: " in out.splitlines()[-1]
