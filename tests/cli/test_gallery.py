"""`sosn gallery`: what it prints, where, and with which exit code."""

import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image

import sosn
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """support/: three characters, two drawings each, and a torn file; query/: a third drawing of each."""
    root = tmp_path_factory.mktemp("drawings")
    bank = sosn.open_bank("glyphs", "test", alphabets=10, characters=4, drawings=3, seed=3)
    for number, name in enumerate(bank.names[:3]):
        for place, image in enumerate(bank.class_images(name)):
            folder = root / ("support" if place < 2 else "query") / f"letter {number}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(folder / f"{place}.png")
    (root / "support" / "letter 0" / "torn.png").write_bytes(b"no image")
    return root


def test_classes_are_added_found_and_removed(cli: Cli, drawings: Path) -> None:
    code, out, err = cli("gallery", "create", "mine", "--from", str(drawings / "support"), "--json")
    assert code == 1
    assert "torn.png" in err
    assert json.loads(out) | {"failed": []} == {"folder": "mine", "model": "omniglot", "classes": 3, "failed": []}
    code, out, err = cli("gallery", "add", "mine", "--from", str(drawings / "support"))
    assert (code, out) == (0, "mine: 3 classes; model 'omniglot'\n"), err
    assert "skipped 3 classes that are already there" in err
    query, torn = str(drawings / "query"), str(drawings / "support" / "letter 0" / "torn.png")
    code, out, err = cli("gallery", "query", "mine", query, torn, "--top", "2", "--json")
    assert code == 1
    assert "torn.png" in err
    printed = json.loads(out)
    assert (printed["classes"], printed["calibrated"], len(printed["failed"])) == (3, True, 1)
    best = [answer["matches"][0] for answer in printed["answers"]]
    assert [one["label"] for one in best] == ["letter 0", "letter 1", "letter 2"]
    assert all(0 < one["probability"] <= 1 for one in best)
    code, out, err = cli("gallery", "query", "mine", query)
    assert code == 0, err
    cells = [line.split("\t") for line in out.splitlines()]
    assert [(Path(image).parent.name, best) for image, best, *_ in cells] == [(f"letter {one}",) * 2 for one in range(3)]
    code, out, _ = cli("gallery", "remove", "mine", "letter 0", "letter 1")
    assert (code, out) == (0, "mine: 1 class; model 'omniglot'\n")
    code, out, _ = cli("gallery", "query", "mine", query, "--csv", "--reject", "0.1")
    assert code == 0
    assert [row["class"] for row in csv.DictReader(io.StringIO(out))] == ["", "", "letter 2"]
    code, out, _ = cli("gallery", "add", "mine", "letter 0", str(drawings / "query" / "letter 0"))
    assert (code, out) == (0, "mine: 2 classes; model 'omniglot'\n")


def test_wrong_options_are_reported(cli: Cli, drawings: Path) -> None:
    assert cli("gallery", "create", "mine")[:2] == (0, "mine: 0 classes; its model is chosen by the first images\n")
    image = str(drawings / "query" / "letter 0" / "2.png")
    for words, code, message in (
        (["create", "mine"], 2, "is not empty"),
        (["add", "mine", "letter"], 2, "give a label and images"),
        (["query", "mine", image], 1, "the gallery is empty"),
        (["remove", "mine", "letter"], 1, "there is no class 'letter'"),
        (["query", "other", image], 1, "there is no gallery in 'other'"),
        (["query", "mine", "--csv", "--json", image], 2, "choose one"),
    ):
        found, out, err = cli("gallery", *words)
        assert found == code, err
        assert message in err
        assert out == ""
