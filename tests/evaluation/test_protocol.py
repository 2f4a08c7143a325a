"""The protocol: figures follow the formula, and every method has the same episodes."""

import math
import subprocess
import warnings
from dataclasses import replace
from functools import cache as remember
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
import torch
from scipy.special import stdtr
from torch import Tensor, nn

import sosn
from sosn.cli.process import check_bf16, try_bf16
from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.encoder.preprocessing import Preprocessing
from sosn.episode import Episode
from sosn.errors import DataError, UsageError
from sosn.evaluation import cache
from sosn.evaluation import protocol as evaluation
from sosn.evaluation.model import evaluate_model
from sosn.evaluation.protocol import Evaluation, compare, evaluate, mean_ci95
from sosn.kernel import engine
from sosn.method import Method, NearestPixels, SoSN
from sosn.method.base import Statistics
from sosn.util.seeding import generator
from tests.kernel.engines import agreement, scores


def marked_bank(classes: int = 12, images: int = 20) -> Bank:
    """Images of two pixels: the number of the class, and that of the image within it."""
    pixels = torch.cartesian_prod(torch.arange(classes), torch.arange(images)).to(torch.uint8)
    labels = torch.arange(classes).repeat_interleave(images)
    return Bank(pixels.view(-1, 1, 1, 2), labels, tuple(f"class{n}" for n in range(classes)))


class Watcher(Method):
    """Remembers the episodes that it is shown, and in which mode it was; its answers are for children to give."""

    name: ClassVar[str] = "watcher"

    def __init__(self) -> None:
        super().__init__()
        self.preprocessing = Preprocessing(1, 2)
        self.layer = nn.Dropout()
        self.seen: list[Episode] = []
        self.modes: set[bool] = set()
        self.separately: set[bool] = set()

    @property
    def describes_images(self) -> bool:
        return False

    def _logits(self, episode: Episode, separately: bool) -> Tensor:
        self.seen.append(episode)
        self.separately.add(separately)
        self.modes |= {module.training for module in self.modules()}
        return self.answer(*self.classes(episode))

    @staticmethod
    def classes(episode: Episode) -> tuple[Tensor, Tensor]:
        """Numbers of the classes of the support (E, 1, L) and of the queries (E, Q, 1), read from the pixels."""
        support, query = episode.support[:, :, 0, 0, 0, 0], episode.query[:, :, 0, 0, 0]
        return support.unsqueeze(1).double(), query.unsqueeze(2).double()

    def answer(self, support: Tensor, query: Tensor) -> Tensor:
        return -(support - query).abs()  # reads the class from the pixels: always right

    def everything(self) -> Episode:
        """All episodes in one."""
        support, query = torch.cat([e.support for e in self.seen]), torch.cat([e.query for e in self.seen])
        return Episode(support, query, torch.cat([e.labels for e in self.seen if e.labels is not None]))


class AlwaysFirst(Watcher):
    def answer(self, support: Tensor, query: Tensor) -> Tensor:
        return -torch.arange(support.shape[-1]).expand(*query.shape[:2], -1).double()


class Muddled(Watcher):
    """Right often, wrong in a way that is easy to compute elsewhere."""

    def answer(self, support: Tensor, query: Tensor) -> Tensor:
        return torch.sin(7 * support + 3 * query) + 1.5 * (support == query)


class Certain(Watcher):
    """Always right, and so sure of every class that its scores are 1 to the bit."""

    def answer(self, support: Tensor, query: Tensor) -> Tensor:
        return 40 - super().answer(support, query).abs().float()


class Failing(Watcher):
    def answer(self, support: Tensor, query: Tensor) -> Tensor:
        raise RuntimeError("no answer")


def figures(accuracies: list[float]) -> Evaluation:
    mean, half = mean_ci95(torch.tensor(accuracies, dtype=torch.float64))
    return Evaluation(mean, half, 5, 1, 1, len(accuracies), "running", 0, tuple(accuracies), "the same episodes")


# Figures


def test_a_method_that_is_always_right_has_accuracy_one_and_no_interval() -> None:
    result = evaluate(Watcher(), marked_bank(), episodes=120)
    assert result.per_episode == (1.0,) * 120
    assert (result.accuracy, result.ci95) == (1.0, 0.0)


def test_answers_are_ranked_before_scores_are_squashed_to_one() -> None:
    method, bank = Certain(), marked_bank()
    episode = sosn.EpisodeSampler(bank, 5, 1, 3).draw(4, generator("certain"))
    assert (method(episode) == 1).all()
    assert episode.labels is not None
    assert torch.equal(method.predict(episode), episode.labels)
    for statistics in get_args(Statistics):
        result = evaluate(method, bank, episodes=20, statistics=statistics)
        assert (result.accuracy, result.ties) == (1.0, 0.0)


