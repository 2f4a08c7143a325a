"""Compare models on the same episodes: accuracy, significance, cost."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sosn.checkpoint.registry import load_with_recipe
from sosn.data.bank import Bank
from sosn.data.sampler import EpisodeSampler
from sosn.errors import UsageError
from sosn.evaluation.model import (
    EvaluationSettings,
    check_encoder,
    check_runs,
    check_unseen,
    evaluate_with,
    evaluation_settings,
    open_evaluated,
)
from sosn.evaluation.protocol import Comparison, Evaluation, compare
from sosn.method.base import Method, batch_norms
from sosn.util.seeding import generator


@dataclass(frozen=True)
class Row:
    """The figures of one model in a comparison."""

    model: str
    method: str
    evaluation: Evaluation
    against_first: Comparison | None  # this model minus the first; None for the first
    parameters: int
    mflops: float  # of convolutions and matrix products in one episode; a multiply-add counts as two
    episodes_per_second: float
    transductive: bool
    adapts: bool

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"model": self.model, "method": self.method} | self.evaluation.to_json()
        if self.against_first is not None:
            row |= {
                "difference": self.against_first.difference,
                "difference_ci95": self.against_first.ci95,
                "p_value": self.against_first.p_value,
            }
        names = ("parameters", "mflops", "episodes_per_second", "transductive", "adapts")
        return row | {name: getattr(self, name) for name in names}


def compare_models(
    models: Sequence[str],
    overrides: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[list[Row], EvaluationSettings]:
    """Evaluate models, given by name or folder, on the same episodes. The data default to those of the first model.

    The p-value is that of a two-sided paired t-test over episodes against the first model. For each model, progress is called
    with the number of finished episodes and their total. say is called with what is skipped.
    """
    if len(models) < 2:
        given = f"only {models[0]!r} was given" if models else "no model was given"
        raise UsageError(f"{given}: compare takes two or more model names or run folders; `sosn eval` takes one")
    loaded = [load_with_recipe(model) for model in models]
    for method, _ in loaded:
        method.check_trained()
    settings, recipe = evaluation_settings(loaded[0][1], overrides)
    for model, (method, _) in zip(models, loaded, strict=True):
        check_encoder(model, method, recipe, overrides)
    bank, settings = open_evaluated(recipe, settings, say)
    for model, (method, trained) in zip(models, loaded, strict=True):
        if method.parameter_count():  # a method without parameters has no training classes
            check_runs(model) if settings.runs else check_unseen(model, trained, recipe, bank, settings.split)
    rows: list[Row] = []
    for model, (method, _) in zip(models, loaded, strict=True):
        began = time.monotonic()
        result = evaluate_with(method, bank, settings, progress)
        seconds = time.monotonic() - began
        row = Row(
            model, method.name, result, compare(result, rows[0].evaluation) if rows else None, method.parameter_count(),
            mflops_of_an_episode(method, bank, settings), result.episodes / seconds,
            method.transductive or (settings.statistics == "batch" and bool(batch_norms(method))), method.adapts,
        )  # fmt: skip
        rows.append(row)
    return rows, settings


def mflops_of_an_episode(method: Method, bank: Bank, settings: EvaluationSettings) -> float:
    """Return the millions of floating-point operations of one episode in evaluation, as PyTorch counts them."""
    sampler = EpisodeSampler(bank, settings.way, settings.shot, settings.query, settings.within)
    episode = sampler.draw(1, generator("flops", settings.seed, device=bank.device)).to(method.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        method.eval()(episode, settings.statistics)
    return float(counter.get_total_flops()) / 1e6
