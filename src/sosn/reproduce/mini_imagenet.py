"""Rows for miniImageNet: the paper's table at one budget, SoSN at the paper's budget, best recipes, ablations."""

from dataclasses import replace

from sosn.reproduce.row import FIRST_STAGE, LONG, Measure, Row, words

TABLE = "mini-imagenet"
SHOTS = {"5w1s": 1, "5w5s": 5}
SHARED = words(
    "episodes_per_step=4 query=10 optimiser=adamw learning_rate=0.001 schedule=cosine average=0.999 precision=bf16 "
    "flip=true translate=0.1 jitter=0.3"
)
BUDGET = words("steps=15000 every=5000")  # 60,000 episodes per row
SMALL = words("steps=5000 every=2500")  # 20,000 episodes, for ablations
ADAPTS = words("recalibrate=0 precision=fp32")  # methods with gradient steps inside: no running statistics, full precision
METHODS = {  # id: label in the paper, settings, protocols
    "full": ("SoSN(⊗+F)+SigmE", "relation=full", "5w1s 5w5s"),
    "full-32": ("SoSN(⊗+F)+SigmE", "relation=full encoder_width=32", "5w1s 5w5s"),
    "ranked": ("SoSN(⊗+R)+SigmE", "relation=ranked", "5w5s"),  # at one shot it is ⊗
    "none": ("SoSN(⊗) (no Power Norm.)", "power_norm=none trace_normalise=false", "5w1s 5w5s"),
    "asinhe": ("SoSN(⊗)+AsinhE", "power_norm=asinhe gamma=100 trace_normalise=false", "5w1s 5w5s"),
    "sigme": ("SoSN(⊗)+SigmE", "", "5w1s 5w5s"),
    "permutations": ("SoSN(⊗)+Permutation+SigmE", "permutations=3", "5w1s 5w5s"),
    "streams": ("SoSN(⊗)+Permutation+SigmE+Multiple-similarity Net.", "permutations=3 streams=3", "5w1s 5w5s"),
    "relation-net": ("Relation Net", "method=relation_net clip=0.5", "5w1s 5w5s"),
    "prototypical": ("Prototypical Net", "method=prototypical scale=0.02", "5w1s 5w5s"),
    "matching": ("Matching Nets", "method=matching scale=10 full_context=true", "5w1s 5w5s"),
    "maml": ("MAML", " ".join(("method=maml first_order=true encoder_width=32", *ADAPTS)), "5w1s 5w5s"),
    "meta-lstm": ("Meta-Learn Nets", " ".join(("method=meta_lstm encoder_width=32", *ADAPTS)), "5w1s 5w5s"),
}
LARGE = {  # at 224×224, which needs the original photos of ImageNet
    "sigme-224": ("SoSN(⊗)+SigmE (224×224)", ""),
    "permutations-224": ("SoSN(⊗)+Permutation+SigmE (224×224)", "permutations=3"),
    "streams-224": ("SoSN(⊗)+Permutation+SigmE (224×224)+Mult.-sim. Net.", "permutations=3 streams=3"),
}
ONE_BUDGET = "one budget"
PLAIN = "flip=false translate=0 jitter=0"
ABLATIONS = {  # family: what varies, then value → settings; "" is the base row, which the families share
    "eta": (
        "η′ of SigmE",
        {str(eta): f"eta={eta}" if eta != 100 else "" for eta in (1, 10, 50, 100, 200, 500)} | {"N": "eta=none"},
    ),
    "gamma": (
        "γ′ of AsinhE",
        {str(gamma): f"power_norm=asinhe gamma={gamma} trace_normalise=false" for gamma in (1, 10, 100, 1000)},
    ),
    "beta": ("mean shift β", {str(beta): f"shift={beta}" if beta else "" for beta in (0, 0.25, 0.5, 0.75, 1)}),
    "permutations": ("permutations P", {str(p): f"permutations={p}" if p > 1 else "" for p in (1, 2, 3, 5, 10)}),
    "size": ("image side", {str(size): f"input_size={size}" if size != 84 else "" for size in (28, 42, 56, 84)}),
    "augmentation": (
        "training images",
        {
            "none": PLAIN,
            "flip": "translate=0 jitter=0",
            "flip-shift": "jitter=0",
            "flip-shift-jitter": "",
            "right-angles": "rotate=episode",
            "right-angles-image": "rotate=image",
            "right-angles-classes": "rotations=true",
            "right-angles-alone": f"{PLAIN} rotate=episode",
        },
    ),
}
CLASSIFIER = "classifier of second-order matrices, nearest by cosine"
STAGES = (  # name, labels of the first and second stage, group
    ("best", f"Conv-4, {CLASSIFIER}", "SoSN(⊗+R)+SigmE, two stages", "best recipe"),
    ("resnet12", f"ResNet-12, {CLASSIFIER}", "ResNet-12 SoSN(⊗+R)+SigmE, two stages", "beyond the paper"),
)
BASE = "ablation-base"
OTHER = "one budget, other settings"  # settings that mattered in ablations, and a rival with a better one
OTHERS = {  # id: label, settings, the row that it differs from
    "unchanged": ("SoSN(⊗)+SigmE, training images as they are", PLAIN, "sigme"),
    "centred": ("SoSN(⊗)+SigmE, mean shift β = 1", "shift=1", "sigme"),
    "centred-asinhe": ("SoSN(⊗)+AsinhE, mean shift β = 1", f"{METHODS['asinhe'][1]} shift=1", "asinhe"),
    "centred-none": ("SoSN(⊗) (no Power Norm.), mean shift β = 1", f"{METHODS['none'][1]} shift=1", "none"),
    "matching-plain": ("Matching Nets without full context", "method=matching scale=10", "matching"),
}
LONGS = {  # id: addition to the label, settings, rows that it is compared with
    "long": ("", "", ("sigme", "unchanged")),
    "long-centred": (", mean shift β = 1", "shift=1", ("long",)),
}