@pytest.mark.parametrize("way", [2, 5, 8])
def test_a_method_that_always_says_the_first_class_has_accuracy_one_in_way(way: int) -> None:
    result = evaluate(AlwaysFirst(), marked_bank(), way=way, query=3, episodes=20)
    assert result.per_episode == pytest.approx([1 / way] * 20, abs=1e-15)
    assert result.accuracy == pytest.approx(1 / way, abs=1e-15)


def test_figures_equal_a_hand_computation_from_the_scores_of_the_method() -> None:
    method = Muddled()
    result = evaluate(method, marked_bank(), way=5, shot=2, query=3, episodes=130, seed=4)
    shown = method.everything()
    support, query = shown.support.numpy()[:, :, 0, 0, 0, 0], shown.query.numpy()[:, :, 0, 0, 0]
    accuracies = []
    for classes, asked in zip(support.astype(float), query.astype(float), strict=True):
        scores = np.sin(7 * classes[None] + 3 * asked[:, None]) + 1.5 * (classes[None] == asked[:, None])
        accuracies.append(np.mean(classes[scores.argmax(1)] == asked))
    assert 0.3 < np.mean(accuracies) < 0.97
    assert result.per_episode == pytest.approx(accuracies, abs=1e-15)
    assert result.accuracy == pytest.approx(np.mean(accuracies), abs=1e-12)
    assert result.ci95 == pytest.approx(1.96 * np.std(accuracies, ddof=1) / np.sqrt(130), abs=1e-12)


def test_figures_of_a_network_equal_a_hand_computation_from_its_scores() -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=6, drawings=6)
    torch.manual_seed(0)
    method = SoSN(channels=1, input_size=28).eval()
    result = evaluate(method, bank, way=3, shot=1, query=2, episodes=4)
    watcher = Watcher()
    evaluate(watcher, bank, way=3, shot=1, query=2, episodes=4)
    shown = watcher.everything()
    assert shown.labels is not None
    with torch.inference_mode():
        right = [(method(shown.one(n)).argmax(-1)[0] == shown.labels[n]).double().mean().item() for n in range(4)]
    assert result.per_episode == pytest.approx(right, abs=1e-15)


def test_a_method_and_a_bank_cannot_be_swapped() -> None:
    with pytest.raises(UsageError, match="takes a method and a bank, not NearestPixels and NearestPixels"):
        evaluate(NearestPixels(1, 4), NearestPixels(1, 4))  # type: ignore[arg-type]


def test_mean_and_interval_are_those_of_the_formula() -> None:
    values = np.random.default_rng(0).random(37)
    mean, half = mean_ci95(torch.from_numpy(values))
    assert mean == pytest.approx(values.mean(), abs=1e-12)
    assert half == pytest.approx(1.96 * values.std(ddof=1) / math.sqrt(37), abs=1e-12)


def test_an_evaluation_carries_what_it_was_made_with_and_reads_as_percent() -> None:
    result = evaluate(AlwaysFirst(), marked_bank(), way=4, shot=2, query=3, episodes=10, seed=7)
    assert (result.way, result.shot, result.query, result.episodes, result.seed) == (4, 2, 3, 10, 7)
    assert result.statistics == "running"
    assert str(result) == "25.00 ± 0.00%"
    assert "per_episode" not in result.to_json()
    assert result.to_json()["accuracy"] == result.accuracy


# Episodes


def assert_same_episodes(first: Episode, second: Episode) -> None:
    assert first.support.equal(second.support)
    assert first.query.equal(second.query)


def test_every_method_meets_the_same_episodes_whatever_the_global_generator() -> None:
    bank, first, second = marked_bank(), Watcher(), Muddled()
    torch.manual_seed(1)
    one = evaluate(first, bank, episodes=60)
    torch.manual_seed(2)
    two = evaluate(second, bank, episodes=60)
    assert_same_episodes(first.everything(), second.everything())
    assert one.fingerprint == two.fingerprint


def test_evaluation_leaves_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    evaluate(Watcher(), marked_bank(), episodes=10)
    assert torch.random.get_rng_state().equal(state)


