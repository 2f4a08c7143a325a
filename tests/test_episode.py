"""What an episode holds, and what it refuses."""

import pytest
import torch
from torch import Tensor

import sosn
from sosn.episode import Episode
from sosn.errors import UsageError


def episode(labels: bool = True) -> Episode:
    """Three episodes of two classes with four shots, and five queries."""
    given = torch.arange(15).view(3, 5) % 2 if labels else None
    return Episode(torch.rand(3, 2, 4, 1, 8, 8), torch.rand(3, 5, 1, 8, 8), given)


def test_an_episode_knows_its_way_shot_and_queries() -> None:
    built = episode()
    assert (len(built), built.way, built.shot, built.queries) == (3, 2, 4, 5)


def test_an_episode_is_a_name_of_the_package() -> None:
    assert sosn.Episode is Episode


def test_labels_may_be_missing() -> None:
    assert episode(labels=False).labels is None
    assert episode(labels=False).one(1).labels is None
    assert episode(labels=False).to("cpu").labels is None


def test_one_episode_of_a_batch_is_a_batch_of_one() -> None:
    built = episode()
    alone = built.one(1)
    assert len(alone) == 1
    assert torch.equal(alone.support[0], built.support[1])
    assert torch.equal(alone.query[0], built.query[1])
    assert built.labels is not None
    assert alone.labels is not None
    assert torch.equal(alone.labels[0], built.labels[1])


def test_moving_an_episode_moves_all_of_it() -> None:
    moved = episode().to("meta")
    assert moved.labels is not None
    assert {moved.support.device.type, moved.query.device.type, moved.labels.device.type} == {"meta"}


def test_support_and_query_may_differ_in_size() -> None:
    assert Episode(torch.rand(1, 2, 1, 1, 28, 28), torch.rand(1, 3, 1, 40, 30)).queries == 3


SUPPORT, QUERY = torch.rand(2, 3, 1, 1, 8, 8), torch.rand(2, 4, 1, 8, 8)


@pytest.mark.parametrize(
    ("support", "query", "labels", "message"),
    [
        (SUPPORT[0], QUERY, None, "not 3×1×1×8×8 and 2×4×1×8×8: add the missing axes"),
        (SUPPORT, QUERY[0], None, "not 2×3×1×1×8×8 and 4×1×8×8"),
        (SUPPORT[:1], QUERY, None, "support has 1 episodes and query 2"),
        (SUPPORT.expand(-1, -1, -1, 3, -1, -1), QUERY, None, "support images have 3 channels, query images 1"),
        (SUPPORT[:, :0], QUERY, None, "cannot be empty"),
        (SUPPORT[:, :, :0], QUERY, None, "cannot be empty"),
        (SUPPORT, QUERY[:, :0], None, "cannot be empty"),
        (SUPPORT, QUERY, torch.zeros(2, 3, dtype=torch.long), "labels are 2×3"),
        (SUPPORT, QUERY, torch.zeros(4, dtype=torch.long), "labels are 4"),
        (SUPPORT, QUERY, torch.zeros((), dtype=torch.long), "labels are a scalar"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(support: Tensor, query: Tensor, labels: Tensor | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Episode(support, query, labels)


def test_arrays_and_floating_point_images_that_reach_255_are_refused() -> None:
    images = torch.rand(1, 2, 1, 1, 4, 4)
    with pytest.raises(UsageError, match="support is ndarray"):
        Episode(images.numpy(), images[:, 0])  # type: ignore[arg-type]
    for bad in (255 * images, images / 0):
        with pytest.raises(UsageError, match="lie between 0 and 1: divide by 255"):
            Episode(bad, images[:, 0])


def test_images_and_labels_of_other_types_or_out_of_range_are_refused() -> None:
    support, query = torch.rand(1, 2, 1, 1, 8, 8), torch.rand(1, 2, 1, 8, 8)
    with pytest.raises(UsageError, match=r"support images are torch\.int64"):
        Episode(support.long(), query)
    with pytest.raises(UsageError, match=r"labels are torch\.float32"):
        Episode(support, query, torch.zeros(1, 2))
    with pytest.raises(UsageError, match="labels run from 0 to 2"):
        Episode(support, query, torch.tensor([[0, 2]]))


def test_class_numbers_travel_with_the_episode() -> None:
    support, query = torch.rand(2, 3, 1, 1, 4, 4), torch.rand(2, 5, 1, 4, 4)
    episode = Episode(support, query, classes=torch.tensor([[7, 1, 4], [2, 0, 9]]))
    assert episode.one(1).classes is not None
    assert episode.one(1).classes.tolist() == [[2, 0, 9]]  # type: ignore[union-attr]
    assert episode.to("cpu").classes is episode.classes
    with pytest.raises(UsageError, match="classes are 2×2; 2×3×1×1×4×4 support images need E×L"):
        Episode(support, query, classes=torch.zeros(2, 2, dtype=torch.int64))
