"""ONNX export: ONNX Runtime gives the same results as PyTorch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sosn
from sosn.checkpoint.storage import check_no_model
from sosn.classify.onnx import export_onnx
from sosn.cli import main
from sosn.errors import SosnWarning, UntrainedError, UsageError
from sosn.evaluation.calibration import calibration_of
from sosn.method import PrototypicalNet

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "classify_onnx.py"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "exported"
    export_onnx(sosn.load("glyphs"), folder, "glyphs", calibration_of("glyphs"))
    return folder


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """support/ with unequal shots and query/, four classes."""
    root = tmp_path_factory.mktemp("drawings")
    bank = sosn.open_bank("glyphs", "test", alphabets=10, characters=4, drawings=6, seed=3)
    for number, name in enumerate(bank.names[:4]):
        for place, image in enumerate(bank.class_images(name)):
            folder = root / ("support" if place <= number else "query") / f"letter{number}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(folder / f"{place}.png")
    return root


def _session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.slow
@pytest.mark.parametrize(("way", "shot", "queries"), [(1, 1, 1), (2, 5, 7), (9, 2, 3)])
def test_any_number_of_classes_shots_and_queries_gives_the_method_s_scores(
    exported: Path, way: int, shot: int, queries: int
) -> None:
    support, query = torch.rand(way, shot, 1, 28, 28), torch.rand(queries, 1, 1, 28, 28)
    model = sosn.load("glyphs")
    with torch.no_grad():
        expected = model.logits(sosn.Episode(support.unsqueeze(0), query.view(1, queries, 1, 28, 28)))[0]
    describe, similarity = _session(exported / "describe.onnx"), _session(exported / "similarity.onnx")
    described = [describe.run(None, {"images": images.numpy()})[0] for images in (support, query)]
    found = similarity.run(None, {"support": described[0], "query": described[1]})[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"permutations": 2, "streams": 2},
        {"permutations": 2, "relation": "difference"},
        {"relation": "ranked", "preprocessing": {"mean": [0.4]}},
    ],
)
def test_permutations_streams_and_other_relations_are_exported_too(tmp_path: Path, options: dict[str, Any]) -> None:
    method = sosn.SoSN(channels=1, input_size=28, **options)
    method.trained = True
    assert export_onnx(method, tmp_path, "own")["largest_difference"] <= 1e-4


@pytest.mark.slow
def test_what_goes_beyond_the_paper_is_exported_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    copies: dict[str, Any] = {"mirror": True, "scales": 1, "turns": 1}
    method = sosn.SoSN(channels=1, input_size=28, cosine=5.0, relation="ranked", test_time=copies)
    method.trained = True
    for buffer in method.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.1 * torch.rand_like(buffer))  # statistics unlike those of a new model
    export_onnx(method, tmp_path, "own")
    support, query = torch.rand(3, 2, 1, 28, 28), torch.rand(4, 1, 1, 28, 28)
    with torch.no_grad():
        expected = method.eval().logits(sosn.Episode(support.unsqueeze(0), query.view(1, 4, 1, 28, 28)))[0]
    described = [_session(tmp_path / "describe.onnx").run(None, {"images": one.numpy()})[0] for one in (support, query)]
    found = _session(tmp_path / "similarity.onnx").run(None, {"support": described[0], "query": described[1]})[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


def test_the_example_answers_as_the_classifier_does(exported: Path, drawings: Path) -> None:
    files = sorted((drawings / "query").glob("*/*.png"))
    words = [sys.executable, str(EXAMPLE), str(exported), str(drawings / "support"), *map(str, files)]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    classifier = sosn.FewShotClassifier("glyphs").fit(drawings / "support")
    assert [row[0] for row in rows] == [str(file) for file in files]
    assert [row[1] for row in rows] == classifier.predict(files).tolist()
    np.testing.assert_allclose([float(row[2]) for row in rows], classifier.similarities(files).max(1), atol=1e-3)


def test_the_example_is_short_and_needs_neither_sosn_nor_torch() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 50  # 40 of them code
    assert "import torch" not in text
    assert "import sosn" not in text


def test_what_is_beside_the_graphs_says_how_to_use_them(exported: Path) -> None:
    about = json.loads((exported / "model.json").read_text("utf-8"))
    assert (about["input_size"], about["channels"], about["model"]) == (28, 1, "glyphs")
    assert about["calibration"]["sizes"]
    assert about["largest_difference"] <= 1e-4


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UntrainedError):
        export_onnx(sosn.SoSN(channels=1, input_size=28), tmp_path, "own")
    with pytest.raises(UsageError, match="this 'sosn' model cannot be exported: use SoSN with relation average"):
        export_onnx(sosn.SoSN(channels=1, input_size=28, relation="full"), tmp_path, "own")
    with pytest.raises(UsageError, match="this 'prototypical' model cannot be exported"):
        export_onnx(PrototypicalNet(channels=1, input_size=28), tmp_path, "own")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_writes_the_folder_and_says_what_it_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["sosn", "export", "glyphs", str(tmp_path / "out"), "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    printed = json.loads(capsys.readouterr().out)
    assert printed["largest_difference"] <= 1e-4
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["describe.onnx", "model.json", "similarity.onnx"]


def test_export_and_tune_leave_files_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.json").write_text("mine")
    (tmp_path / "photo.png").write_text("mine")
    for place in (tmp_path / "own", tmp_path / "photo.png"):
        with pytest.raises(UsageError, match="choose another folder"):
            export_onnx(sosn.load("glyphs"), place, "glyphs")
    with pytest.raises(UsageError, match="is a file: choose another --out"):
        check_no_model(tmp_path / "photo.png")
    assert (tmp_path / "own" / "model.json").read_text() == (tmp_path / "photo.png").read_text() == "mine"


def test_the_example_reads_photos_as_the_classifier_does(exported: Path, drawings: Path, tmp_path: Path) -> None:
    """Upright by their EXIF, and transparency as white; other files of a class folder are passed over."""
    support = tmp_path / "support"
    for file in sorted((drawings / "support").glob("*/*.png")):
        (support / file.parent.name).mkdir(parents=True, exist_ok=True)
        (support / file.parent.name / "notes.txt").write_text("")
        image = Image.open(file).convert("L")
        clear = Image.merge("LA", (Image.new("L", image.size, 0), image.point(lambda value: 255 - value)))
        clear.save(support / file.parent.name / file.name)
    turned = Image.open(next((drawings / "query").glob("*/*.png"))).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "phone.png", exif=exif)
    words = [sys.executable, str(EXAMPLE), str(exported), str(support), str(tmp_path / "phone.png")]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    with pytest.warns(SosnWarning):  # of the notes
        classifier = sosn.FewShotClassifier("glyphs").fit(support)
    _, answer, similarity = result.stdout.strip().split("\t")
    assert answer == classifier.predict([tmp_path / "phone.png"])[0]
    assert float(similarity) == pytest.approx(classifier.similarities([tmp_path / "phone.png"]).max(), abs=1e-3)
    assert subprocess.run(words[:3], capture_output=True, text=True, check=False).returncode == 1
