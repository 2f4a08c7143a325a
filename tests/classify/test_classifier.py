"""The classifier takes images in any form and follows scikit-learn's conventions."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sosn
from sosn import FewShotClassifier
from sosn.data.bank import Bank
from sosn.episode import Episode
from sosn.errors import CheckpointError, DataError, NotFittedError, SosnWarning, UntrainedError, UsageError
from sosn.method import MatchingNet, PrototypicalNet, method_class

WAY, SHOT, QUERIES = 5, 3, 4


@pytest.fixture(scope="module")
def bank() -> Bank:
    """Characters that the shipped model never saw: 5 classes of 8 drawings."""
    whole = sosn.open_bank("glyphs", "test", alphabets=10, characters=5, drawings=8, seed=7)
    return whole.subset(whole.names[:WAY])


@pytest.fixture(scope="module")
def drawings(bank: Bank) -> list[np.ndarray]:
    """All drawings, class by class, as H×W arrays."""
    return [image[0].numpy() for image in bank.images]


@pytest.fixture(scope="module")
def folder(bank: Bank, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of support images, one folder a class, and beside it a folder of queries."""
    root = tmp_path_factory.mktemp("drawings")
    for name in bank.names:
        label = name.replace("/", "-")
        for number, image in enumerate(bank.class_images(name)):
            part = root / "support" / label if number < SHOT else root / "query" / label
            part.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(part / f"{number}.png")
    return root


def _split(bank: Bank, drawings: list[np.ndarray], shots: list[int]) -> tuple[list[np.ndarray], list[int], list[np.ndarray]]:
    """The first shots[c] drawings of class c with their labels, and the last QUERIES of every class."""
    support, labels, queries = [], [], []
    for number, (start, count) in enumerate(zip(bank.starts.tolist(), bank.counts.tolist(), strict=True)):
        support += drawings[start : start + shots[number]]
        labels += [number] * shots[number]
        queries += drawings[start + count - QUERIES : start + count]
    return support, labels, queries


def test_answers_are_those_of_the_method_on_the_same_episode(bank: Bank, drawings: list[np.ndarray]) -> None:
    support, labels, queries = _split(bank, drawings, [SHOT] * WAY)
    model = sosn.load("glyphs")
    episode = Episode(
        torch.tensor(np.array(support)).view(1, WAY, SHOT, 1, 28, 28), torch.tensor(np.array(queries)).view(1, -1, 1, 28, 28)
    )
    with torch.no_grad():
        expected = model(episode)[0].numpy()
    found = FewShotClassifier("glyphs").fit(support, labels).similarities(queries)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_unequal_shots_average_the_maps_of_each_class(bank: Bank, drawings: list[np.ndarray]) -> None:
    shots = [1, 2, 3, 4, 1]
    support, labels, queries = _split(bank, drawings, shots)
    model = sosn.load("glyphs")
    expected = np.empty((len(queries), WAY))
    for number in range(WAY):  # each class by itself, in an episode of equal shots
        own = [image for image, label in zip(support, labels, strict=True) if label == number]
        episode = Episode(
            torch.tensor(np.array(own)).view(1, 1, len(own), 1, 28, 28), torch.tensor(np.array(queries)).view(1, -1, 1, 28, 28)
        )
        with torch.no_grad():
            expected[:, number] = model(episode)[0, :, 0].numpy()
    found = FewShotClassifier("glyphs").fit(support, labels).similarities(queries)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_new_drawings_are_recognised(folder: Path) -> None:
    classifier = FewShotClassifier().fit(folder / "support")
    assert classifier.score(folder / "query") >= 0.9
    assert classifier.image_type_ == "drawings"
    assert list(classifier.classes_) == sorted(path.name for path in (folder / "support").iterdir())


