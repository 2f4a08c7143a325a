"""Relation descriptors against a pair-by-pair, position-by-position reference."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from sosn.errors import UsageError
from sosn.power_norm import PowerNorm
from sosn.relation import Relation, RelationName, stack_pairs
from tests import reference
from tests.reference import ALLOWED, RELATIONS, Options

pytestmark = pytest.mark.usefixtures("one_thread")


STACKED = ("average", "ranked", "or_like", "difference")


def maps(*shape: int, positive: bool = True, seed: int = 0) -> Tensor:
    """Feature maps, with zeros among them as after ReLU where positive."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.clamp_min(0) if positive else values


def build(options: Options) -> Relation:
    norm = PowerNorm(options.power_norm, options.eta, options.gamma, options.rho, options.softness)
    return Relation(options.relation, norm, options.shift, options.alpha, options.trace_normalise)  # type: ignore[arg-type]


def agrees_with_reference(options: Options, shot: int, positive: bool) -> None:
    """Two episodes of three classes and two queries, five positions of four features."""
    support = maps(2, 3, shot, 4, 5, positive=positive, seed=1)
    query = maps(2, 2, 4, 5, positive=positive, seed=2)
    result = build(options).describe_pairs(support, query)
    for e, q, c in product(range(2), range(2), range(3)):
        expected = reference.descriptor(list(support[e, c]), query[e, q], options)
        torch.testing.assert_close(result[e, q, c], expected, rtol=1e-10, atol=1e-12)
    assert result.shape[:3] == (2, 2, 3)


@pytest.mark.parametrize("shot", [1, 3])
@pytest.mark.parametrize("trace_normalise", [True, False], ids=["trace", "raw"])
@pytest.mark.parametrize(("relation", "power_norm"), ALLOWED)
def test_every_relation_with_every_norm_follows_its_formula(
    relation: str, power_norm: str, trace_normalise: bool, shot: int
) -> None:
    agrees_with_reference(
        Options(relation, power_norm, eta=7.0, rho=0.3, alpha=0.6, trace_normalise=trace_normalise), shot, positive=True
    )


