"""Rows of the paper's Omniglot table (four methods, two partitions, four protocols), best recipes, and image sizes."""

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
)  # of every row; the recipes bring classes by rotation and the paper's training queries
BUDGET = {5: words("episodes_per_step=8"), 20: words("episodes_per_step=4")}  # 20,000 and 10,000 episodes, by way
SIZES = (20, 28, 42, 56)
SMALL = words("steps=1500 every=750")  # of rows that compare image sizes: 6,000 episodes
DIFFERS = {
    "vinyals": "Vinyals' partition, its 172 validation classes choose the weights (the paper: 1200/423; the authors' script: "
    "by folder order, chosen on test classes)",
    "paper": "a seeded 1100/100/423 partition, 100 of the paper's 1200 training classes choose the weights (the paper: none)",
}
OVERLAP = {"tests": 423, "trained": 262, "chose": 42}  # test classes of the paper's kind; of them, Vinyals' train and val
REMARKS = {
    "SoSN(⊗)+AsinhE": "γ′ = 100, of the matrix as it is, not divided by its trace",
    "SoSN(⊗)+SigmE": "η′ = 100; the authors' script has 1, which all but turns SigmE off",
    "Relation Net": "adds up the maps of several shots, as its authors do, so trained with one shot it cannot judge five",
    "Prototypical Net": "trained with as many classes as it is named after (its authors: 60)",
}
FIRST = "Conv-4 with two more blocks, classifier of second-order matrices, nearest by cosine"
TURNED = (
    "training characters at right angles are classes of their own (the paper: images turned at random; the script: an angle an "
    "episode)"
)
BEST_DIFFERS = (
    f"{TURNED}; "
    "⊗+R, which at one shot is ⊗; η′ = 100, β = 1 (the paper tells no value); 28² images enlarged to 42²; an encoder of six "
    "blocks (the paper: four) that first learnt to tell the training classes apart, in 12,000 batches of 512 images; affine "
    "augmentation; features of copies turned by up to 12 degrees too in evaluation; cross-entropy, not MSE; 24,000 episodes, "
    "8 a step, of 5 queries a class; AdamW, a cosine schedule, averaged weights, half precision"
)
BEST = (  # partition, what ids begin with, group, settings
    ("vinyals", "best", "best recipe", ()),
    ("paper", "best-paper", "best recipe, paper partition", words("partition=paper")),
)


def _budget(episodes: str) -> str:
    """What rows that were trained on so many episodes have otherwise than the paper."""
    return (
        f"{TURNED}; {episodes} (the script: one a step, up to a million); AdamW without weight decay, at 0.002, with a "
        "cosine schedule (the script: Adam at 0.001, a tenth of it after every 50,000), averaged weights, half precision; "
        "β = 0 (the paper tells no value)"
    )


BUDGET_DIFFERS = _budget("20,000 episodes, 8 a step, 5-way and 10,000, 4 a step, 20-way")
SMALL_DIFFERS = _budget("6,000 episodes, 4 a step")


def group(partition: str) -> str:
    """The group of the paper's rows on a partition."""
    return f"{partition} partition"


def _row(name: str, label: str, protocol: str, partition: str, settings: tuple[str, ...], test: tuple[str, ...]) -> Row:
    measures = tuple(Measure(split, *PROTOCOLS[one]) for split, one in (("val", protocol), *(("test", one) for one in test)))
    own = (f"partition={partition}", *SHARED, *BUDGET[PROTOCOLS[protocol][0]], *settings)
    differs = f"{DIFFERS[partition]}; {BUDGET_DIFFERS}"
    remark = REMARKS.get(label, "")
    return Row(TABLE, group(partition), name, label, f"omniglot-{protocol}", own, measures, differs, remark)


def _rows() -> Iterator[Row]:
    for partition in DIFFERS:
        for name, (label, settings) in METHODS.items():
            for protocol, (way, _, _) in PROTOCOLS.items():  # a model trained 20-way is tested on all four protocols
                test = tuple(PROTOCOLS) if way == 20 else (protocol,)
                yield _row(f"{name}-{partition}-{protocol}", label, protocol, partition, settings, test)
    label, settings = METHODS["sigme"]
    for size in SIZES:
        own = (*settings, f"size={size}", *SMALL)
        row = _row(f"size-{size}", f"{label}, drawings brought to {size}²", "20w1s", "vinyals", own, ())
        yield replace(row, group="image size", differs=f"{DIFFERS['vinyals']}; {SMALL_DIFFERS}")
    for partition, name, title, own in BEST:
        first = _row(f"{name}-pretrain", FIRST, "20w1s", partition, (), ())
        yield replace(first, group=FIRST_STAGE, recipe="omniglot-best-pretrain", words=own, differs="no rival of the paper's")
        for protocol in ("20w1s", "20w5s"):
            best = _row(f"{name}-{protocol}", "SoSN(⊗+R)+SigmE, two stages", protocol, partition, (), tuple(PROTOCOLS))
            yield replace(
                best, beside=label, group=title, recipe=f"omniglot-best-{protocol}", words=own, remark="", start=first.id,
                differs=f"{DIFFERS[partition]}; {BEST_DIFFERS}",
            )  # fmt: skip


ROWS = tuple(_rows())