@pytest.mark.slow
def test_paths_pillow_images_arrays_and_tensors_give_the_same(folder: Path, drawings: list[np.ndarray]) -> None:
    classifier = FewShotClassifier("glyphs").fit(folder / "support")
    files = sorted((folder / "query").glob("*/*.png"))
    greys = [np.array(Image.open(file)) for file in files]
    stacked = np.stack(greys)
    forms: dict[str, Any] = {
        "strings": [str(file) for file in files],
        "Pillow images": [Image.open(file) for file in files],
        "grey arrays": greys,
        "a stack of arrays": stacked,
        "colour arrays": [np.repeat(grey[:, :, None], 3, 2) for grey in greys],
        "floating point": stacked / 255,
        "tensors": [torch.from_numpy(grey)[None] for grey in greys],
        "a stack of tensors": torch.from_numpy(stacked)[:, None].float() / 255,
    }
    expected = classifier.similarities(files)
    for name, form in forms.items():
        np.testing.assert_allclose(classifier.similarities(form), expected, atol=1e-6, err_msg=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(classifier.predict(files[0].parent)) == len(list(files[0].parent.iterdir()))
    assert classifier.predict(files[0]) == classifier.predict([files[0]])


def test_partial_fit_gives_what_fitting_all_at_once_gives(bank: Bank, drawings: list[np.ndarray]) -> None:
    support, labels, queries = _split(bank, drawings, [3, 2, 3, 1, 2])
    whole = FewShotClassifier("glyphs").fit(support, labels)
    grown = FewShotClassifier("glyphs").partial_fit(support[:6], labels[:6])  # classes 0, 1 and one drawing of 2
    grown.predict(queries)
    kept = grown._support._described[0]
    grown.partial_fit(support[6:], labels[6:])
    np.testing.assert_allclose(grown.similarities(queries), whole.similarities(queries), atol=1e-6)
    assert list(grown.classes_) == [0, 1, 2, 3, 4]
    assert grown._support._described[0] is kept  # a class that got nothing new is not described again


def test_a_failed_partial_fit_changes_nothing(bank: Bank, drawings: list[np.ndarray]) -> None:
    support, labels, queries = _split(bank, drawings, [1] * WAY)
    classifier = FewShotClassifier("glyphs").fit(support, labels)
    before = classifier.similarities(queries)
    with pytest.raises(DataError, match="does not exist"):
        classifier.partial_fit([support[0], "/nowhere.png"], [9, 9])
    with pytest.raises(UsageError, match="earlier labels were int"):
        classifier.partial_fit(support[:1], ["word"])
    np.testing.assert_array_equal(classifier.similarities(queries), before)


def test_the_explanation_names_the_support_image_that_the_model_finds_nearest(folder: Path) -> None:
    classifier = FewShotClassifier("glyphs").fit(folder / "support")
    files = sorted((folder / "support").glob("*/*.png"))
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    for query in sorted((folder / "query").glob("*/*.png"))[::5]:
        episode = Episode(
            pixels.view(1, len(files), 1, 1, 28, 28), torch.tensor(np.array(Image.open(query))).view(1, 1, 1, 28, 28)
        )
        with torch.no_grad():
            singly = sosn.load("glyphs")(episode)[0, 0]
        explanation = classifier.explain(query)
        assert explanation.nearest.index == int(singly.argmax())
        assert explanation.nearest.source == str(files[explanation.nearest.index])
        assert explanation.nearest.label == files[explanation.nearest.index].parent.name
        assert explanation.nearest.similarity == pytest.approx(float(singly.max()), abs=1e-5)
        assert explanation.answer == max(explanation.similarities, key=lambda label: explanation.similarities[label])
        assert explanation.answer == classifier.predict([query])[0]
        assert explanation.probabilities[explanation.answer] == explanation.probability
        assert sum(explanation.probabilities.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_a_saved_classifier_answers_the_same_and_can_learn_on(folder: Path, tmp_path: Path) -> None:
    queries = sorted((folder / "query").glob("*/*.png"))
    names = sorted(path for path in (folder / "support").iterdir())
    files = [file for name in names[:4] for file in sorted(name.iterdir())]
    first = FewShotClassifier("glyphs").fit(files, [file.parent.name for file in files])
    first.save(tmp_path / "kept")
    second = FewShotClassifier.load(tmp_path / "kept")
    np.testing.assert_array_equal(second.similarities(queries), first.similarities(queries))
    np.testing.assert_array_equal(second.predict_proba(queries), first.predict_proba(queries))
    assert second.explain(files[5]) == first.explain(files[5])
    assert second.get_params() == first.get_params()
    more = sorted(names[4].iterdir())
    for classifier in (first, second):
        classifier.partial_fit(more, [names[4].name] * len(more))
    np.testing.assert_array_equal(second.similarities(queries), first.similarities(queries))
    kinds = {path.suffix for path in (tmp_path / "kept").iterdir()}
    assert kinds == {".safetensors", ".json"}


def test_whole_numbers_stay_whole_numbers_when_saved(drawings: list[np.ndarray], tmp_path: Path) -> None:
    FewShotClassifier("glyphs").fit(drawings[:3], np.array([7, 3, 7])).save(tmp_path)
    assert FewShotClassifier.load(tmp_path).predict(drawings[:1]).dtype.kind == "i"


def test_a_folder_that_is_not_whole_is_refused(drawings: list[np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no classifier\.json"):
        FewShotClassifier.load(tmp_path)
    FewShotClassifier("glyphs").fit(drawings[:2], [0, 1]).save(tmp_path / "one")
    FewShotClassifier("glyphs").fit(drawings[:2], [1, 0]).save(tmp_path / "other")
    (tmp_path / "one" / "support.safetensors").write_bytes((tmp_path / "other" / "support.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="do not belong together"):
        FewShotClassifier.load(tmp_path / "one")
    (tmp_path / "other" / "classifier.json").write_text(json.dumps({"files": {}}))
    with pytest.raises(CheckpointError, match="damaged"):
        FewShotClassifier.load(tmp_path / "other")


def test_other_methods_with_equal_shots_and_unequal_ones(drawings: list[np.ndarray]) -> None:
    method = PrototypicalNet(channels=1, input_size=28, encoder="conv4_pooled")
    with pytest.raises(UntrainedError, match="has not been trained"):
        FewShotClassifier(method).fit(drawings[:2], [0, 1])
    method.trained = True
    classifier = FewShotClassifier(method).fit([drawings[0], drawings[1], drawings[8]], [0, 0, 1])
    assert classifier.predict([drawings[0], drawings[8]]).tolist() == [0, 1]
    with pytest.warns(SosnWarning, match="not calibrated"):
        classifier.predict_proba(drawings[:1])
    with pytest.raises(UsageError, match=r"reject=0\.05 needs 19 images"):
        classifier.predict(drawings[:1], reject=0.05)


def test_a_method_that_needs_equal_shots_says_so(drawings: list[np.ndarray]) -> None:
    method = MatchingNet(channels=1, input_size=28)
    method.trained = True
    classifier = FewShotClassifier(method).fit(drawings[:3], [0, 0, 1])
    with pytest.raises(UsageError, match="give all classes the same number of images"):
        classifier.predict(drawings[:1])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([np.zeros((8, 8), np.uint8)], None, "labels are missing"),
        ([np.zeros((8, 8), np.uint8)], ["a", "b"], "1 images and labels of shape"),
        ([np.zeros((8, 8), np.uint8)], [0.5], "they must be strings or integers"),
        ([np.zeros((8, 8), np.uint8)], [None], "they must be strings or integers"),
        (np.zeros((8, 8, 3), np.uint8), [1] * 8, "put a single image in a list"),
        (torch.zeros(3, 8, 8), [1, 2, 3], "put a single image in a list"),
        (np.zeros((5, 64)), [1] * 5, "not a batch of images"),
        ([np.zeros(64)], [1], r"has shape \(64,\)"),
        ([np.full((8, 8), 255.0)], [1], "divide by 255"),
        ([np.full((8, 8), np.nan)], [1], "lie between 0 and 1"),
        ([np.zeros((8, 8), np.int64)], [1], "has type torch.int64"),
        ([3], [1], "an image is a int"),
        ([], [], "there are no images"),
    ],
)
def test_what_makes_no_sense_is_refused(images: object, labels: list[object] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FewShotClassifier("glyphs").fit(images, labels)  # type: ignore[arg-type]


def test_files_that_are_not_images_are_named(tmp_path: Path) -> None:
    classifier = FewShotClassifier("glyphs")
    with pytest.raises(DataError, match="there is no folder"):
        classifier.fit(tmp_path / "nowhere")
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="class 'cat' has no images"):
        classifier.fit(tmp_path)
    (tmp_path / "cat" / "torn.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(DataError, match=r"torn\.png"):
        classifier.fit(tmp_path)


def test_an_unfitted_classifier_says_so() -> None:
    for ask in ("predict", "predict_proba", "similarities", "explain", "save"):
        with pytest.raises(NotFittedError, match="call fit"):
            getattr(FewShotClassifier(), ask)("x.png")
    with pytest.raises(UsageError, match="there is no model 'glyfs'"):
        FewShotClassifier("glyfs").fit([np.zeros((8, 8), np.uint8)], ["a"])
    with pytest.raises(UsageError, match="no parameter 'modell'"):
        FewShotClassifier().set_params(modell="glyphs")


@pytest.mark.slow
def test_importing_sosn_or_the_classifier_imports_no_scikit_learn() -> None:
    program = "import sys, sosn; assert 'torch' not in sys.modules; sosn.FewShotClassifier; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow
def test_scikit_learn_clones_crosses_and_pipes_it(bank: Bank, drawings: list[np.ndarray]) -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.utils.validation import check_is_fitted

    classifier = FewShotClassifier("glyphs")
    assert is_classifier(classifier)
    copy = clone(classifier.fit(drawings[:2], [0, 1]))
    assert copy.get_params() == classifier.get_params()
    check_is_fitted(classifier)
    assert not copy.__sklearn_is_fitted__()
    stacked, labels = np.stack(drawings), bank.labels.numpy()
    assert cross_val_score(copy, stacked, labels, cv=4).mean() > 0.9
    assert make_pipeline(copy).fit(stacked, labels).predict(stacked[:1]).shape == (1,)
    search = GridSearchCV(copy, {"model": ["glyphs"]}, cv=2).fit(stacked, labels)
    assert search.best_params_ == {"model": "glyphs"}


def test_scikit_learn_s_own_checks_of_the_constructor_pass() -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    for name in (
        "check_parameters_default_constructible",
        "check_no_attributes_set_in_init",
        "check_get_params_invariance",
        "check_estimator_cloneable",
        "check_estimator_repr",
    ):
        getattr(checks, name)("FewShotClassifier", FewShotClassifier())


def test_scikit_learn_checks_what_applies_to_an_estimator_of_images_and_finds_it_right() -> None:
    """Of estimators that say they take no tables, check_estimator asks less; the checks above are asked for by name."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    found = checks.check_estimator(FewShotClassifier("glyphs"), on_fail=None, on_skip=None)
    assert found
    assert {one["status"] for one in found} == {"passed"}


@pytest.mark.parametrize("name", "relation_net prototypical matching siamese deep_bdc covamnet nearest_prototype".split())
def test_rivals_answer_through_the_same_classifier(name: str) -> None:
    torch.manual_seed(0)
    method = method_class(name)(channels=1, input_size=28)
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=3, drawings=4)
    shown = [image for label in bank.names for image in bank.class_images(label)[:2]]
    labels = [label for label in bank.names for _ in range(2)]
    with pytest.raises(UntrainedError, match="has not been trained"):
        FewShotClassifier(method).fit(shown, labels)
    method.trained = True
    asked = torch.stack([bank.class_images(label)[3] for label in bank.names])
    classifier = FewShotClassifier(method).fit(shown, labels)
    support = torch.stack([bank.class_images(label)[:2] for label in bank.names]).unsqueeze(0)
    with torch.no_grad():
        expected = method.eval()(Episode(support, asked.unsqueeze(0)))[0]
    order = [bank.names.index(label) for label in classifier.classes_.tolist()]
    assert classifier.similarities(asked) == pytest.approx(expected[:, order].numpy(), abs=1e-5)


def test_saving_never_writes_among_other_files(drawings: list[np.ndarray], tmp_path: Path) -> None:
    classifier = FewShotClassifier("glyphs").fit(drawings[:2], [0, 1])
    run, photo = tmp_path / "run", tmp_path / "photo.png"
    run.mkdir()
    (run / "model.safetensors").write_bytes(b"weights of a run")
    photo.write_bytes(b"a photo")
    for place, message in ((run, "holds other files, such as 'model"), (photo, "is a file"), (tmp_path, "such as 'photo")):
        with pytest.raises(UsageError, match=message):
            classifier.save(place)
    assert (run / "model.safetensors").read_bytes() == b"weights of a run"
    assert photo.read_bytes() == b"a photo"
    for _ in range(2):
        classifier.save(tmp_path / "own")


def test_images_that_cannot_be_read_are_skipped_if_asked(folder: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"no image")
    files = sorted((folder / "support").glob("*/*.png"))
    labels = [file.parent.name for file in files]
    whole = FewShotClassifier("glyphs").fit(files, labels)
    with pytest.warns(SosnWarning, match=r"skipped 1 of 16 images, which cannot be read: .*torn\.png"):
        classifier = FewShotClassifier("glyphs").fit([torn, *files], [labels[0], *labels], errors="skip")
    assert classifier.shots_ == whole.shots_
    with pytest.raises(DataError, match="class 'new' has no image that can be read"):
        classifier.partial_fit([torn, files[0]], ["new", labels[0]], errors="skip")
    with pytest.raises(UsageError, match="choose 'raise' or 'skip'"):
        classifier.predict(files, errors="ignore")  # type: ignore[arg-type]
    queries = [files[0], torn, files[-1]]
    with pytest.warns(SosnWarning, match="skipped 1 of 3 images"):
        answers = classifier.answers(queries, errors="skip")
    assert [one and (one.answer, one.image) for one in answers] == [
        (labels[0], str(files[0])), None, (labels[-1], str(files[-1]))
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SosnWarning)
        assert classifier.predict(queries, errors="skip").tolist() == [labels[0], None, labels[-1]]
        assert classifier.predict([torn], reject=0.05, errors="skip").tolist() == [None]
        assert np.isnan(classifier.predict_proba(queries, errors="skip")).all(1).tolist() == [False, True, False]
        assert classifier.evaluate(queries, [labels[0]] * 3, errors="skip").images == 2
    with pytest.raises(DataError, match=r"torn\.png"):
        classifier.predict(queries)


def test_arrays_of_paths_are_paths_and_arrays_that_cannot_be_written_are_images(folder: Path) -> None:
    files = sorted((folder / "support").glob("*/*.png"))
    labels = [file.parent.name for file in files]
    paths = np.array([str(file) for file in files])
    expected = FewShotClassifier("glyphs").fit(files, labels).similarities(files)
    np.testing.assert_array_equal(FewShotClassifier("glyphs").fit(paths, labels).similarities(paths), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = [np.asarray(Image.open(file)) for file in files]
        assert not opened[0].flags.writeable
        np.testing.assert_array_equal(FewShotClassifier("glyphs").fit(opened, labels).similarities(opened), expected)
