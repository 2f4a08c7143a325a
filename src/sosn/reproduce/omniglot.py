"""Rows for Omniglot: the paper's table (four methods, two partitions, four protocols), best recipes, image sizes."""

from collections.abc import Iterator
from dataclasses import replace

from sosn.reproduce.row import FIRST_STAGE, Measure, Row, words

TABLE = "omniglot"
PROTOCOLS = {
    "5w1s": (5, 1, 1),
    "5w5s": (5, 5, 5),
    "20w1s": (20, 1, 1),
    "20w5s": (20, 5, 2),
}  # way, shot, the paper's test queries
METHODS = {  # id: label in the paper, settings
    "sigme": ("SoSN(⊗)+SigmE", words("eta=100")),
    "asinhe": ("SoSN(⊗)+AsinhE", words("power_norm=asinhe gamma=100 trace_normalise=false")),
    "relation-net": ("Relation Net", words("method=relation_net clip=0.5")),
    "prototypical": ("Prototypical Net", words("method=prototypical")),
}
SHARED = words(
    "optimiser=adamw learning_rate=0.002 schedule=cosine average=0.999 precision=bf16 steps=2500 every=1250 val_episodes=200 "
    "val_query=5"
)  # of every row; the recipes add rotated classes and the paper's training queries
BUDGET = {5: words("episodes_per_step=8"), 20: words("episodes_per_step=4")}  # 20,000 and 10,000 episodes, by way
SIZES = (20, 28, 42, 56)
SMALL = words("steps=1500 every=750")  # of rows that compare image sizes: 6,000 episodes
PARTITIONS = ("vinyals", "paper")
OVERLAP = {"tests": 423, "trained": 262, "chose": 42}  # of "paper": test classes, and those in train and val of "vinyals"
FIRST = "Conv-4 with two more blocks, classifier of second-order matrices, nearest by cosine"
BEST = (  # partition, prefix of ids, group, settings
    ("vinyals", "best", "best recipe", ()),
    ("paper", "best-paper", "best recipe, paper partition", words("partition=paper")),
)


def group(partition: str) -> str:
    """Return the group of the paper's rows on a partition."""
    return f"{partition} partition"


def _row(name: str, label: str, protocol: str, partition: str, settings: tuple[str, ...], test: tuple[str, ...]) -> Row:
    measures = tuple(Measure(split, *PROTOCOLS[one]) for split, one in (("val", protocol), *(("test", one) for one in test)))
    overrides = (f"partition={partition}", *SHARED, *BUDGET[PROTOCOLS[protocol][0]], *settings)
    return Row(TABLE, group(partition), name, label, f"omniglot-{protocol}", overrides, measures)


def _rows() -> Iterator[Row]:
    for partition in PARTITIONS:
        for name, (label, settings) in METHODS.items():
            for protocol, (way, _, _) in PROTOCOLS.items():  # a model trained 20-way is tested on all four protocols
                test = tuple(PROTOCOLS) if way == 20 else (protocol,)
                yield _row(f"{name}-{partition}-{protocol}", label, protocol, partition, settings, test)
    label, settings = METHODS["sigme"]
    for size in SIZES:
        overrides = (*settings, f"size={size}", *SMALL)
        row = _row(f"size-{size}", f"{label}, drawings brought to {size}²", "20w1s", "vinyals", overrides, ())
        yield replace(row, group="image size")
    for partition, name, title, overrides in BEST:
        first = _row(f"{name}-pretrain", FIRST, "20w1s", partition, (), ())
        yield replace(first, group=FIRST_STAGE, recipe="omniglot-best-pretrain", words=overrides)
        for protocol in ("20w1s", "20w5s"):
            best = _row(f"{name}-{protocol}", "SoSN(⊗+R)+SigmE, two stages", protocol, partition, (), tuple(PROTOCOLS))
            recipe = f"omniglot-best-{protocol}"
            yield replace(best, beside=label, group=title, recipe=recipe, words=overrides, start=first.id)


ROWS = tuple(_rows())