def ablation_id(family: str, value: str) -> str:
    """Return the id of the row for a value of an ablation."""
    return f"{family}-{value}" if ABLATIONS[family][1][value] else BASE


def _row(group: str, name: str, label: str, recipe: str, settings: tuple[str, ...], protocol: str) -> Row:
    measures = tuple(Measure(split, 5, SHOTS[protocol], 15) for split in ("val", "test"))
    return Row(TABLE, group, name, label, recipe, settings, measures)


def _rows() -> list[Row]:
    rows = []
    for name, (label, settings, protocols) in METHODS.items():
        for protocol in protocols.split():
            overrides = (*SHARED, *BUDGET, *words(settings))
            rows.append(_row(ONE_BUDGET, f"{name}-{protocol}", label, f"mini-imagenet-{protocol}", overrides, protocol))
    for name, (label, settings) in LARGE.items():
        for protocol in SHOTS:
            overrides = (*SHARED, *BUDGET, *words(settings))
            rows.append(_row("224×224", f"{name}-{protocol}", label, f"mini-imagenet-{protocol}-224", overrides, protocol))
    for name, (label, settings, other) in OTHERS.items():
        for protocol in SHOTS:
            overrides = (*SHARED, *BUDGET, *words(settings))
            row = _row(OTHER, f"{name}-{protocol}", label, f"mini-imagenet-{protocol}", overrides, protocol)
            rows.append(replace(row, against=(f"{other}-{protocol}",)))
    for name, (more, settings, others) in LONGS.items():
        for protocol in SHOTS:
            label, overrides = METHODS["sigme"][0], ("precision=bf16", *words(settings))
            row = _row(LONG, f"{name}-{protocol}", f"{label}{more}", f"mini-imagenet-{protocol}", overrides, protocol)
            rows.append(replace(row, beside=label, against=tuple(f"{other}-{protocol}" for other in others)))
    for name, first, label, second in STAGES:
        stage = _row(FIRST_STAGE, f"{name}-pretrain", first, f"{TABLE}-{name}-pretrain", (), "5w1s")
        rows.append(replace(stage, measures=tuple(Measure("val", 5, shot, 15) for shot in SHOTS.values())))
        for protocol in SHOTS:
            row = _row(second, f"{name}-{protocol}", label, f"{TABLE}-{name}-{protocol}", (), protocol)
            rows.append(replace(row, start=stage.id, beside="SoSN(⊗)+SigmE"))
    rows.append(_ablation(BASE, "SigmE, η′ = 100, β = 0, P = 1, flip + shift + jitter, 84²", ""))
    for family, (what, values) in ABLATIONS.items():
        rows += [_ablation(f"{family}-{value}", f"{what}: {value}", settings) for value, settings in values.items() if settings]
    return rows


def _ablation(name: str, label: str, settings: str) -> Row:
    """Return a row that is evaluated on validation classes only, because ablations select settings."""
    measures = (Measure("val", 5, 1, 15),)
    return Row(TABLE, "ablation", name, label, "mini-imagenet-5w1s", (*SHARED, *SMALL, *words(settings)), measures)


ROWS = tuple(_rows())
