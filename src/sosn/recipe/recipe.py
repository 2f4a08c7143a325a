"""A run as a typed, commented TOML file; key=value on the command line overrides anything in it."""

import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from sosn.data.augmentation import AugmentationSection
from sosn.data.dataset import dataset_opener, dataset_options
from sosn.errors import UsageError
from sosn.method import method_class
from sosn.method.base import LossName
from sosn.util.files import resource
from sosn.util.spelling import nearest
from sosn.util.typed import annotations, check_options, defaults, parse

RECIPE_FILE = "recipe.toml"
FROM_IMAGES = (
    "channels",
    "input_size",
    "mean",
    "std",
    "classes",
    "detail",
)  # what a method takes from the training images unless it is told


@dataclass(frozen=True)
class DataSection:
    """Where images come from. Other keys are the dataset's own."""

    name: str = "glyphs"
    min_images: int = 0  # leave out classes with fewer
    leave_out_small: bool = False  # leave out classes that cannot fill an episode, and say how many
    standardise: bool = True  # give the model the mean and deviation of the training images
    workers: int = 0  # processes that read training images ahead from disk; 0 keeps all images on the device
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSection:
    """Which method. Other keys are its constructor's; channels and input_size follow the images unless set."""

    method: str = "sosn"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodesSection:
    """What an episode is, in training and, unless [validation] says otherwise, in validation."""

    way: int = 5
    shot: int = 1
    query: int = 15  # query images a class
    episodes_per_step: int = 1
    related: float = 0.0  # share of training episodes whose classes are of one alphabet, as far as it goes


@dataclass(frozen=True)
class TrainingSection:
    """How the weights are found."""

    start: str = ""  # a run folder, weights file or shipped model whose weights training begins with, where they fit
    steps: int = 1000
    loss: LossName = "mse"
    optimiser: Literal["adam", "adamw", "sgd"] = "adam"  # sgd: with Nesterov momentum 0.9
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "step", "cosine"] = "constant"
    decay_every: int = 50_000  # schedule = "step": steps between two cuts of the learning rate
    decay_factor: float = 0.5
    warmup: int = 0  # steps over which the learning rate rises from 0
    clip: float = 0.0  # largest norm of the gradient; 0 means no limit
    precision: Literal["fp32", "bf16"] = "fp32"
    average: float = 0.0  # decay of the moving average of weights that is validated and kept; 0 means the weights themselves
    recalibrate: int = 20  # training steps over which batch norm's running statistics are taken anew before each validation
    device: str = "auto"
    engine: Literal["auto", "plain"] = "auto"  # plain: the layers one by one, without fused kernels or a captured step


