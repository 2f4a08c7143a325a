"""docs/reproduction/omniglot.md: the paper's Omniglot table beside ours."""

from collections.abc import Sequence

from pages.ledger import current_entries, figure, recipe_of, seeds, training_episodes
from pages.text import accuracy, model_cards, table
from sosn.method.base import Statistics
from sosn.reproduce.ledger import Entry
from sosn.reproduce.omniglot import BEST, METHODS, PARTITIONS, PROTOCOLS, TABLE
from sosn.reproduce.paper import PUBLISHED, SNELL, published

STATISTICS: tuple[Statistics, ...] = ("running", "batch")
TRAINED = ("20w1s", "20w5s")  # protocols that the best recipe is trained for
HEAD = ("model", "rows", "batch norm", *PROTOCOLS, "seeds")


def figures(entries: Sequence[Entry] | None = None) -> dict[str, str]:
    current = current_entries(entries)
    five, twenty, best, first = (
        recipe_of(TABLE, row) for row in ("sigme-paper-5w1s", "sigme-paper-20w1s", "best-20w1s", "best-pretrain")
    )
    batch = first.episodes.way * (first.episodes.shot + first.episodes.query) * first.episodes.episodes_per_step
    run = {label for label, _ in METHODS.values()}
    return {
        **{f"split.{partition}": table(HEAD, _models(current, partition)) for partition in PARTITIONS},
        "best": table(("split", "trained on", "row", *PROTOCOLS, "seeds"), _best(current)),
        "one-model": table(("split", "row", *PROTOCOLS, "seeds"), _one_model(current)),
        "rotated": _rotated(),
        "not-run": "; ".join(
            f"{name} ({', '.join(f'{protocol} {one}' for protocol, one in printed.items())})"
            for name, printed in PUBLISHED[TABLE].items()
            if name not in run
        ),
        "episodes.5": f"{training_episodes(five):,}",
        "each.5": str(five.episodes.episodes_per_step),
        "episodes.20": f"{training_episodes(twenty):,}",
        "each.20": str(twenty.episodes.episodes_per_step),
        "rate": f"{five.training.learning_rate:g}",
        "test-episodes": f"{five.validation.report_episodes:,}",
        "best.episodes": f"{training_episodes(best):,}",
        "best.batches": f"{first.training.steps:,} batches of {batch} images",
    }


def _models(entries: Sequence[Entry], partition: str) -> list[list[str]]:
    """For each model the paper's figures and ours on test classes; each column is a model trained for that protocol."""
    lines = []
    for name, (label, _) in METHODS.items():
        rows = [f"{name}-{partition}-{protocol}" for protocol in PROTOCOLS]
        printed = [str(published(TABLE, label, protocol) or "") for protocol in PROTOCOLS]
        lines.append([f"{label}, paper", "", "batch" if label.startswith("SoSN") else "", *printed, ""])
        for statistics in STATISTICS:
            cells = [
                figure(entries, TABLE, row, "test", protocol, statistics) for row, protocol in zip(rows, PROTOCOLS, strict=True)
            ]
            ours = [f"`{name}-{partition}-*`", statistics, *cells, seeds(entries, TABLE, rows)]
            lines.append([f"{label}, our run", *ours])
    return lines


def _best(entries: Sequence[Entry]) -> list[list[str]]:
    names = {"vinyals": "Vinyals", "paper": "random"}
    return [
        [
            names[partition], trained, f"`{name}-{trained}`",
            *(figure(entries, TABLE, f"{name}-{trained}", "test", protocol) for protocol in PROTOCOLS),
            seeds(entries, TABLE, [f"{name}-{trained}"]),
        ]
        for partition, name, _, _ in BEST
        for trained in TRAINED
    ]  # fmt: skip


def _one_model(entries: Sequence[Entry]) -> list[list[str]]:
    """SoSN trained 20-way, on every protocol."""
    names = {"vinyals": "Vinyals", "paper": "random"}
    lines = []
    for partition in PARTITIONS:
        for trained in TRAINED:
            row = f"sigme-{partition}-{trained}"
            cells = [figure(entries, TABLE, row, "test", protocol) for protocol in PROTOCOLS]
            lines.append([names[partition], f"`{row}`", *cells, seeds(entries, TABLE, [row])])
    return lines


def _rotated() -> str:
    """Shipped models on upright test classes and on the same at four angles, from their cards."""
    cards, lines = model_cards(), []
    for model in ("omniglot", "omniglot-5shot"):
        for classes, words in (("upright", []), ("four angles", ["all_rotations=true"])):
            cells = []
            for way, shot, query in PROTOCOLS.values():
                sizes = {"split": "test", "words": words, "way": way, "shot": shot, "query": query}
                cells.append(accuracy(next(one for one in cards[model]["figures"] if sizes.items() <= one.items())))
            lines.append([f"`{model}`", classes, *cells])
    lines.append(["Prototypical Nets (Snell et al., 2017)", "four angles", *(str(one) for one in SNELL.values())])
    return table(("model", "test classes", *PROTOCOLS), lines)
