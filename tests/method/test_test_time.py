"""Test-time augmentation: copies of an image that evaluation looks at besides the image itself."""

import math
from itertools import product

import pytest
import torch

import sosn
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.evaluation.protocol import evaluate, evaluating
from sosn.method import METHODS, NearestPrototype, SoSN
from sosn.method.test_time import TestTimeAugmentation, scaled, turned
from sosn.util.warping import seen_through
from tests.method.test_contract import ready
from tests.method.test_rivals import episode

EVERYTHING = TestTimeAugmentation(mirror=True, scales=1, turns=1)


def window(*rows: tuple[float, float]) -> torch.Tensor:
    return torch.tensor([[[*row, 0.0] for row in rows]])


def test_a_window_that_is_turned_by_a_right_angle_turns_the_image() -> None:
    images = torch.rand(2, 3, 8, 8)
    turned = seen_through(images, window((0, 1), (-1, 0)))
    torch.testing.assert_close(turned, images.rot90(-1, (-2, -1)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.7, 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scaled_copy_has_the_given_share_of_each_side(share: float, dtype: torch.dtype) -> None:
    """Of an image that is x − 2y, also one that is not square, in the middle, where nothing is beyond the border."""
    x, y = ((torch.arange(count) + 0.5) * 2 / count - 1 for count in (24, 16))
    image = (x - 2 * y.unsqueeze(1)).expand(1, 1, 16, 24)
    found = scaled(image.to(dtype), share)
    assert found.dtype == dtype
    middle = (slice(None), slice(None), slice(4, 12), slice(6, 18))
    tolerance = 1e-5 if dtype == torch.float32 else 0.02  # half a unit of the last place of values up to 3
    torch.testing.assert_close(found.float()[middle], share * image[middle], atol=tolerance, rtol=0)


def test_beyond_an_image_its_border_goes_on() -> None:
    image = torch.arange(36.0).view(1, 1, 6, 6)
    copy = scaled(image, 2.0)
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        assert copy[0, 0, row, column] == image[0, 0, row, column]
    torch.testing.assert_close(copy[0, 0, 0, 2:4], image[0, 0, 0, 2:4] + torch.tensor([-0.5, 0.5]))


def test_copies_go_by_equal_steps_to_either_side_of_the_image_and_of_its_mirror_image() -> None:
    images = torch.rand(2, 1, 12, 9, dtype=torch.float64)
    found = list(TestTimeAugmentation(mirror=True, scales=2, turns=2).copies(images))
    assert len(found) == 18
    for copies, side in ((found[:9], images), (found[9:], images.flip(-1))):
        expected = [side, *(scaled(side, math.exp(sign * 0.15 * step)) for step in (1, 2) for sign in (1, -1))]
        expected += [turned(side, sign * 6 * step) for step in (1, 2) for sign in (1, -1)]
        for copy, one in zip(copies, expected, strict=True):
            torch.testing.assert_close(copy, one)
    assert [one is images for one in TestTimeAugmentation().copies(images)] == [True]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("degrees", [12.0, -30.0])
def test_a_copy_is_turned_anticlockwise_by_the_given_angle(degrees: float, dtype: torch.dtype, tolerance: float) -> None:
    """Of an image that is x − 2y in pixels, also one that is not square, in the middle, where nothing is beyond the border."""
    x, y = torch.arange(24, dtype=dtype) - 11.5, torch.arange(16, dtype=dtype).unsqueeze(1) - 7.5
    found = turned((x - 2 * y).expand(1, 1, 16, 24), degrees)
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    from_x, from_y = cosine * x - sine * y, sine * x + cosine * y  # rows go down
    middle = (slice(4, 12), slice(8, 16))
    torch.testing.assert_close(found[0, 0][middle], (from_x - 2 * from_y)[middle], atol=tolerance, rtol=0)


def test_a_copy_turned_by_a_right_angle_is_the_turned_image() -> None:
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(turned(images, 90), images.rot90(1, (-2, -1)), atol=1e-5, rtol=0)


# --- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_it_in_evaluation_alone(name: str) -> None:
    method, plain, tasks = ready(name, test_time=vars(EVERYTHING)), ready(name), episode(2)
    plain.load_state_dict(method.state_dict())
    with torch.no_grad():
        scores, without = method(tasks), plain(tasks)
        assert scores.shape == (2, 4, 3)
        assert scores.isfinite().all()
        assert (scores - without).abs().max() > 1e-6
        assert torch.equal(method.train()(tasks), plain.train()(tasks))
        batch = method.eval()(tasks, statistics="batch")
    assert batch.shape == (2, 4, 3)
    assert batch.isfinite().all()


@pytest.mark.parametrize("name", METHODS)
def test_none_of_it_changes_nothing(name: str) -> None:
    plain, tasks = ready(name), episode(2)
    for nothing in (None, {}, TestTimeAugmentation(), {"mirror": False, "scales": 0}):
        method = ready(name, test_time=nothing)
        assert not method.test_time
        method.load_state_dict(plain.state_dict())
        with torch.no_grad():
            assert torch.equal(method(tasks), plain(tasks))


@pytest.mark.parametrize("name", METHODS)
def test_an_image_and_its_mirror_image_score_the_same_with_mirror(name: str) -> None:
    method, tasks = ready(name, test_time={"mirror": True}), episode(2)
    with torch.no_grad():
        scores = method(tasks)
        both = method(Episode(tasks.support.flip(-1), tasks.query.flip(-1)))
        one = method(Episode(tasks.support, tasks.query.flip(-1)))
    torch.testing.assert_close(both, scores, rtol=0, atol=1e-6)
    if method.describes_images:  # others learn each copy of a task from copies of its support images
        torch.testing.assert_close(one, scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["maml", "meta_lstm"])
def test_methods_of_whole_episodes_average_the_logits_of_copies_of_the_episode(name: str) -> None:
    method, plain, tasks = ready(name, test_time=vars(EVERYTHING)), ready(name), episode(2)
    plain.load_state_dict(method.state_dict())
    sides = [EVERYTHING.copies(images.flatten(0, -4)) for images in (tasks.support, tasks.query)]
    with torch.no_grad():
        each = [
            plain.logits(Episode(support.view(tasks.support.shape), query.view(tasks.query.shape)))
            for support, query in zip(*sides, strict=True)
        ]
        assert len(each) == 2 * (1 + 2 + 2)
        torch.testing.assert_close(method.logits(tasks), sum(each) / 10)


def test_maps_of_a_prototypical_net_are_the_means_over_copies() -> None:
    method, plain, tasks = ready("prototypical", test_time={"scales": 1}), ready("prototypical"), episode(2)
    plain.load_state_dict(method.state_dict())

    def vectors(images: torch.Tensor) -> torch.Tensor:
        copies = (images, scaled(images, math.exp(0.15)), scaled(images, math.exp(-0.15)))
        return sum(plain.encode(copy).flatten(1) for copy in copies) / 3  # type: ignore[return-value]

    with torch.no_grad():
        logits = method.logits(tasks)
        for e, q, c in product(range(2), range(4), range(3)):
            distance = vectors(tasks.query[e, q][None])[0] - vectors(tasks.support[e, c]).mean(0)
            assert logits[e, q, c].item() == pytest.approx(-distance.square().sum().item(), rel=1e-9)


def test_feature_vectors_of_sosn_are_those_of_all_copies_side_by_side() -> None:
    method, plain, tasks = ready("sosn", test_time={"turns": 1}, eta=20.0), ready("sosn", eta=20.0), episode(2)
    plain.load_state_dict(method.state_dict())
    assert isinstance(method, SoSN)

    def matrix(images: torch.Tensor) -> torch.Tensor:
        """SigmE of the trace-normalised autocorrelation of the vectors of all copies, averaged over shots."""
        maps = [plain.encode(copy).mean(0) for copy in (images, turned(images, 6.0), turned(images, -6.0))]
        phi = torch.cat(maps, 1)
        assert phi.shape == (46, 3 * 25)
        m = phi @ phi.T / phi.shape[1]
        return torch.tanh(10.0 * m / (m.trace() + 1e-6))

    with torch.no_grad():
        logits = method.logits(tasks)
        for e, q, c in product(range(2), range(2), range(3)):
            pair = torch.stack((matrix(tasks.support[e, c]), matrix(tasks.query[e, q][None])))
            assert logits[e, q, c].item() == pytest.approx(method.similarity(pair[None, None]).item(), abs=1e-9)


def test_a_nearest_prototype_depends_on_positions_only_for_maps() -> None:
    images = episode().query.flatten(0, 1)
    for representation, vectors in (("second_order", 50), ("mean", 50), ("map", 25)):
        method = ready("nearest_prototype", representation=representation, test_time={"mirror": True})
        assert isinstance(method, NearestPrototype)
        with torch.no_grad():
            assert method.encode(images).shape == (8, 6, vectors)


def test_uint8_images_are_changed_as_their_floats() -> None:
    method, tasks = ready("maml", test_time={"turns": 1}), episode()
    bytes_ = Episode(*((images * 255).to(torch.uint8) for images in (tasks.support, tasks.query)))
    floats = Episode(bytes_.support.double() / 255, bytes_.query.double() / 255)
    with torch.no_grad():
        torch.testing.assert_close(method(bytes_), method(floats), rtol=0, atol=1e-5)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_an_evaluation_with_another_one_leaves_the_method_as_it_was() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=4, drawings=4)
    method, augmentation = sosn.load("glyphs"), TestTimeAugmentation(scales=1)
    method.use_test_time(augmentation)
    changed = type(method)(**method.config | {"test_time": EVERYTHING})
    changed.load_state_dict(method.state_dict())
    sizes = {"way": 3, "query": 2, "episodes": 6}
    found = evaluate(method.train(), bank, **sizes, test_time=EVERYTHING)  # type: ignore[arg-type]
    assert found == evaluate(changed, bank, **sizes)  # type: ignore[arg-type]
    assert method.test_time is augmentation
    assert method.training
    with evaluating(method, {"turns": 2}):
        assert method.test_time == TestTimeAugmentation(turns=2)
    assert method.test_time is augmentation


def test_an_invalid_augmentation_is_refused_and_changes_nothing() -> None:
    method = ready("sosn", eta=None)
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=4, drawings=4)
    for wanted, message in (({"mirror": True}, "set eta"), ({"scales": 9}, "scales is 9; it must be a whole number")):
        with pytest.raises(UsageError, match=message):
            evaluate(method.train(), bank, 3, 1, 2, 4, test_time=wanted)
        assert not method.test_time
        assert method.training


def test_a_refused_one_leaves_the_one_before_in_place() -> None:
    method = ready("prototypical", preprocessing={"mean_image": True})
    with pytest.raises(UsageError, match="leave mean_image out"):
        method.use_test_time({"mirror": True})
    assert not method.test_time
