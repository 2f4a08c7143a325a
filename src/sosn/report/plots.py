"""Plots of a run as matplotlib figures."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from sosn.episode import Episode
from sosn.evaluation.protocol import Evaluation
from sosn.method.base import Method
from sosn.relation import Relation
from sosn.second_order import autocorrelation, trace_normalise

INK, ACCENT, FAINT = "#1b2a41", "#d1495b", "#8d99ae"


def training_curves(metrics: Sequence[dict[str, Any]]) -> Figure:
    """Plot the loss and the validation accuracy over the steps."""
    figure = Figure((9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    losses = [(row["step"], row["loss"]) for row in metrics if "loss" in row]
    left.plot(*zip(*losses, strict=True), color=INK, linewidth=1)
    left.set(title="Training loss", xlabel="step", ylim=(0, None))
    validated = [row for row in metrics if "val_accuracy" in row]
    right.errorbar(
        [row["step"] for row in validated], [100 * row["val_accuracy"] for row in validated],
        [100 * row["val_ci95"] for row in validated], color=ACCENT, marker="o", markersize=4, capsize=3,
    )  # fmt: skip
    right.set(title="Validation accuracy (%), 95% CI", xlabel="step")
    return _plain(figure)


def accuracy_histogram(test: Evaluation, pixels: Evaluation) -> Figure:
    """Plot the distribution of accuracy over episodes, beside the pixel baseline."""
    figure = Figure((9, 2.6), layout="constrained")
    axes = figure.subplots()
    bins = [5 * edge for edge in range(21)]
    for result, colour, label in ((pixels, FAINT, "comparing pixels"), (test, ACCENT, "SoSN")):
        values = [100 * value for value in result.per_episode]
        axes.hist(values, bins=bins, color=colour, alpha=0.75, label=f"{label}: {result}")
    axes.set(xlabel="accuracy of an episode (%)", ylabel="episodes", title="Test episodes")
    axes.legend(frameon=False, loc="upper left")
    return _plain(figure)


def episode_figure(episode: Episode, scores: Tensor, names: Sequence[str]) -> Figure:
    """Plot one episode: an example of each class across, queries down, similarities between."""
    way, queries = episode.way, episode.queries
    figure = Figure((1.35 * (way + 1), 1.25 * (queries + 1)), layout="constrained")
    grid = figure.subplots(queries + 1, way + 1)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    grid[0, 0].text(0.5, 0.5, "query ↓   class →", ha="center", va="center", fontsize=8, color=FAINT)
    for column in range(way):
        _image(grid[0, column + 1], episode.support[0, column, 0])
        grid[0, column + 1].set_title(names[column].replace("/", "\n"), fontsize=7)
    truth = episode.labels
    for row in range(queries):
        _image(grid[row + 1, 0], episode.query[0, row])
        best = int(scores[row].argmax())
        for column in range(way):
            axes, score = grid[row + 1, column + 1], float(scores[row, column])
            axes.set_facecolor((0.82, 0.29, 0.36, 0.6 * score))
            right = truth is not None and int(truth[0, row]) == column
            weight = "bold" if column == best else "normal"
            axes.text(0.5, 0.5, f"{score:.2f}", ha="center", va="center", fontsize=10, fontweight=weight, color=INK)
            if right:
                axes.spines[:].set_visible(True)
                axes.spines[:].set_color(INK)
    return figure


def matrix_figure(method: Method, relation: Relation, image: Tensor) -> Figure:
    """Plot an image (C, H, W), its second-order matrix, and the matrix after power normalisation."""
    with torch.inference_mode():
        features = method.encode(image[None].to(method.device))
        matrix = autocorrelation(features, relation.shift)
        matrix = trace_normalise(matrix) if relation.trace_normalise else matrix
        normed = relation.power_norm(matrix, features.shape[-1])
    figure = Figure((9, 3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _image(left, image)
    left.set(title="query", xticks=[], yticks=[])
    for axes, values, title in (
        (middle, matrix, "M / (Tr M + λ)" if relation.trace_normalise else "M"),
        (right, normed, f"after {relation.power_norm.name}"),
    ):
        drawn = axes.imshow(values[0].cpu().numpy(), cmap="magma", interpolation="nearest")
        axes.set(title=title, xticks=[], yticks=[])
        figure.colorbar(drawn, ax=axes, shrink=0.8)
    return figure


def _image(axes: Any, image: Tensor) -> None:
    axes.imshow(image.permute(1, 2, 0).squeeze(-1).cpu().numpy(), cmap="gray", vmin=0, vmax=255)


def _plain(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.title.set_fontsize(10)
    return figure
