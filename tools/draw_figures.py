"""Draw the figures of the documentation: python tools/draw_figures.py"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import sosn
from pages.ablations import family_values
from pages.ledger import current_entries, half_interval
from pages.mini_imagenet import long_runs
from pages.text import ROOT, read
from sosn.power_norm import maxexp, maxexp_pm, sigme
from sosn.report.bench import save_bench_figure
from sosn.reproduce.ledger import Entry
from sosn.reproduce.mini_imagenet import ABLATIONS, SHOTS

DOCS = ROOT / "docs"
COLUMNS = 3  # ablations side by side
RIGHT, WRONG = "#2b7a4b", "#b3261e"


def episode(path: Path, query: int = 6) -> None:
    """Draw five characters that are new to the shipped model, one example of each, and its answers to other drawings."""
    bank = sosn.open_bank("glyphs", "test")
    one = sosn.EpisodeSampler(bank, way=5, shot=1, query=query).draw(1, sosn.generator("readme", 0))
    with torch.inference_mode():
        scores = sosn.load("glyphs").eval()(one)[0].view(5, query, 5)
    figure = Figure((9, 6), layout="constrained")
    support, queries = np.asarray(figure.subfigures(1, 2, width_ratios=(1.25, query)))
    support.suptitle("one example", fontsize=11)
    queries.suptitle("new drawings: answer and similarity", fontsize=11)
    for label, axes in enumerate(support.subplots(5, 1)):
        axes.imshow(one.support[0, label, 0, 0], cmap="gray", vmin=0, vmax=255)
        axes.set_xlabel("ABCDE"[label], fontsize=11, weight="bold")
        axes.set(xticks=[], yticks=[])
    for index, axes in enumerate(queries.subplots(5, query).flatten()):
        label, which = divmod(index, query)
        similarities = scores[label, which]
        answer = int(similarities.argmax())
        axes.imshow(one.query[0, index, 0], cmap="gray", vmin=0, vmax=255)
        axes.set_xlabel(
            f"{'ABCDE'[answer]}  {similarities[answer]:.2f}", fontsize=10, color=RIGHT if answer == label else WRONG
        )
        axes.set(xticks=[], yticks=[])
    for axes in (*support.axes, *queries.axes):
        axes.spines[:].set_color("#cccccc")
    figure.savefig(path, dpi=90)


def power_norms(path: Path, eta: float = 20.0, softness: float = 200.0) -> None:
    """Draw the paper's Fig. 3: MaxExp, MaxExp(±) and SigmE, and their derivatives."""
    figure = Figure((12, 3.4), layout="constrained")
    values, slopes, soft = figure.subplots(1, 3)
    m = torch.linspace(-1, 1, 2001, dtype=torch.float64, requires_grad=True)
    positive = m[m >= 0]
    curves = {
        "MaxExp(±), ρ = 0.5": (m, maxexp_pm(m, eta)),
        "MaxExp": (positive, maxexp(positive, eta)),
        "SigmE, η′ = 0.75 η": (m, sigme(m, 0.75 * eta)),
    }
    for (label, (x, y)), style in zip(curves.items(), ("-", ":", "--"), strict=True):
        (slope,) = torch.autograd.grad(y.sum(), m, retain_graph=True)
        values.plot(x.detach(), y.detach(), style, label=label)
        slopes.plot(x.detach(), slope[m >= x.min()].detach(), style, label=label)
    for label, alpha in (("hard maximum", None), (f"soft maximum, α = {softness:.0f}", softness)):
        (slope,) = torch.autograd.grad(maxexp_pm(m, eta, 0.3, alpha).sum(), m)
        soft.plot(m.detach(), slope.detach(), label=label)
    values.set(title=f"Power norms, η = {eta:.0f}", xlabel="m")
    slopes.set(title="Derivatives", xlabel="m", xlim=(-0.5, 0.5))
    soft.set(title="Derivative of MaxExp(±), ρ = 0.3", xlabel="m", xlim=(-0.15, 0.15))
    for axes in (values, slopes, soft):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def ablations(entries: Sequence[Entry], path: Path) -> None:
    """Plot the accuracy over the values of each ablation."""
    rows = -(-len(ABLATIONS) // COLUMNS)
    figure = Figure((3.4 * COLUMNS, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, sharey=True).flatten()
    for axes, (family, (what, _)) in zip(grid, ABLATIONS.items(), strict=False):
        found = family_values(entries, family)
        numbers = all(value[0].isdigit() or value == "N" for value, _, _ in found)
        heights, halves = ([100 * f(one) for _, _, one in found] for f in (lambda one: one.mean, half_interval))
        axes.errorbar(range(len(found)), heights, halves, fmt="o-" if numbers else "o", capsize=3)
        tick_style = {"rotation": 0} if numbers else {"rotation": 40, "ha": "right"}
        axes.set_xticks(range(len(found)), [value for value, _, _ in found], **tick_style)
        axes.set_title(what)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel("accuracy, %")
    figure.savefig(path, dpi=110)


def long_training(entries: Sequence[Entry], path: Path) -> None:
    """Plot the validation accuracy over trainings of 200,000 episodes."""
    figure = Figure((7.6, 3.2), layout="constrained")
    for axes, protocol in zip(figure.subplots(1, len(SHOTS)), SHOTS, strict=True):
        for row, episodes, accuracies in long_runs(entries):
            if row.id.endswith(protocol):
                shift = row.resolve(0).model.options["shift"]
                axes.plot([one / 1000 for one in episodes], accuracies, label=f"β = {shift:g}")
        axes.set(title=protocol, xlabel="thousand episodes")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.supylabel("accuracy, %")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    current = current_entries()
    episode(DOCS / "episode.png")
    power_norms(DOCS / "power-norms.png")
    save_bench_figure(read("results/bench-h200.json"), DOCS / "bench-h200.png")
    ablations(current, DOCS / "reproduction/ablations.png")
    long_training(current, DOCS / "reproduction/long-training.png")