def test_the_episodes_have_the_sizes_asked_for_and_right_labels() -> None:
    method = Watcher()
    evaluate(method, marked_bank(), way=4, shot=3, query=2, episodes=55)
    shown = method.everything()
    assert shown.support.shape == (55, 4, 3, 1, 1, 2)
    assert shown.query.shape == (55, 8, 1, 1, 2)
    assert shown.labels is not None
    support, query = method.classes(shown)
    assert support.squeeze(1).gather(1, shown.labels).equal(query.squeeze(2))


@pytest.mark.parametrize("fewer", [2, 49, 50, 51, 100])
def test_the_first_of_many_episodes_are_those_of_a_shorter_evaluation(fewer: int) -> None:
    bank, long, short = marked_bank(), Muddled(), Muddled()
    whole = evaluate(long, bank, episodes=600)
    part = evaluate(short, bank, episodes=fewer)
    assert whole.per_episode[:fewer] == part.per_episode
    shown = long.everything()
    assert_same_episodes(Episode(shown.support[:fewer], shown.query[:fewer]), short.everything())


def test_no_two_of_six_hundred_episodes_are_the_same() -> None:
    method = Watcher()
    evaluate(method, marked_bank(), way=3, query=2, episodes=600)
    shown = method.everything()
    assert len(torch.cat((shown.support.flatten(1), shown.query.flatten(1)), 1).unique(dim=0)) == 600


@pytest.mark.parametrize("change", [{"seed": 1}, {"shot": 2}, {"query": 4}, {"way": 4}, {"episodes": 21}])
def test_another_seed_or_size_gives_another_fingerprint(change: dict[str, Any]) -> None:
    base: dict[str, Any] = {"way": 5, "shot": 1, "query": 3, "episodes": 20, "seed": 0}
    bank = marked_bank()
    assert evaluate(Watcher(), bank, **base).fingerprint == evaluate(Watcher(), bank, **base).fingerprint
    assert evaluate(Watcher(), bank, **base | change).fingerprint != evaluate(Watcher(), bank, **base).fingerprint


def test_progress_counts_up_to_the_number_of_episodes() -> None:
    counts: list[tuple[int, int]] = []
    evaluate(Watcher(), marked_bank(), episodes=30, progress=lambda done, whole: counts.append((done, whole)))
    assert counts[-1] == (30, 30)
    assert [done for done, _ in counts] == sorted({done for done, _ in counts})
    assert {whole for _, whole in counts} == {30}


# Modes


@pytest.mark.parametrize("training", [True, False])
def test_a_method_is_evaluated_in_evaluation_mode_and_put_back_in_the_mode_it_was_in(training: bool) -> None:
    method = Watcher().train(training)
    evaluate(method, marked_bank(), episodes=5)
    assert method.modes == {False}
    assert {module.training for module in method.modules()} == {training}


def test_the_mode_is_put_back_when_the_method_fails() -> None:
    method = Failing().train()
    with pytest.raises(RuntimeError, match="no answer"):
        evaluate(method, marked_bank(), episodes=5)
    assert method.training


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_weights_and_buffers_are_unchanged_by_running_and_batch_statistics(statistics: Any, training: bool) -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=5, drawings=4)
    method = SoSN(channels=1, input_size=28).train(training)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    result = evaluate(method, bank, way=3, query=1, episodes=3, statistics=statistics)
    assert result.statistics == statistics
    assert all(tensor.equal(before[name]) for name, tensor in method.state_dict().items())
    assert {module.training for module in method.modules()} == {training}
    assert all(layer.track_running_stats for layer in method.modules() if isinstance(layer, nn.BatchNorm2d))


def test_batch_statistics_take_each_episode_alone_with_support_and_query_apart() -> None:
    running, batch = Watcher(), Watcher()
    evaluate(running, marked_bank(), way=2, query=2, episodes=10)
    evaluate(batch, marked_bank(), way=2, query=2, episodes=10, statistics="batch")
    assert running.separately == {False}
    assert batch.separately == {True}
    assert [len(episode) for episode in batch.seen] == [1] * 10
    assert_same_episodes(running.everything(), batch.everything())


# Comparison


def test_a_paired_comparison_is_the_textbook_t_test() -> None:
    result = compare(figures([0.1, 0.2, 0.3, 0.4, 0.5]), figures([0.0] * 5))
    t_squared = 18  # mean 0.3, deviation √0.025, n = 5
    share = t_squared / (4 + t_squared)
    p = 1 - math.sqrt(share) * (1 + (1 - share) / 2)  # Student's distribution with 4 degrees of freedom, in closed form
    assert result.difference == pytest.approx(0.3, abs=1e-12)
    assert result.ci95 == pytest.approx(1.96 * math.sqrt(0.025 / 5), abs=1e-12)
    assert result.p_value == pytest.approx(p, abs=1e-12)