@dataclass(frozen=True)
class ValidationSection:
    """When and on what the weights are judged."""

    every: int = 200  # steps
    val_episodes: int = 200
    val_way: int = 0  # 0 means as in training
    val_shot: int = 0
    val_query: int = 15
    val_seed: int = 1  # of the episodes that select the weights
    report_episodes: int = 600
    report_seed: int = 0  # of the episodes that the closing figure comes from


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run; options that are not given stand here with their defaults."""

    title: str = ""
    seed: int = 0
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    episodes: EpisodesSection = EpisodesSection()
    augmentation: AugmentationSection = field(default_factory=AugmentationSection)
    training: TrainingSection = TrainingSection()
    validation: ValidationSection = ValidationSection()

    def __post_init__(self) -> None:
        dataset, method = defaults(dataset_opener(self.data.name)), defaults(method_class(self.model.method))
        method = {key: value for key, value in method.items() if key not in FROM_IMAGES}
        dataset.pop("split", None)
        kind, _, path = self.data.name.partition(":")
        if path:  # a run must find its images from any folder
            object.__setattr__(self, "data", replace(self.data, name=f"{kind}:{Path(path).expanduser().absolute()}"))
        if self.training.start and not (resource("checkpoint", "shipped") / f"{self.training.start}.safetensors").is_file():
            path = str(Path(self.training.start).expanduser().absolute())
            object.__setattr__(self, "training", replace(self.training, start=path))
        object.__setattr__(self, "data", replace(self.data, options=dataset | self.data.options))
        object.__setattr__(self, "model", replace(self.model, options=method | self.model.options))
        for section, name, least in (
            (self.data, "workers", 0),
            (self.episodes, "episodes_per_step", 1), (self.training, "steps", 1), (self.training, "recalibrate", 0),
            (self.training, "warmup", 0), (self.training, "decay_every", 1), (self.training, "clip", 0),
            (self.training, "weight_decay", 0), (self.validation, "every", 1), (self.validation, "val_episodes", 2),
            (self.validation, "report_episodes", 2),
        ):  # fmt: skip
            if not least <= (value := getattr(section, name)) < math.inf:
                raise UsageError(
                    f"{name} is {value}; it must be {least} or more{'' if math.isfinite(value) else ', and finite'}"
                )
        if not 0 < (rate := self.training.learning_rate) < math.inf:
            raise UsageError(f"learning_rate is {rate}; it must be above 0{'' if math.isfinite(rate) else ', and finite'}")
        if not 0 < self.training.decay_factor <= 1:
            raise UsageError(f"decay_factor is {self.training.decay_factor}; it must lie between 0 and 1")
        if not 0 <= self.training.average < 1:
            raise UsageError(f"average is {self.training.average}; the decay must lie between 0 and 1")
        if self.validation.val_seed == self.validation.report_seed:
            raise UsageError("val_seed and report_seed are the same: weights would be reported on the episodes that chose them")

    @property
    def val_way(self) -> int:
        return self.validation.val_way or self.episodes.way

    @property
    def val_shot(self) -> int:
        return self.validation.val_shot or self.episodes.shot

    def to_table(self) -> dict[str, Any]:
        """The recipe as nested plain values, options beside their section's own keys."""
        table: dict[str, Any] = {"title": self.title, "seed": self.seed}
        for name in _SECTIONS:
            section = getattr(self, name)
            own = {f.name: getattr(section, f.name) for f in fields(section) if f.name != "options"}
            table[name] = own | getattr(section, "options", {})
        return table

    def to_toml(self) -> str:
        """The recipe as TOML that reads back to the same recipe."""
        table = self.to_table()
        lines = [f"{key} = {_toml(table[key])}" for key in ("title", "seed")]
        for name in _SECTIONS:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table[name].items())]
        return "\n".join(lines) + "\n"


_SECTIONS: dict[str, type[Any]] = {
    "data": DataSection,
    "model": ModelSection,
    "episodes": EpisodesSection,
    "augmentation": AugmentationSection,
    "training": TrainingSection,
    "validation": ValidationSection,
}


def _toml(value: Any) -> str:
    text = json.dumps("none" if value is None else value, ensure_ascii=False)  # JSON scalars and lists are TOML
    return text.replace("\x7f", "\\u007f")


