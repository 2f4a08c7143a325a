"""Episodes are fair, repeatable, and never show the same thing on both sides."""

import re
from itertools import combinations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.errors import DataError, UsageError

UNEQUAL = (4, 9, 5, 7, 4, 12, 6)


def bank_of(counts: tuple[int, ...], groups: Tensor | None = None) -> Bank:
    """A bank with so many images in each class; an image's two pixels are its class and its row."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.stack((labels, torch.arange(len(labels))), -1).to(torch.uint8).view(-1, 1, 1, 2)
    return Bank(images, labels, tuple(f"class{n}" for n in range(len(counts))), groups)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_equally_often(drawn: Tensor, choices: int) -> None:
    """Hold the frequencies of 0…choices−1 against the 99.9% point of the chi-square distribution."""
    observed = torch.bincount(drawn.flatten(), minlength=choices).double()
    expected = observed.sum() / choices
    statistic = ((observed - expected) ** 2 / expected).sum().item()
    assert statistic < stats.chi2.ppf(0.999, choices - 1), observed.tolist()


def test_an_episode_has_the_requested_shape() -> None:
    episode = EpisodeSampler(bank_of(UNEQUAL), way=5, shot=2, query=2).draw(3, generator())
    assert episode.support.shape == (3, 5, 2, 1, 1, 2)
    assert episode.query.shape == (3, 10, 1, 1, 2)
    assert episode.labels is not None
    assert episode.labels.shape == (3, 10)
    assert episode.support.dtype == torch.uint8


def test_no_image_stands_twice_in_an_episode() -> None:
    support, query = EpisodeSampler(bank_of(UNEQUAL), way=5, shot=2, query=2).indices(2000, generator())
    rows = torch.cat((support.flatten(1), query), 1).sort(1).values
    assert (rows[:, 1:] != rows[:, :-1]).all()


def test_the_classes_of_an_episode_are_distinct_and_each_shot_is_of_its_class() -> None:
    bank = bank_of(UNEQUAL)
    support, _ = EpisodeSampler(bank, way=5, shot=3, query=1).indices(2000, generator())
    classes = bank.labels[support]  # (E, L, Z)
    assert (classes == classes[:, :, :1]).all()
    ordered = classes[:, :, 0].sort(1).values
    assert (ordered[:, 1:] != ordered[:, :-1]).all()


def test_the_label_of_each_query_is_the_position_of_its_class() -> None:
    episode = EpisodeSampler(bank_of(UNEQUAL), way=5, shot=2, query=2).draw(500, generator())
    support_class = episode.support[:, :, 0, 0, 0, 0]  # (E, L)
    query_class = episode.query[:, :, 0, 0, 0]  # (E, Q)
    assert episode.labels is not None
    assert support_class.gather(1, episode.labels).equal(query_class)


def test_every_class_has_the_requested_number_of_queries() -> None:
    episode = EpisodeSampler(bank_of(UNEQUAL), way=4, shot=1, query=3).draw(50, generator())
    assert episode.labels is not None
    counts = torch.nn.functional.one_hot(episode.labels, 4).sum(1)
    assert (counts == 3).all()


def test_every_class_is_drawn_equally_often_whatever_its_size() -> None:
    bank = bank_of(UNEQUAL)
    support, _ = EpisodeSampler(bank, way=3, shot=1, query=3).indices(7000, generator())
    assert_equally_often(bank.labels[support], len(UNEQUAL))


def test_every_place_in_an_episode_gets_every_class_equally_often() -> None:
    bank = bank_of(UNEQUAL)
    support, _ = EpisodeSampler(bank, way=3, shot=1, query=3).indices(7000, generator(1))
    for place in range(3):
        assert_equally_often(bank.labels[support[:, place]], len(UNEQUAL))


def test_every_image_of_a_class_is_drawn_equally_often_on_either_side() -> None:
    bank = bank_of(UNEQUAL)
    support, query = EpisodeSampler(bank, way=3, shot=2, query=2).indices(7000, generator(2))
    for rows in (support, query):
        for number, count in enumerate(UNEQUAL):
            mine = rows[bank.labels[rows] == number] - bank.starts[number]
            assert_equally_often(mine, count)


def test_rows_beyond_the_end_of_a_small_class_are_never_drawn() -> None:
    bank = bank_of((2, 40, 2))
    support, query = EpisodeSampler(bank, way=3, shot=1, query=1).indices(1000, generator())
    query = query.unflatten(1, (3, 1))
    assert bank.labels[support].equal(bank.labels[query])
    small = torch.cat((support, query), -1)[bank.labels[support[:, :, 0]] != 1]
    assert small.unique().tolist() == [0, 1, 42, 43]


def test_a_class_of_exactly_the_size_needed_gives_all_its_images() -> None:
    support, query = EpisodeSampler(bank_of((5, 5)), way=2, shot=2, query=3).indices(20, generator())
    for episode in torch.cat((support.flatten(1), query), 1):
        assert episode.sort().values.tolist() == list(range(10))


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others() -> None:
    sampler = EpisodeSampler(bank_of(UNEQUAL), way=5, shot=1, query=2)
    (support, query), again, other = (sampler.indices(30, generator(seed)) for seed in (7, 7, 8))
    assert support.equal(again[0])
    assert query.equal(again[1])
    assert not support.equal(other[0])


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    EpisodeSampler(bank_of(UNEQUAL), way=5, shot=1, query=2).draw(3, generator())
    assert torch.random.get_rng_state().equal(before)


def test_draw_returns_the_images_of_the_rows_of_indices() -> None:
    bank = bank_of(UNEQUAL)
    sampler = EpisodeSampler(bank, way=5, shot=2, query=2)
    support, query = sampler.indices(4, generator(3))
    episode = sampler.draw(4, generator(3))
    assert episode.support.equal(bank.images[support])
    assert episode.query.equal(bank.images[query])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("grouped", [False, True])
def test_a_cpu_generator_draws_the_same_rows_on_any_device(grouped: bool) -> None:
    bank = bank_of(UNEQUAL, torch.arange(sum(UNEQUAL)) // 2 if grouped else None)
    here, there = (EpisodeSampler(b, way=5, shot=1, query=1) for b in (bank, bank.to("cuda")))
    (support, query), (far_support, far_query) = (sampler.indices(50, generator()) for sampler in (here, there))
    assert support.equal(far_support.cpu())
    assert query.equal(far_query.cpu())
    assert there.draw(2, generator()).support.device.type == "cuda"
    assert there.draw(2, generator()).support.cpu().equal(here.draw(2, generator()).support)


# Groups: images that belong together, such as crops of one photo.


def feasible(groups: list[int], shot: int, query: int) -> bool:
    """Is there any choice of support that leaves enough images of other groups? Tries every one."""
    return any(sum(group not in support for group in groups) >= query for support in combinations(groups, shot))


def grouped_bank(layout: list[list[int]]) -> Bank:
    """A bank with a list of group numbers for each class; no group is shared between classes."""
    groups = [100 * number + group for number, class_groups in enumerate(layout) for group in class_groups]
    return bank_of(tuple(map(len, layout)), torch.tensor(groups))


layouts = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=2, max_size=4)
amounts = st.integers(1, 4)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(layout=layouts, shot=amounts, query=amounts)
@example(layout=[[0, 0, 0, 1, 1], [0, 1]], shot=1, query=1)
@example(layout=[[0, 0, 0, 1, 1]] * 2, shot=2, query=3)  # only the pair can be the support
@example(layout=[[0, 0, 0, 1, 1]] * 2, shot=3, query=2)  # only the three can be the support
@example(layout=[[0, 0, 0, 1, 1]] * 2, shot=3, query=3)
@example(layout=[[0, 0, 0, 0, 1, 1, 2, 2, 3]] * 2, shot=3, query=6)  # the surest support is not the largest group
def test_exactly_the_feasible_group_layouts_are_accepted_and_no_group_is_on_both_sides(
    layout: list[list[int]], shot: int, query: int
) -> None:
    bank = grouped_bank(layout)
    impossible = [
        name for name, class_groups in zip(bank.names, layout, strict=True) if not feasible(class_groups, shot, query)
    ]
    if impossible:
        with pytest.raises(DataError) as refused:
            EpisodeSampler(bank, 2, shot, query)
        named = re.match(r"class '(\w+)'", str(refused.value))
        assert named is not None
        assert named[1] in impossible
        return
    support, queries = EpisodeSampler(bank, 2, shot, query).indices(40, generator())
    support = support.flatten(1)
    assert bank.groups is not None
    assert not (bank.groups[support].unsqueeze(2) == bank.groups[queries].unsqueeze(1)).any()
    rows = torch.cat((support, queries), 1).sort(1).values
    assert (rows[:, 1:] != rows[:, :-1]).all()
    assert bank.labels[support[:, ::shot]].repeat_interleave(query, 1).equal(bank.labels[queries])


def test_groups_of_one_image_each_leave_the_draws_fair() -> None:
    bank = bank_of(UNEQUAL, torch.arange(sum(UNEQUAL)))
    support, query = EpisodeSampler(bank, way=3, shot=1, query=2).indices(7000, generator())
    for rows in (support, query):
        for number, count in enumerate(UNEQUAL):
            assert_equally_often(rows[bank.labels[rows] == number] - bank.starts[number], count)


def test_a_support_that_random_draws_seldom_find_is_found_every_time() -> None:
    layout = [[0] * 60 + [1]] * 2  # one query-free choice in 61: the lone image
    bank = grouped_bank(layout)
    support, query = EpisodeSampler(bank, way=2, shot=1, query=60).indices(200, generator())
    assert sorted(support.unique().tolist()) == [60, 121]
    assert not torch.isin(query, support).any()


# Refusals


def test_a_class_too_small_is_named_with_its_size_what_is_needed_and_the_way_out() -> None:
    with pytest.raises(DataError) as refused:
        EpisodeSampler(bank_of((20, 2, 30)), way=2, shot=5, query=15)
    message = str(refused.value)
    for part in ("'class1'", "has 2 images", "5-shot with 15 queries needs 20", "lower shot or query", "min_images=20"):
        assert part in message


@pytest.mark.parametrize("grouped", [False, True])
def test_a_class_one_image_short_is_refused(grouped: bool) -> None:
    bank = bank_of((6, 5, 6), torch.arange(17) if grouped else None)
    with pytest.raises(DataError, match="class 'class1' has 5 images; 2-shot with 4 queries needs 6"):
        EpisodeSampler(bank, way=2, shot=2, query=4)


def test_the_way_out_of_a_class_too_small_leads_out() -> None:
    bank = bank_of((20, 2, 30)).with_at_least(20)
    assert EpisodeSampler(bank, way=2, shot=5, query=15).draw(1, generator()).way == 2


def test_too_few_classes_are_refused_with_both_numbers_and_the_way_out() -> None:
    with pytest.raises(DataError, match="8-way episodes need 8 classes and there are 7: lower way"):
        EpisodeSampler(bank_of(UNEQUAL), way=8, shot=1, query=1)


def test_a_class_with_too_few_groups_is_refused_with_its_name() -> None:
    said = "class 'class1' has 9 images in 2 groups, which are not split: too few for 2-shot with 6 queries"
    with pytest.raises(DataError, match=said):
        EpisodeSampler(grouped_bank([[0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 0, 1, 1, 1, 1]]), way=2, shot=2, query=6)


@pytest.mark.parametrize(
    ("way", "shot", "query", "said"),
    [(1, 1, 1, "way is 1; it must be 2"), (2, 0, 1, "shot is 0; it must be 1"), (2, 1, -1, "query is -1; it must be 1")],
)
def test_sizes_that_make_no_episode_are_refused_by_name(way: int, shot: int, query: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        EpisodeSampler(bank_of(UNEQUAL), way, shot, query)


def test_a_group_of_several_classes_is_refused() -> None:
    bank = bank_of((3, 3), torch.tensor([0, 0, 1, 0, 0, 1]))
    with pytest.raises(DataError, match="a group of images has several classes"):
        EpisodeSampler(bank, 2, 1, 1)


def test_a_class_whose_groups_are_too_few_is_named_without_useless_advice() -> None:
    bank = bank_of((3, 3), torch.tensor([0, 0, 0, 1, 2, 3]))
    with pytest.raises(DataError, match=r"class .* has 3 images in 1 groups") as refused:
        EpisodeSampler(bank, 2, 1, 1)
    assert "min_images" not in str(refused.value)


def test_episodes_contain_the_class_numbers_of_the_bank() -> None:
    images = torch.arange(6, dtype=torch.uint8).repeat_interleave(4).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    bank = Bank(images, torch.arange(6).repeat_interleave(4), tuple("abcdef"))
    episode = EpisodeSampler(bank, 3, 2, 1).draw(5, generator(3))
    assert episode.classes is not None
    assert torch.equal(episode.support[:, :, 0, 0, 0, 0], episode.classes.to(torch.uint8))  # pixels tell the class


def bank_of_alphabets(**sizes: int) -> Bank:
    """Classes called ALPHABET/NUMBER, three images each, whose pixels tell the alphabet."""
    images = {
        f"part/{name}/{number}": torch.full((3, 1, 2, 2), place, dtype=torch.uint8)
        for place, (name, size) in enumerate(sizes.items())
        for number in range(size)
    }
    return Bank.from_classes(images)


def test_within_alphabet_takes_every_episode_from_one_alphabet_and_uses_all_that_are_large_enough() -> None:
    bank = bank_of_alphabets(greek=5, tiny=2, latin=4, runes=3)
    sampler = EpisodeSampler(bank, 3, 1, 2, within="alphabet")
    episode = sampler.draw(200, generator())
    images = torch.cat((episode.support.flatten(1), episode.query.flatten(1)), 1)
    assert bool((images == images[:, :1]).all())
    assert set(images[:, 0].tolist()) == {0, 2, 3}
    support, _ = sampler.indices(200, generator())
    assert all(len(set(bank.labels[rows].tolist())) == 3 for rows in support.flatten(1))
    assert set(bank.labels[support.flatten()].tolist()) == set(range(14)) - {5, 6}


def test_within_alphabet_is_refused_where_none_has_enough_classes() -> None:
    with pytest.raises(DataError, match="the largest of 2 alphabets has 4 classes: lower way"):
        EpisodeSampler(bank_of_alphabets(greek=4, latin=3), 5, 1, 1, within="alphabet")
    flat = Bank.from_classes({name: torch.zeros(3, 1, 2, 2, dtype=torch.uint8) for name in ("a", "b")})
    with pytest.raises(DataError, match="belong to alphabets, and these do not"):
        EpisodeSampler(flat, 2, 1, 1, within="alphabet")


def test_classes_are_drawn_within_alphabets_or_not_at_all() -> None:
    bank = Bank.from_classes({f"Greek/{n}": torch.zeros(2, 1, 2, 2, dtype=torch.uint8) for n in range(3)})
    with pytest.raises(UsageError, match="choose alphabet"):
        EpisodeSampler(bank, 2, 1, 1, "script")  # type: ignore[arg-type]