def test_a_paired_comparison_of_two_methods_follows_the_formula() -> None:
    bank = marked_bank()
    first, second = evaluate(Muddled(), bank, episodes=80), evaluate(AlwaysFirst(), bank, episodes=80)
    result = compare(first, second)
    differences = np.array(first.per_episode) - np.array(second.per_episode)
    error = differences.std(ddof=1) / math.sqrt(80)
    assert result.difference == pytest.approx(first.accuracy - second.accuracy, abs=1e-12)
    assert result.ci95 == pytest.approx(1.96 * error, abs=1e-12)
    assert result.p_value == pytest.approx(2 * stdtr(79, -abs(differences.mean() / error)), rel=1e-6)


def test_a_small_noisy_difference_is_not_significant_and_a_steady_one_is() -> None:
    noise = np.random.default_rng(0).normal(0.5, 0.1, 100)
    steady = noise + 0.02 + np.random.default_rng(1).normal(0, 0.01, 100)
    assert compare(figures(steady.tolist()), figures(noise.tolist())).p_value < 1e-6
    assert compare(figures(noise.tolist()), figures(np.roll(noise, 1).tolist())).p_value > 0.5


def test_turning_a_comparison_round_turns_the_sign_of_the_difference_alone() -> None:
    first, second = figures([0.5, 0.7, 0.9, 0.4]), figures([0.4, 0.8, 0.5, 0.3])
    there, back = compare(first, second), compare(second, first)
    assert there.difference == pytest.approx(-back.difference)
    assert (there.ci95, there.p_value) == pytest.approx((back.ci95, back.p_value))


def test_identical_evaluations_differ_by_nothing_with_p_one() -> None:
    bank = marked_bank()
    result = compare(evaluate(Muddled(), bank, episodes=20), evaluate(Muddled(), bank, episodes=20))
    assert (result.difference, result.ci95, result.p_value) == (0.0, 0.0, 1.0)


def test_evaluations_on_different_episodes_are_not_compared() -> None:
    bank = marked_bank()
    base = evaluate(Watcher(), bank, episodes=20)
    pixels = bank.images.clone()
    pixels[0, 0, 0, 1] += 100
    others = [
        evaluate(Watcher(), bank, episodes=20, seed=1),
        evaluate(Watcher(), bank, episodes=21),
        evaluate(Watcher(), bank, episodes=20, shot=2),
        evaluate(Watcher(), replace(bank, images=pixels), episodes=20),
    ]
    for other in others:
        with pytest.raises(UsageError, match="give both the same data, way, shot, query and seed"):
            compare(base, other)


def test_running_and_batch_statistics_can_be_compared_on_the_same_episodes() -> None:
    bank = marked_bank()
    running, batch = (evaluate(Muddled(), bank, episodes=20, statistics=kind) for kind in ("running", "batch"))
    assert compare(running, batch).p_value == 1.0


# Refusals


def test_fewer_than_two_episodes_are_refused() -> None:
    with pytest.raises(UsageError, match="episodes is 1; a confidence interval needs 2 or more"):
        evaluate(Watcher(), marked_bank(), episodes=1)


def test_unknown_statistics_are_refused_with_those_there_are() -> None:
    unknown: Any = "moving"
    with pytest.raises(UsageError, match="statistics is 'moving'; choose running or batch"):
        evaluate(Watcher(), marked_bank(), statistics=unknown)


def test_data_with_too_few_images_are_refused_by_class() -> None:
    with pytest.raises(DataError, match="class 'class0' has 4 images; 1-shot with 15 queries needs 16"):
        evaluate(NearestPixels(), marked_bank(images=4))


def test_parts_frozen_in_evaluation_mode_stay_frozen() -> None:
    model = SoSN(channels=1, input_size=28)
    model.train()
    model.encoder.eval()
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=5, drawings=4)
    evaluate(model, bank, query=1, episodes=2)
    assert model.training
    assert not any(module.training for module in model.encoder.modules())
    assert model.similarity.training


def test_scores_that_are_not_finite_are_no_result() -> None:
    model = SoSN(channels=1, input_size=28)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=5, drawings=4)
    with pytest.raises(sosn.SosnError, match="not finite"):
        evaluate(model, bank, query=1, episodes=2)


