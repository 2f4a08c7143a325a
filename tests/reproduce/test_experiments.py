"""Ranks of matrices and repeated textures, against hand computations."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.evaluation.protocol import draw_indices
from sosn.method import PrototypicalNet, SoSN
from sosn.power_norm import asinhe, sigme
from sosn.reproduce import burstiness as bursts
from sosn.reproduce.burstiness import burstiness, moved, repeat_patch, repeat_vector, replace_square, tile
from sosn.reproduce.ranks import effective_rank, rank, ranks
from sosn.second_order import autocorrelation, trace_normalise


@pytest.fixture
def bank() -> Bank:
    random = torch.Generator().manual_seed(1)
    images = torch.randint(256, (6 * 8, 1, 28, 28), dtype=torch.uint8, generator=random)
    return Bank(images, torch.arange(6).repeat_interleave(8), tuple("abcdef"))


def test_ranks_count_eigenvalues_and_weigh_them() -> None:
    matrices = torch.stack((torch.diag(torch.tensor([1.0, 1, 1, 1])), torch.diag(torch.tensor([2.0, 2, 0, 1e-9]))))
    assert rank(matrices).tolist() == [4, 2]
    assert effective_rank(matrices).tolist() == pytest.approx([4.0, 2.0], rel=1e-6)
    uneven = torch.diag(torch.tensor([3.0, 1, 0, 0]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(uneven).item() == pytest.approx(math.exp(entropy))
    assert (rank(torch.zeros(3, 3)).item(), effective_rank(torch.zeros(3, 3)).item()) == (0, 0)


def test_a_matrix_of_n_vectors_has_at_most_rank_n_and_larger_images_have_more(bank: Bank) -> None:
    method = SoSN(channels=1, input_size=28)
    found = ranks(method, bank, (12, 20, 28, 56), 10, seed=0)
    assert [one["vectors"] for one in found] == [1, 9, 25, 144]
    numbers = [one["rank"] for one in found]
    assert numbers[:2] == [1, 9]
    assert numbers == sorted(numbers)
    assert numbers[2] <= 25
    assert numbers[3] > 25
    assert found[0]["effective_rank"] == pytest.approx(1)
    assert all(one["effective_rank"] < one["rank"] + 1e-6 for one in found)
    assert [one["trained"] for one in found] == [False, False, True, False]
    assert method.preprocessing.size == 28
    again = ranks(SoSN(channels=1, input_size=28, power_norm="none"), bank, (28,), 10, seed=0)
    assert again[0]["rank"] == again[0]["normalised_rank"]
    with pytest.raises(UsageError, match="ranks need a method with second-order matrices, such as SoSN, not 'prototypical'"):
        ranks(PrototypicalNet(channels=1, input_size=28), bank, (28,), 2, 0)


def test_ranks_are_those_of_the_plain_and_of_the_normalised_matrices_in_evaluation(bank: Bank) -> None:
    torch.manual_seed(0)
    method = SoSN(channels=1, input_size=28, encoder={"width": 46}, eta=50.0)
    with torch.no_grad():
        maps = method.eval().encode(bank.images).double()
    plain = trace_normalise(autocorrelation(maps))
    found = ranks(method.train(), bank, (28,), len(bank), seed=0)[0]
    assert found["rank"] == pytest.approx(rank(plain).double().mean().item())
    assert found["effective_rank"] == pytest.approx(effective_rank(plain).mean().item(), rel=1e-4)
    wanted = effective_rank(sigme(plain, 50.0)).mean().item()
    assert found["normalised_effective_rank"] == pytest.approx(wanted, rel=1e-4)
    assert abs(wanted - found["effective_rank"]) > 0.1
    other = SoSN(channels=1, input_size=28, encoder={"width": 46}, power_norm="asinhe", gamma=3.0, trace_normalise=False)
    other.load_state_dict(method.state_dict())
    wanted = effective_rank(asinhe(autocorrelation(maps), 3.0)).mean().item()
    assert ranks(other, bank, (28,), len(bank), seed=0)[0]["normalised_effective_rank"] == pytest.approx(wanted, rel=1e-4)


def test_the_share_of_full_rank_is_that_of_matrices_without_a_zero_eigenvalue(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = SoSN(channels=1, input_size=28)
    monkeypatch.setattr(method, "encode", lambda images: torch.stack(3 * [torch.eye(64)] + [torch.ones(64, 64)]))
    found = ranks(method, bank, (28,), 4, seed=0)[0]
    assert (found["rank"], found["full_rank"]) == ((3 * 64 + 1) / 4, 0.75)


def _square(before: Tensor, after: Tensor) -> tuple[slice, slice]:
    """The smallest rectangle that holds all differences."""
    rows, columns = (before != after).any(0).nonzero().unbind(1)
    return slice(int(rows.min()), int(rows.max()) + 1), slice(int(columns.min()), int(columns.max()) + 1)


def test_a_patch_is_repeated_in_a_square_and_the_control_replaces_the_same_one() -> None:
    images = torch.arange(2 * 28 * 28).view(2, 1, 28, 28).float()  # every pixel is its own
    for times in (2, 3):
        repeated = repeat_patch(images, times, torch.Generator().manual_seed(times))
        replaced = replace_square(images, times, torch.Generator().manual_seed(times))
        for before, after, control, another in zip(images, repeated, replaced, images.flip(0), strict=True):
            place = _square(before, control)
            inside = control[0][place]
            assert inside.shape == (7 * times, 7 * times)
            assert torch.equal(inside, another[0][place])
            outside = torch.ones(28, 28, dtype=torch.bool)
            outside[place] = False
            assert torch.equal(after[0][outside], before[0][outside])
            patch = after[0][place][:7, :7]
            assert torch.equal(after[0][place], patch.repeat(times, times))
            top = int(patch[0, 0]) - int(before.min())
            row, column = divmod(top, 28)
            assert torch.equal(patch, before[0, row : row + 7, column : column + 7])


def test_tiling_shows_the_whole_image_four_times() -> None:
    images = torch.zeros(1, 3, 28, 28, dtype=torch.uint8)
    images[..., :14, :] = 255
    tiled = tile(images, 2)
    assert tiled.shape == images.shape
    assert torch.equal(tiled[..., :14, :14], tiled[..., 14:, 14:])
    assert tiled[0, 0, :5, :].min() == 1
    assert tiled[0, 0, 9:14, :].max() == 0


def test_copies_of_a_vector_are_the_share_that_was_asked_for() -> None:
    maps = torch.rand(3, 4, 9)
    more = repeat_vector(maps, 0.25, torch.Generator().manual_seed(0))
    assert more.shape == (3, 4, 12)
    assert torch.equal(more[..., :9], maps)
    assert all(bool((one[:, :9] == one[:, 9:10]).all(0).any()) for one in more)
    assert torch.equal(more[..., 9], more[..., 11])


@pytest.mark.slow
def test_burstiness_measures_how_far_descriptors_move_with_the_norm_and_without(bank: Bank) -> None:
    torch.manual_seed(3)
    with_norm, without = (SoSN(channels=1, input_size=28, power_norm=norm) for norm in ("sigme", "none"))
    without.load_state_dict(with_norm.state_dict())
    found, plain = ({one["change"]: one for one in burstiness(m, bank, 5, 1, 2, 4, 0)} for m in (with_norm, without))
    for change, one in found.items():
        assert one["unnormalised"] == pytest.approx(plain[change]["unnormalised"])
        assert plain[change]["descriptor"] == pytest.approx(plain[change]["unnormalised"], rel=1e-5)
        assert 0 <= one["answers"] <= 1
        assert one["score"] > 0
        assert one["descriptor_ci95"] > 0
    assert found["one feature vector, 25% of all"]["descriptor"] < found["one feature vector, 50% of all"]["descriptor"]
    with pytest.raises(UsageError, match="not 'prototypical'"):
        burstiness(PrototypicalNet(channels=1, input_size=28), bank, 5, 1, 2, 4, 0)


def _tiny() -> SoSN:
    torch.manual_seed(3)
    return SoSN(channels=1, input_size=28, encoder={"width": 46})


@pytest.mark.slow
def test_burstiness_is_that_of_scores_in_evaluation_in_units_of_their_deviation(bank: Bank) -> None:
    method = _tiny().eval()
    sampler = EpisodeSampler(bank, 5, 1, 2)
    episode = sampler.episode(*draw_indices(sampler, 12, 0))
    support, query = episode.support.float() / 255, tile(episode.query.flatten(0, 1), 2).view(episode.query.shape)
    with torch.no_grad():
        before, after = method(episode).double(), method(Episode(support, query)).double()
    found = {one["change"]: one for one in burstiness(_tiny().train(), bank, 5, 1, 2, 12, 0)}["tiled 2×2"]
    truth = torch.arange(5).repeat_interleave(2)
    right, still = ((scores.argmax(-1) == truth).double().mean().item() for scores in (before, after))
    assert found["score"] == pytest.approx(((after - before).abs().mean() / before.std()).item(), rel=1e-3)
    assert found["answers"] == pytest.approx((after.argmax(-1) != before.argmax(-1)).double().mean().item())
    assert found["accuracy"] == pytest.approx(still)
    assert found["lost"] == pytest.approx(right - still)


@pytest.mark.slow
def test_a_patch_and_its_control_share_their_places_and_others_have_their_own(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: dict[str, list[list[int]]] = {}

    def watched(name: str) -> bursts.Change:
        def change(images: Tensor, random: torch.Generator) -> Tensor:
            places.setdefault(name, []).append(torch.randint(1000, (8,), generator=random).tolist())
            return images

        return change

    monkeypatch.setattr(bursts, "IMAGE_CHANGES", {name: watched(name) for name in bursts.IMAGE_CHANGES})
    monkeypatch.setattr(bursts, "AT_ONCE", 2)
    for seed in (0, 1):
        burstiness(_tiny(), bank, 5, 1, 2, 4, seed)
    assert places["patch 2×2"] == places["replaced 2×2"]
    assert places["patch 3×3"] == places["replaced 3×3"]
    every = [place for name in ("patch 2×2", "patch 3×3") for place in places[name]]
    assert len({tuple(place) for place in every}) == 8  # two seeds of two batches of each


def test_figures_of_a_change_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two episodes of two queries. In the first the queries change places, and both answers are wrong after it."""
    one, other = 2 * torch.eye(2), torch.diag(torch.tensor([1.0, 0]))
    maps, changed = torch.stack((one, other, one, other)), torch.stack((other, one, one, other))
    before = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.6], [0.5, 0.7]]])
    after = torch.tensor([[[0.4, 0.5], [0.7, 0.6]], [[0.3, 0.4], [0.5, 0.9]]])
    monkeypatch.setattr(bursts, "_scores", lambda method, support, these: after if these is changed else None)
    method: Any = SimpleNamespace(second_order=SimpleNamespace(describe_query=lambda these: these, shift=0.0))
    found = bursts._figures(cast(SoSN, method), torch.empty(0), torch.tensor([0, 1]), maps, changed, before)
    root = math.sqrt
    wanted = {
        "descriptor": [(root(5 / 8) + root(5)) / 2, 0],  # ‖(1, 2)‖ beside ‖(2, 2)‖ and ‖(1, 0)‖
        "descriptor_share": [1, 0],
        "unnormalised": [(1 + root(1 / 2)) / 2, 0],  # from (½, ½) to (1, 0), and back
        "unnormalised_share": [1, 0],
        "score": [(0.5 + 0.4 + 0.5 + 0.2) / 4, (0.2 + 0.2) / 4],
        "answers": [1, 0],
        "accuracy": [0, 0.5],
        "lost": [1, 0],
    }
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert found[name].tolist() == pytest.approx(values, rel=1e-4), name


def test_a_repeated_vector_moves_the_plain_matrix_and_leaves_a_saturated_one() -> None:
    """Of two orthogonal vectors one is repeated until it is three of four: diag(½, ½) becomes diag(¾, ¼) or diag(¼, ¾)."""
    maps = torch.eye(2).repeat(4, 1, 1)  # four queries, K = N = 2
    more = repeat_vector(maps, 0.5, torch.Generator().manual_seed(0))
    relative, _ = moved(maps, more, autocorrelation, episodes=2)
    assert relative.tolist() == pytest.approx([0.5, 0.5])  # ‖(¼, −¼)‖ / ‖(½, ½)‖
    relative, _ = moved(maps, more, lambda one: sigme(autocorrelation(one), 100.0), episodes=2)
    assert relative.tolist() == pytest.approx([0.0, 0.0], abs=1e-4)


def test_a_change_is_held_against_the_distance_to_another_query() -> None:
    """ψ = (0, 0, 3, 3) of four queries; all move by 1, and the query two places on is 3 away."""
    maps = torch.tensor([0.0, 0, 3, 3]).view(4, 1, 1)
    _, share = moved(maps, maps + 1, lambda one: one, episodes=1)
    assert share.item() == pytest.approx(1 / 3)