@pytest.mark.parametrize("shot", [1, 3])
@pytest.mark.parametrize("shift", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("power_norm", ["sigme", "maxexp_pm"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_every_relation_of_signed_features_is_shifted_by_its_means(
    relation: str, power_norm: str, shift: float, shot: int
) -> None:
    options = Options(relation, power_norm, eta=7.0, rho=0.3, softness=80.0, shift=shift, alpha=0.6)
    agrees_with_reference(options, shot, positive=False)


@pytest.mark.parametrize("relation", RELATIONS)
def test_eta_of_none_is_the_number_of_positions_of_one_map(relation: str) -> None:
    agrees_with_reference(Options(relation, eta=None), 3, positive=True)
    agrees_with_reference(Options(relation, "maxexp_pm", eta=None), 3, positive=True)


@pytest.mark.parametrize(
    ("relation", "channels", "rows"),
    [
        ("average", 2, 64),
        ("ranked", 2, 64),
        ("full", 1, 128),
        ("or_like", 4, 64),
        ("difference", 4, 64),
        ("hadamard", 1, 64),
        ("subtract", 1, 64),
    ],
)
def test_a_relation_announces_the_shape_of_its_descriptors(relation: RelationName, channels: int, rows: int) -> None:
    built = Relation(relation)
    assert (built.channels, built.side(64)) == (channels, rows)
    assert built.describe_pairs(maps(1, 2, 1, 64, 5), maps(1, 3, 64, 5)).shape == (1, 3, 2, channels, rows, rows)


@pytest.mark.parametrize(("way", "queries", "shot"), [(1, 1, 1), (5, 1, 2), (1, 4, 3)])
@pytest.mark.parametrize("relation", RELATIONS)
def test_any_number_of_classes_queries_and_shots_is_described(
    relation: RelationName, way: int, queries: int, shot: int
) -> None:
    result = Relation(relation).describe_pairs(maps(2, way, shot, 4, 5), maps(2, queries, 4, 5))
    assert result.shape[:3] == (2, queries, way)


@pytest.mark.parametrize("relation", RELATIONS)
def test_an_episode_of_a_batch_is_described_as_if_alone(relation: RelationName) -> None:
    built = Relation(relation)
    support, query = maps(3, 2, 2, 4, 5, seed=1), maps(3, 2, 4, 5, seed=2)
    together = built.describe_pairs(support, query)
    alone = torch.cat([built.describe_pairs(support[e : e + 1], query[e : e + 1]) for e in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("trace_normalise", [True, False], ids=["trace", "raw"])
def test_ranked_is_average_at_one_shot(trace_normalise: bool) -> None:
    support, query = maps(2, 3, 1, 64, 25, seed=1).float(), maps(2, 4, 64, 25, seed=2).float()
    ranked, average = (Relation(name, trace_normalise=trace_normalise) for name in ("ranked", "average"))
    assert torch.equal(ranked.describe_pairs(support, query), average.describe_pairs(support, query))


def test_ranked_is_not_average_at_three_shots() -> None:
    support, query = maps(1, 1, 3, 8, 25, seed=1), maps(1, 1, 8, 25, seed=2)
    ranked, average = (Relation(name).describe_pairs(support, query)[0, 0, 0] for name in ("ranked", "average"))
    assert (ranked[0] - average[0]).abs().max() > 0.1
    assert torch.equal(ranked[1], average[1])  # the query side is the same


def test_full_divides_by_n_whatever_the_number_of_shots() -> None:
    support, query = maps(1, 1, 3, 4, 5, seed=1), maps(1, 1, 4, 5, seed=2)
    psi = Relation("full", PowerNorm("none"), trace_normalise=False).describe_pairs(support, query)[0, 0, 0, 0]
    shots, phi = support[0, 0], query[0, 0]
    for i, j in product(range(4), range(4)):
        own = sum((shots[z, i, n] * shots[z, j, n]).item() for z in range(3) for n in range(5)) / 5
        cross = sum((shots[z, i, n] * phi[j, n]).item() for z in range(3) for n in range(5)) / 5
        other = 3 * sum((phi[i, n] * phi[j, n]).item() for n in range(5)) / 5
        assert psi[i, j].item() == pytest.approx(own, rel=1e-12)
        assert psi[i, 4 + j].item() == pytest.approx(cross, rel=1e-12)
        assert psi[4 + j, i].item() == pytest.approx(cross, rel=1e-12)
        assert psi[4 + i, 4 + j].item() == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("relation", ["or_like", "difference"])
def test_alpha_scales_the_sums_and_differences_only(relation: RelationName) -> None:
    support, query = maps(1, 2, 2, 4, 5, seed=1), maps(1, 2, 4, 5, seed=2)
    one, third = (Relation(relation, alpha=alpha).describe_pairs(support, query) for alpha in (1.0, 1 / 3))
    torch.testing.assert_close(third[..., [0, 2], :, :], one[..., [0, 2], :, :], rtol=0, atol=0)
    torch.testing.assert_close(third[..., [1, 3], :, :], one[..., [1, 3], :, :] / 3, rtol=1e-12, atol=0)
    assert one[..., [1, 3], :, :].abs().max() > 0.1


@pytest.mark.parametrize(("relation", "sign"), [("or_like", 1), ("difference", -1)])
def test_sums_and_differences_are_divided_by_the_trace_of_the_autocorrelation_beside_them(
    relation: RelationName, sign: int
) -> None:
    support, query = maps(1, 1, 2, 3, 5, seed=1), maps(1, 1, 3, 5, seed=2)
    psi = Relation(relation, PowerNorm("none")).describe_pairs(support, query)[0, 0, 0]
    for phi, channel in ((support[0, 0].mean(0), 1), (query[0, 0], 3)):
        trace = sum((phi[k, n] ** 2).item() for k in range(3) for n in range(5)) / 5
        for i, j in product(range(3), range(3)):
            total = sum((phi[i, n] + sign * phi[j, n]).item() for n in range(5)) / 5
            assert psi[channel, i, j].item() == pytest.approx(total / (trace + 1e-6), rel=1e-12, abs=1e-14)


def test_hadamard_and_subtract_normalise_each_autocorrelation_first() -> None:
    support, query = maps(1, 1, 1, 3, 5, seed=1), maps(1, 1, 3, 5, seed=2)
    left, right = (phi @ phi.T / (phi.square().sum() + 5e-6) for phi in (support[0, 0, 0], query[0, 0]))
    for relation, expected in (("hadamard", left * right), ("subtract", left - right)):
        psi = Relation(relation, PowerNorm("none")).describe_pairs(support, query)[0, 0, 0, 0]  # type: ignore[arg-type]
        torch.testing.assert_close(psi, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("relation", STACKED)
def test_stacked_relations_describe_each_side_alone(relation: RelationName) -> None:
    built = Relation(relation, alpha=0.5)
    support, query = maps(2, 3, 2, 4, 5, seed=1), maps(2, 2, 4, 5, seed=2)
    left, right = built.describe_support(support), built.describe_query(query)
    side = built.channels // 2
    assert left.shape == (2, 3, side, 4, 4)
    assert right.shape == (2, 2, side, 4, 4)
    pairs = built.describe_pairs(support, query)
    for e, q, c in product(range(2), range(2), range(3)):
        torch.testing.assert_close(pairs[e, q, c, :side], left[e, c], rtol=0, atol=0)
        torch.testing.assert_close(pairs[e, q, c, side:], right[e, q], rtol=0, atol=0)


def test_pairs_are_stacked_class_first_with_axes_between_kept() -> None:
    support, query = maps(2, 3, 7, 2, 4, 4, seed=1), maps(2, 5, 7, 2, 4, 4, seed=2)
    pairs = stack_pairs(support, query)
    assert pairs.shape == (2, 5, 3, 7, 4, 4, 4)
    for e, q, c, p in product(range(2), range(5), range(3), range(7)):
        assert torch.equal(pairs[e, q, c, p], torch.cat((support[e, c, p], query[e, q, p])))


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace_normalise", [True, False], ids=["trace", "raw"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_gradients_of_every_relation_agree_with_finite_differences(relation: RelationName, trace_normalise: bool) -> None:
    built = Relation(relation, PowerNorm("sigme", eta=5.0), shift=0.3, alpha=0.6, trace_normalise=trace_normalise)
    support = maps(1, 2, 2, 2, 3, positive=False, seed=1).requires_grad_()
    query = maps(1, 1, 2, 3, positive=False, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(built.describe_pairs, (support, query))


def finite_with_finite_gradients(
    relation: Relation, support: Tensor, query: Tensor, autocast: torch.dtype | None = None
) -> Tensor:
    support, query = support.detach().requires_grad_(), query.detach().requires_grad_()
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        psi = relation.describe_pairs(support, query)
    psi.sum().backward()
    assert psi.isfinite().all()
    for leaf in (support, query):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
    return psi


@pytest.mark.parametrize("softness", [None, 1e4], ids=["hard", "soft"])
@pytest.mark.parametrize(("relation", "power_norm"), ALLOWED)
def test_dead_and_constant_maps_give_finite_descriptors_and_gradients(
    relation: RelationName, power_norm: str, softness: float | None
) -> None:
    for shift in (0.0, 1.0) if PowerNorm(power_norm).signed else (0.0,):
        built = Relation(relation, PowerNorm(power_norm, softness=softness), shift=shift)
        for left, right in product((0.0, 1e-20, 3.0), repeat=2):
            finite_with_finite_gradients(built, torch.full((1, 2, 2, 3, 4), left), torch.full((1, 2, 3, 4), right))


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_dead_map_is_described_by_zeros(relation: RelationName) -> None:
    psi = Relation(relation).describe_pairs(torch.zeros(1, 2, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    assert torch.equal(psi, torch.zeros_like(psi))


@pytest.mark.parametrize("eta", [1.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize(("relation", "power_norm"), ALLOWED)
def test_every_slope_gives_finite_descriptors_and_gradients(relation: RelationName, power_norm: str, eta: float) -> None:
    factor = {"asinhe": eta, "gamma": 1 / eta}.get(power_norm)
    for softness in (None, 100 * eta):
        built = Relation(relation, PowerNorm(power_norm, eta, factor, softness=softness))
        finite_with_finite_gradients(built, maps(1, 2, 2, 6, 9, seed=1).float(), maps(1, 2, 6, 9, seed=2).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("relation", "power_norm"), ALLOWED)
def test_descriptors_are_float32_under_autocast(relation: RelationName, power_norm: str, dtype: torch.dtype) -> None:
    options = Options(relation, power_norm, alpha=0.6)
    support, query = 300 * maps(1, 2, 1, 6, 9, seed=1), 300 * maps(1, 2, 6, 9, seed=2)  # float16 squares would overflow
    support, query = support.to(dtype), query.to(dtype)
    psi = finite_with_finite_gradients(build(options), support, query, dtype)
    # The slope of ⊕ at a dead map, η′/2λ, is beyond float16: these maps stay in float32 there.
    zeros = torch.zeros(2, 2, 6, 9, dtype=torch.float32 if dtype == torch.float16 else dtype)
    dead = finite_with_finite_gradients(build(options), zeros[None], zeros[:1], dtype)
    assert psi.dtype == dead.dtype == torch.float32
    for q, c in product(range(2), range(2)):
        expected = reference.descriptor(list(support[0, c].double()), query[0, q].double(), options)
        torch.testing.assert_close(psi[0, q, c].double(), expected, rtol=1e-4, atol=1e-5)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Relation("concat"), "'concat'; choose one of average"),  # type: ignore[arg-type]
        (lambda: Relation("or_like", alpha=1.5), "alpha is 1.5"),
        (lambda: Relation("or_like", alpha=-0.5), "alpha is -0.5"),
        (lambda: Relation(shift=1.5), "shift is 1.5"),
        (lambda: Relation(shift=-0.5), "shift is -0.5"),
    ],
)
def test_parameters_without_meaning_are_refused(build: Callable[[], Relation], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build()


@pytest.mark.parametrize("power_norm", ["gamma", "maxexp"])
def test_norms_of_positive_evidence_refuse_relations_that_have_negative_evidence(power_norm: str) -> None:
    norm = PowerNorm(power_norm)
    for relation in ("difference", "subtract"):
        with pytest.raises(UsageError, match="refuses negative co-occurrences"):
            Relation(relation, norm)
    with pytest.raises(UsageError, match=r"shift=0\.1"):
        Relation("average", norm, shift=0.1)
