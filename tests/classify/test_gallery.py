"""A gallery: classes are added and removed, the shortlist has the right ones, and a crash does no damage."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sosn
from sosn.checkpoint.storage import save_method
from sosn.classify.class_store import ClassStore
from sosn.classify.gallery import Gallery, Match, _directions
from sosn.classify.lance_sketches import LanceSketches
from sosn.classify.sketches import SIZE, Sketches, sketch
from sosn.data.bank import Bank
from sosn.errors import CheckpointError, DataError, UsageError
from sosn.evaluation.calibration import calibration_of
from sosn.method.nearest_prototype import NearestPrototype
from sosn.method.two_orders import SCALE


@pytest.fixture(scope="module")
def bank() -> Bank:
    """60 characters that the shipped model never saw, 3 drawings of each."""
    whole = sosn.open_bank("glyphs", "test", characters=6, drawings=3, seed=11)
    return whole.subset(whole.names[:60])


@pytest.fixture
def gallery(bank: Bank, tmp_path: Path) -> Gallery:
    """One drawing of each."""
    made = Gallery.create(tmp_path / "gallery", "glyphs")
    made.add_classes({name: bank.class_images(name)[:1] for name in bank.names})
    return made


@pytest.mark.slow
def test_scoring_all_classes_gives_the_answers_of_the_classifier(bank: Bank, gallery: Gallery) -> None:
    queries = [bank.class_images(name)[1] for name in bank.names[:6]]
    classifier = sosn.FewShotClassifier("glyphs").fit([bank.class_images(name)[0] for name in bank.names], bank.names)
    found = gallery.search(queries, top=60, shortlist=None)
    places = {label: place for place, label in enumerate(classifier.classes_)}
    scores = np.array([[{match.label: match.similarity for match in row}[label] for label in places] for row in found])
    np.testing.assert_allclose(scores, classifier.similarities(queries), atol=5e-3)  # descriptors are kept in half precision
    assert all(row[0].similarity >= row[1].similarity for row in found)


def test_matches_are_ranked_before_scores_are_squashed_to_one(
    bank: Bank, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [bank.class_images(name)[1] for name in bank.names[:3]]
    expected = [[match.label for match in row] for row in gallery.search(queries, top=3, shortlist=None)]
    known = gallery.method.compare
    monkeypatch.setattr(gallery.method, "compare", lambda support, query: known(support, query) + 60)
    found = gallery.search(queries, top=3, shortlist=None)
    assert {match.similarity for row in found for match in row} == {1.0}
    assert [[match.label for match in row] for row in found] == expected


@pytest.mark.slow
def test_the_shortlist_holds_the_right_class_and_answers_as_all_classes_do(bank: Bank, gallery: Gallery) -> None:
    names = bank.names[::3]
    queries = [bank.class_images(name)[1] for name in names]
    listed = gallery.shortlist(queries, 15)
    assert all(len(set(row)) == 15 for row in listed)
    assert np.mean([name in row for name, row in zip(names, listed, strict=True)]) > 0.9
    quick = [row[0].label for row in gallery.search(queries, top=1, shortlist=15)]
    whole = [row[0].label for row in gallery.search(queries, top=1, shortlist=None)]
    accuracy = [np.mean(np.array(answers) == np.array(names)) for answers in (quick, whole)]
    assert accuracy[0] > accuracy[1] - 0.05
    assert accuracy[1] > 0.6


def test_classes_are_added_and_removed_and_found_again_when_it_is_opened(bank: Bank, gallery: Gallery) -> None:
    gone, kept = bank.names[3], bank.names[4]
    query = bank.class_images(kept)[1]
    before = {match.label: match.similarity for match in gallery.search([query])[0]}
    gallery.remove(gone)
    assert gone not in gallery
    assert len(gallery) == 59
    other = Gallery(gallery.folder)
    assert other.labels == gallery.labels
    for one in (gallery, other):
        assert {match.label: match.similarity for match in one.search([query])[0]}[kept] == before[kept]
    gallery.add(gone, bank.class_images(gone)[:2])
    assert gallery.labels[-1] == gone
    assert gone in gallery.shortlist([bank.class_images(gone)[0]], 3)[0]
    assert Gallery(gallery.folder).labels == gallery.labels


def test_nothing_is_added_where_one_class_cannot_be(bank: Bank, gallery: Gallery) -> None:
    images = bank.images[:1]
    with pytest.raises(DataError, match="does not exist"):
        gallery.add_classes({"new": images, "torn": ["/nowhere.png"]})
    with pytest.raises(UsageError, match="is already in the gallery: remove it first"):
        gallery.add_classes({"new": images, bank.names[0]: images})
    assert "new" not in Gallery(gallery.folder)
    assert len(gallery) == 60


@pytest.mark.slow
def test_an_index_on_disk_gives_the_same_answers(bank: Bank, gallery: Gallery) -> None:
    pytest.importorskip("lancedb")
    queries = bank.images[1:3]
    expected = gallery.search(queries, shortlist=3)
    gallery.build_index()
    assert gallery.search(queries, shortlist=3) == Gallery(gallery.folder).search(queries, shortlist=3) == expected


def test_what_another_process_adds_and_removes_is_noticed(bank: Bank, gallery: Gallery) -> None:
    other = Gallery(gallery.folder)
    other.add("new", bank.images[:1])
    assert gallery.labels == other.labels
    assert gallery.search(bank.images[:1], shortlist=61) == other.search(bank.images[:1], shortlist=61)
    gallery.remove("new", bank.names[0])
    assert [row[0].label for row in other.search(bank.images[:1], shortlist=4)] != [bank.names[0]]
    with pytest.raises(UsageError, match="another process has just added the same class"):
        gallery._store.add([(bank.names[1], 1, b"", b"")])
    assert len(other) == 59


def test_a_crash_in_the_middle_of_a_write_leaves_the_classes_before(bank: Bank, gallery: Gallery) -> None:
    base = sqlite3.connect(gallery.folder / "classes.sqlite", isolation_level=None)
    base.execute("begin")
    base.execute("delete from classes")
    base.close()  # as a process that is killed: nothing was committed
    assert Gallery(gallery.folder).labels == list(bank.names)


def test_other_folders_and_wrong_arguments_are_refused(bank: Bank, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no gallery in"):
        Gallery(tmp_path)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        Gallery.create(tmp_path, "glyphs")
    empty = Gallery.create(tmp_path / "empty", "glyphs")
    with pytest.raises(DataError, match="is empty"):
        empty.search(bank.images[:1])
    with pytest.raises(DataError, match="there is no class 'x'"):
        empty.remove("x")
    with pytest.raises(UsageError, match="labels must be non-empty strings"):
        empty.add("", bank.images[:1])
    empty.add("x", bank.images[:1])
    with pytest.raises(UsageError, match="1 or more"):
        empty.search(bank.images[:1], top=0)
    (tmp_path / "empty" / "classes.sqlite").write_bytes(b"no database, but long enough to be taken for one" * 50)
    with pytest.raises(CheckpointError, match="cannot be used"):
        Gallery(tmp_path / "empty")


def test_directions_keep_the_inner_products_of_whole_matrices() -> None:
    matrices = torch.rand(4, 2, 1, 8, 8)
    matrices = matrices + matrices.mT
    whole = torch.nn.functional.normalize(matrices[:, 0].flatten(1), dim=1)
    directions = _directions(matrices, symmetric=True)
    torch.testing.assert_close(directions @ directions.T, whole @ whole.T)


def test_directions_of_other_descriptions_are_these_at_length_1() -> None:
    described = torch.rand(4, 3, 5)
    lengths = described.square().sum((1, 2)).sqrt()
    torch.testing.assert_close(_directions(described, symmetric=False), described.flatten(1) / lengths.unsqueeze(1))


def test_sketches_keep_distances() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(30, 2000) + 2, dim=1)  # with a large common part
    ratios = torch.pdist(sketch(vectors)) / torch.pdist(vectors)
    assert float((ratios - 1).abs().max()) < 5 / (2 * SIZE) ** 0.5
    assert torch.equal(sketch(vectors[:, :12]), vectors[:, :12])


@pytest.mark.parametrize("kind", ["memory", pytest.param("disk", marks=pytest.mark.slow)])
def test_the_nearest_sketches_are_found_after_rows_came_and_went(kind: str, tmp_path: Path) -> None:
    vectors = torch.randn(30, 16).half()
    store = ClassStore(tmp_path / "classes.sqlite", create=True)
    rows = [(str(number), 1, b"", row.numpy().tobytes()) for number, row in enumerate(vectors)]
    store.add(rows[:20])
    index: Sketches | LanceSketches = Sketches(store)
    if kind == "disk":
        pytest.importorskip("lancedb")
        index = LanceSketches.build(store, tmp_path / "index")
    index.refresh()
    store.add(rows[20:])
    store.remove(["29", "7", "0"])
    store.add(rows[7:8])  # under a new id
    order = [*range(1, 7), *range(8, 29), 7]
    queries = torch.randn(5, 16)
    expected = torch.cdist(queries, vectors[order].float()).argsort(dim=1)[:, :6]
    opened = Sketches(store) if kind == "memory" else LanceSketches(store, tmp_path / "index")
    for one in (index, opened):
        one.refresh()
        assert one.nearest(queries, 6) == [[one.ids[place] for place in row] for row in expected]
    assert store.labels() == [str(number) for number in order]


def test_a_gallery_of_an_earlier_version_opens_and_answers_the_same(bank: Bank, gallery: Gallery) -> None:
    queries = bank.images[1:4]
    expected = gallery.search(queries, shortlist=5)
    with sqlite3.connect(gallery.folder / "classes.sqlite") as base:
        base.executescript("drop trigger removed; drop table sketches; drop table settings")
    (gallery.folder / "calibration.json").unlink()
    old = Gallery(gallery.folder)
    assert old.labels == list(bank.names)
    assert old.search(queries, shortlist=5) == [[Match(one.label, one.similarity) for one in row] for row in expected]
    with pytest.raises(UsageError, match="reject needs a calibrated model"):
        old.search(queries, reject=0.05)


def test_probabilities_and_none_of_these(bank: Bank, gallery: Gallery) -> None:
    names = bank.names[:8]
    queries = [bank.class_images(name)[1] for name in names]
    found = gallery.search(queries, top=50)
    for row in found:
        assert sum(one.probability or 0 for one in row) == pytest.approx(1, abs=1e-4)
    several = Gallery.create(gallery.folder.parent / "several", "glyphs")
    several.add_classes({name: bank.class_images(name)[:1] for name in names[:4]})
    known, unknown = (several.search(part, reject=0.1) for part in (queries[:4], queries[4:]))
    assert all(known)
    assert unknown.count([]) >= 3
    with pytest.raises(UsageError, match=r"from 0.01 to 0.5"):
        several.search(queries, reject=0.9)


def test_the_model_is_chosen_from_the_first_images(bank: Bank, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "gallery")
    with pytest.raises(DataError, match="is empty"):
        gallery.search(bank.images[:1])
    other = Gallery(tmp_path / "gallery")
    gallery.add("one", bank.images[:2])
    assert gallery.model == "omniglot"
    assert other.search(bank.images[:1]) == gallery.search(bank.images[:1])


def test_flat_descriptors_are_compared_as_their_method_does(bank: Bank, tmp_path: Path) -> None:
    method = NearestPrototype.of(sosn.load("glyphs"), representation="map", metric="cosine")
    save_method(tmp_path / "model.safetensors", method)
    gallery = Gallery.create(tmp_path / "gallery", tmp_path / "model.safetensors")
    gallery.add_classes({name: bank.class_images(name)[:2] for name in bank.names[:30]})
    quick, every = (gallery.search(bank.images[2:12], top=1, shortlist=size) for size in (2, None))
    assert [row[0].label for row in quick] == [row[0].label for row in every]
    assert quick[0][0].probability is None


def test_a_folder_is_added_in_parts_and_again_after_an_interruption(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(bank.names[:4]):
        (tmp_path / "classes" / str(number)).mkdir(parents=True)
        for place, image in enumerate(bank.class_images(name)):
            Image.fromarray(image[0].numpy()).save(tmp_path / "classes" / str(number) / f"{place}.png")
    (tmp_path / "classes" / "1" / "0.png").write_bytes(b"torn")
    monkeypatch.setattr("sosn.classify.gallery.TRANSACTION", 6)
    gallery = Gallery.create(tmp_path / "gallery", "glyphs")

    def interrupt(done: int, total: int) -> None:
        assert (done, total) == (6, 12)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gallery.add_folder(tmp_path / "classes", interrupt)
    assert gallery.labels == ["0", "1"]
    added = gallery.add_folder(tmp_path / "classes")
    assert (added.classes, added.known, added.errors) == (2, ["0", "1"], [])
    gallery.remove("1")
    (error,) = gallery.add_folder(tmp_path / "classes").errors
    assert "0.png" in error
    found = gallery.search([bank.class_images(name)[2] for name in bank.names[:4]], top=1)
    assert [row[0].label for row in found] == ["0", "1", "2", "3"]


def test_a_gallery_of_photos_rejects_by_the_similarity_to_one_class(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    photos = [source.integers(0, 256, (side, side, 3), dtype=np.uint8) for side in (4, 64, 5, 7, 90)]
    photos.append(np.zeros((32, 32, 3), np.uint8))
    gallery = Gallery.create(tmp_path / "gallery", "photos")
    gallery.add_classes({"coarse": [photos[0]], "fine": [photos[1]]})
    best = [matches[0] for matches in gallery.search(photos, top=1)]
    calibration = calibration_of("photos")
    assert calibration is not None
    known = [SCALE * one.similarity >= calibration.threshold(1, 1, 0.5) for one in best]
    assert set(known) == {True, False}
    found = gallery.search(photos, top=1, reject=0.5)
    assert [bool(matches) for matches in found] == known