@pytest.mark.slow
@pytest.mark.parametrize("shot", [1, 2])
def test_every_image_is_encoded_once_which_changes_no_figure(monkeypatch: pytest.MonkeyPatch, shot: int) -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=8, drawings=12)
    model = sosn.load("glyphs")
    encoded = count_encoded(model)
    once = evaluate(model, bank, way=3, shot=shot, query=4, episodes=20)
    assert sum(encoded) == distinct(bank, 3, shot, 4, 20)
    each = 20 * 3 * (shot + 4)
    encoded.clear()
    with engine("plain"):
        plain = evaluate(model, bank, way=3, shot=shot, query=4, episodes=20)
    assert plain.accuracy == pytest.approx(once.accuracy, abs=1 / (20 * 12))
    assert sum(encoded) == each  # layers one by one, episode by episode
    encoded.clear()
    monkeypatch.setattr(cache, "MEMORY", 0)
    assert evaluate(model, bank, way=3, shot=shot, query=4, episodes=20) == once
    assert sum(encoded) >= each  # some more, to see how much memory they would take


def test_of_single_shots_matrices_are_kept_and_not_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = sosn.open_bank("glyphs", "val", alphabets=10, characters=5, drawings=4)
    model = SoSN(channels=1, input_size=84)
    expected = evaluate(model, bank, way=3, query=1, episodes=15)
    encoded = count_encoded(model)
    monkeypatch.setattr(cache, "MEMORY", 4 * 64 * 64 * len(bank))  # maps have 64 × 361 entries
    assert evaluate(model, bank, way=3, query=1, episodes=15) == expected
    assert sum(encoded) == distinct(bank, 3, 1, 1, 15)


def count_encoded(model: Method) -> list[int]:
    """How many images go through the encoder, call by call, from now on."""
    counts: list[int] = []
    encoder: Any = model.encoder
    encoder.register_forward_pre_hook(lambda _, given: counts.append(len(given[0])))
    return counts


def distinct(bank: Bank, way: int, shot: int, query: int, episodes: int) -> int:
    """How many images the episodes of an evaluation have between them."""
    rows = evaluation.draw_indices(EpisodeSampler(bank, way, shot, query), episodes, 0)
    return len(torch.cat([part.flatten() for part in rows]).unique())


@remember
def glyph_scores(*words: str) -> Tensor:
    """What the shipped model says of 500 queries, of which it gets 29 wrong."""
    sizes = "way=5 shot=1 query=5 episodes=20 device=cpu data.seed=5 data.alphabets=10 data.characters=8 data.drawings=8"
    return scores(lambda: evaluate_model("glyphs", [*sizes.split(), *words])[0])


@pytest.mark.slow
def test_the_engine_answers_as_the_plain_layers_do() -> None:
    assert agreement(glyph_scores("engine=auto"), glyph_scores("engine=plain")) >= 0.999


@pytest.mark.parametrize(
    ("code", "ratio", "refused"),
    [(-4, "", "do not work"), (0, "", "do not finish"), (0, "0.5\n", ""), (0, "2.5\n", "")],
)
def test_half_precision_is_tested_by_a_child_process_and_warned_of_if_slower(
    monkeypatch: pytest.MonkeyPatch, code: int, ratio: str, refused: str
) -> None:
    tries = []

    def child(words: list[str], timeout: float, **_: object) -> subprocess.CompletedProcess[str]:
        tries.append(words)
        if not code and not ratio:
            raise subprocess.TimeoutExpired(words, timeout)
        return subprocess.CompletedProcess(words, code, ratio, "")

    monkeypatch.setattr("subprocess.run", child)
    try_bf16.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                if refused:
                    with pytest.raises(UsageError, match=f"bf16 convolutions {refused} on this CPU: use precision=fp32"):
                        check_bf16()
                else:
                    check_bf16()
    finally:
        try_bf16.cache_clear()
    expected = ["bf16 convolutions take 2.5 times as long as fp32 ones on this CPU: precision=fp32 is faster"] * 2
    assert [str(one.message) for one in found] == (expected if ratio == "2.5\n" else [])
    assert len(tries) == 1


@pytest.mark.slow
def test_half_precision_is_used_where_the_processor_can_and_refused_elsewhere() -> None:
    try:
        check_bf16()
    except UsageError:
        with pytest.raises(UsageError, match="use precision=fp32"):
            glyph_scores("engine=auto", "precision=bf16")
        return
    coarse, exact = glyph_scores("engine=auto", "precision=bf16"), glyph_scores("engine=plain")
    assert (coarse - exact).abs().max() > 1e-4  # 2e-2; in full precision 3e-6
    assert agreement(coarse, exact) >= 0.99
    assert agreement(coarse, glyph_scores("engine=plain", "precision=bf16")) >= 0.99