def from_table(table: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from nested plain values; unknown and ill-typed keys are refused with the nearest right name."""
    known: dict[str, Any] = {"title": str, "seed": int}
    given = {key: value for key, value in table.items() if key not in _SECTIONS}
    for key in given:
        if key not in known:
            raise UsageError(f"{where} has no key {key!r}{nearest(key, (*known, *_SECTIONS))}")
    sections: dict[str, Any] = check_options(given, known, "")
    for name in _SECTIONS:
        values = table.get(name, {})
        if not isinstance(values, Mapping):
            raise UsageError(f"{where}: {name!r} is a section, written [{name}]")
        sections[name] = _section(name, values)
    return Recipe(**sections)


def _section(name: str, values: Mapping[str, Any]) -> Any:
    section_class = _SECTIONS[name]
    own, options = known_keys(name, values)
    checked = check_options(values, own | options, f"[{name}]")
    extra = {key: value for key, value in checked.items() if key in options}
    plain = {key: value for key, value in checked.items() if key in own}
    return section_class(**plain, options=extra) if name in ("data", "model") else section_class(**plain)


def known_keys(name: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of a section: its own, and those of the dataset or method it names."""
    own = annotations(_SECTIONS[name], without=("options",))
    if name == "data":
        return own, dataset_options(str(values.get("name", DataSection.name)))
    if name == "model":
        return own, annotations(method_class(str(values.get("method", ModelSection.method))))
    return own, {}


def data_keys(recipe: Recipe) -> dict[str, Any]:
    """Keys of a recipe's [data], those of its dataset included, and their types."""
    own, options = known_keys("data", {"name": recipe.data.name})
    return own | options


def as_recipe(recipe: Recipe | str | os.PathLike[str]) -> Recipe:
    """A recipe as it is, or the one of this name, file or run folder."""
    if isinstance(recipe, str | os.PathLike):
        return load_recipe(os.fspath(recipe))
    if not isinstance(recipe, Recipe):
        raise UsageError(f"a recipe is {type(recipe).__name__}; give a Recipe, or its name, file or run folder")
    return recipe


def override(recipe: Recipe | str | os.PathLike[str], assignments: Iterable[str]) -> Recipe:
    """Apply key=value words; a key is a section's (training.steps) or, where only one section has it, bare (steps).

    Another dataset drops the options of the old one. Another method, whose word is taken first, keeps those that had been set
    and that it has too, and brings its own loss unless one is given.
    """
    if isinstance(assignments, str):
        raise UsageError(f"override takes a list of words, not one: write [{assignments!r}]")
    table, assignments = as_recipe(recipe).to_table(), list(assignments)
    named = {word.partition("=")[0].strip() for word in assignments}
    for assignment in sorted(assignments, key=lambda word: word.partition("=")[0].strip() not in ("method", "model.method")):
        key, equals, text = assignment.partition("=")
        refuse_option(key)
        if not equals:
            raise UsageError(f"{assignment!r} is no key=value: write for instance steps=2000")
        key = key.strip()
        if key == "data":  # data=folder:PATH, the word people reach for
            key = "data.name"
        if key in ("title", "seed"):
            table[key] = parse(text)
            continue
        section, name = _locate(key, table)
        if section == "data" and name == "name" and text != table["data"]["name"]:  # other options belonged to the old one
            table["data"] = _own_keys("data", table)
        if section == "model" and name == "method" and text != table["model"]["method"]:
            usual = defaults(method_class(table["model"]["method"]))
            kept = {key: value for key, value in table["model"].items() if value != usual.get(key)}
            table["model"] = _fitting(kept, annotations(method_class(text)))
            if not named & {"loss", "training.loss"}:
                table["training"]["loss"] = method_class(text).own_loss
        table[section][name] = parse(text)
    return from_table(table, "the command line")


def _fitting(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that another method has too, with values that it takes: the same word may mean something else there."""
    fitting: dict[str, Any] = {}
    for key, value in options.items():
        with suppress(UsageError):
            fitting |= check_options({key: value}, known, "[model]")
    return fitting


def refuse_option(word: str) -> None:
    """Refuse --steps where steps=2000 is meant."""
    if word.startswith("-"):
        raise UsageError(f"there is no option {word}: settings are words without dashes, {word.lstrip('-')}=VALUE")


def _own_keys(section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A section without the options of the dataset or method that it names."""
    return {key: value for key, value in table[section].items() if key in annotations(_SECTIONS[section])}


def _locate(key: str, table: Mapping[str, Any]) -> tuple[str, str]:
    known = {name: set().union(*known_keys(name, table[name])) for name in _SECTIONS}
    section, dot, name = key.rpartition(".")
    if dot:
        if section in known and name in known[section]:
            return section, name
    else:
        homes = [home for home, keys in known.items() if name in keys]
        if len(homes) == 1:
            return homes[0], name
        if homes:
            raise UsageError(f"{name!r} stands in several sections: write {' or '.join(f'{h}.{name}' for h in homes)}")
    everything = [k for keys in known.values() for k in keys] + [f"{s}.{k}" for s, keys in known.items() for k in keys]
    raise UsageError(f"there is no key {key!r}{nearest(key, everything)}; `sosn recipes NAME --json` shows every key")


def shipped() -> list[str]:
    """Names of the recipes in the package."""
    folder = resource("recipe", "shipped")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def recipe_text(name_or_path: str) -> str:
    """The TOML of a shipped recipe, of a file, or of a run folder."""
    if name_or_path in shipped():
        return resource("recipe", "shipped", f"{name_or_path}.toml").read_text("utf-8")
    path = Path(name_or_path)
    if path.is_dir():
        path = path / RECIPE_FILE
    if not path.is_file():
        raise UsageError(
            f"there is no recipe {name_or_path!r}{nearest(name_or_path, shipped())}: give a file, a run folder, or one of "
            f"{', '.join(shipped())}"
        )
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is no recipe: it is not valid TOML, which is text") from None


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by name, file or run folder."""
    try:
        table = tomllib.loads(recipe_text(name_or_path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {name_or_path!r} is not valid TOML: {error}") from None
    return from_table(table, f"recipe {name_or_path!r}")


def without_place(recipe: Recipe) -> Recipe:
    """The recipe less what decides only where it runs, for comparing two."""
    data, training = replace(recipe.data, workers=0), replace(recipe.training, device="auto", engine="auto")
    return replace(recipe, title="", data=data, training=training)
