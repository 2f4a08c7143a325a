"""A gallery: classes are added and removed, the shortlist has the right ones, and a crash does no damage."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import sosn
from sosn.classify.gallery import Gallery, _directions, _Exact, _Faiss
from sosn.data.bank import Bank
from sosn.errors import CheckpointError, DataError, UsageError


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
    before = gallery.search([query])
    gallery.remove(gone)
    assert gone not in gallery
    assert len(gallery) == 59
    other = Gallery(gallery.folder)
    assert other.labels == gallery.labels
    for one in (gallery, other):
        assert [match for match in one.search([query])[0] if match.label == kept] == [
            match for match in before[0] if match.label == kept
        ]
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


def test_another_process_with_the_same_class_is_noticed(bank: Bank, gallery: Gallery) -> None:
    other = Gallery(gallery.folder)
    other.add("new", bank.images[:1])
    with pytest.raises(UsageError, match="another process"):
        gallery.add("new", bank.images[:1])
    assert "new" not in gallery


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


@pytest.mark.parametrize("kind", [_Exact, _Faiss])
def test_an_index_finds_the_largest_products_after_rows_came_and_went(kind: Callable[[Tensor], "_Exact | _Faiss"]) -> None:
    if kind is _Faiss:
        pytest.importorskip("faiss")
    vectors = torch.nn.functional.normalize(torch.randn(30, 12), dim=1)
    index = kind(vectors[:20])
    index.add(vectors[20:])
    index.remove(7)
    index.remove(0)
    left = vectors[[row for row in range(30) if row not in (0, 7)]]
    queries = torch.randn(5, 12)
    expected = (queries @ left.T).argsort(dim=1, descending=True)[:, :6]
    assert torch.equal(index.nearest(queries, 6), expected)
