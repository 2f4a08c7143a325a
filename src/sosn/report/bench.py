"""Plot the result of `sosn bench`."""

from pathlib import Path
from typing import Any, cast

from matplotlib.figure import Figure

from sosn.bench import written_rate

COLOURS = {"loop": "#9aa5b1", "vectorised": "#5c7fa3", "easyfsl": "#d8a657"}  # all others are the engine


def bench_figure(document: dict[str, Any]) -> Figure:
    """Plot the training rate of every contender, and the growth of the cost of an episode."""
    figure = Figure(figsize=(12, 7), layout="constrained")
    top, bottom = cast(Any, figure.subfigures(2, 1))
    training = [
        row for row in document["training"] if row["episodes_per_second"]
    ]  # skip shapes for which no contender had enough memory
    axes = top.subplots(1, max(1, len(training)), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(name for row in training for name in row["episodes_per_second"]))
    for axis, row in zip(axes, training, strict=bool(training)):
        rates = row["episodes_per_second"]
        places = [names.index(name) for name in rates]
        bars = axis.barh(places, list(rates.values()), color=[COLOURS.get(name, "#1b2a41") for name in rates])
        axis.bar_label(bars, fmt=written_rate, padding=3)
        axis.set(title=row["shape"], xlabel="episodes/s", xscale="log", xlim=(min(rates.values()) / 4, 8 * max(rates.values())))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    growth = {name: rows for name, rows in document["growth"].items() if rows}
    below = bottom.subplots(1, max(1, len(growth)), squeeze=False)[0]
    for axis, (name, rows) in zip(below, growth.items(), strict=bool(growth)):
        values = [_varied(name, row["shape"]) for row in rows]
        axis.plot(values, [row["ms_per_episode"] for row in rows], "o-", color="#1b2a41")
        axis.set(xlabel=name, title=f"{rows[0]['shape']} and more", ylim=(0, 1.1 * max(row["ms_per_episode"] for row in rows)))
    below[0].set_ylabel("ms to train an episode")
    figure.suptitle(f"sosn bench on {document['machine']}")
    return figure


def _varied(name: str, shape: str) -> float:
    """Return the value that varies, from a shape such as 5w1s15q 84² P=3."""
    sizes, image, *more = shape.split()
    way, shot = sizes.split("w")[0], sizes.split("w")[1].split("s")[0]
    found = {"way": way, "shot": shot, "image side": image.rstrip("²"), "permutations": more[0][2:] if more else "1"}
    return float(found[name])


def save_bench_figure(document: dict[str, Any], path: Path) -> None:
    bench_figure(document).savefig(path, dpi=110)
