"""The Recipe class: everything that decides a training run."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sosn.data.augmentation import AugmentationSection
from sosn.data.dataset import dataset_opener, dataset_options
from sosn.encoder import encoder_class, encoder_options
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import UsageError
from sosn.method import method_class, method_options
from sosn.method.test_time import TestTimeAugmentation
from sosn.power_norm import check_name
from sosn.recipe.old_keys import drop_removed, sort_model
from sosn.recipe.sections import (
    SECTIONS,
    DataSection,
    EncoderSection,
    EpisodesSection,
    ModelSection,
    PreprocessingSection,
    TrainingSection,
    ValidationSection,
)
from sosn.util.files import resource
from sosn.util.spelling import nearest
from sosn.util.typed import annotations, check_options, defaults

FROM_IMAGES = ("channels", "input_size", "mean", "std", "classes", "detail")  # taken from the training images unless set


@dataclass(frozen=True)
class Recipe:
    """A complete training run. Missing options get their defaults. Refuses values out of range."""

    title: str = ""
    seed: int = 0
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    encoder: EncoderSection = field(default_factory=EncoderSection)
    preprocessing: PreprocessingSection = field(default_factory=PreprocessingSection)
    test_time: TestTimeAugmentation = field(default_factory=TestTimeAugmentation)
    episodes: EpisodesSection = field(default_factory=EpisodesSection)
    augmentation: AugmentationSection = field(default_factory=AugmentationSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    validation: ValidationSection = field(default_factory=ValidationSection)

    def __post_init__(self) -> None:
        self._fill_in()
        self._resolve_paths()
        self._check()

    def _fill_in(self) -> None:
        """Fill in missing options with the defaults of the dataset, method, encoder and preprocessing."""
        method = method_class(self.model.method)
        dataset = {key: value for key, value in defaults(dataset_opener(self.data.name)).items() if key != "split"}
        usual = {key: value for key, value in defaults(method).items() if key in method_options(method.name)}
        usual = {key: value for key, value in usual.items() if key not in FROM_IMAGES}
        images = {key: value for key, value in defaults(Preprocessing).items() if key not in FROM_IMAGES}
        self._set("data", replace(self.data, options=dataset | self.data.options))
        self._set("model", replace(self.model, options=usual | self.model.options))
        images |= dict(method.usual_preprocessing) | self.preprocessing.options
        self._set("preprocessing", PreprocessingSection(images))
        if method.usual_encoder is None:
            if self.encoder != EncoderSection():
                raise UsageError(f"method {method.name!r} has no encoder: leave out [encoder]")
            return
        self._set("encoder", EncoderSection(*usual_encoder(method.name, self.encoder.name, self.encoder.options)))

    def _resolve_paths(self) -> None:
        """Make paths absolute, so that the run can be resumed from any folder."""
        dataset, _, path = self.data.name.partition(":")
        if path:
            self._set("data", replace(self.data, name=f"{dataset}:{Path(path).expanduser().absolute()}"))
        start = self.training.start
        if start and not resource("checkpoint", "shipped", f"{start}.safetensors").is_file():
            self._set("training", replace(self.training, start=str(Path(start).expanduser().absolute())))

    def _check(self) -> None:
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
        if "power_norm" in self.model.options:
            check_name(self.model.options["power_norm"])
        if self.validation.val_seed == self.validation.report_seed:
            raise UsageError(
                "val_seed and report_seed are equal, so weights would be tested on the episodes that selected them: change one"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def val_way(self) -> int:
        return self.validation.val_way or self.episodes.way

    @property
    def val_shot(self) -> int:
        return self.validation.val_shot or self.episodes.shot

    def to_table(self) -> dict[str, Any]:
        """Return the recipe as nested plain values, with options in their sections."""
        table: dict[str, Any] = {"title": self.title, "seed": self.seed}
        for name in SECTIONS:
            section = getattr(self, name)
            values = {f.name: getattr(section, f.name) for f in fields(section) if f.name != "options"}
            table[name] = values | getattr(section, "options", {})
        return table

    def to_toml(self) -> str:
        """Return the recipe as TOML, which loads as the same recipe."""
        table = self.to_table()
        lines = [f"{key} = {_toml(table[key])}" for key in ("title", "seed")]
        for name in SECTIONS:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table[name].items())]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    text = json.dumps("none" if value is None else value, ensure_ascii=False)  # JSON scalars and lists are TOML
    return text.replace("\x7f", "\\u007f")


def usual_encoder(method: str, name: str = "", options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name of an encoder, by default the method's usual one, and its options with defaults filled in."""
    usual = dict(method_class(method).usual_encoder or {})
    usual_name = usual.pop("name", "")
    name = name or usual_name
    known = {key: value for key, value in defaults(encoder_class(name)).items() if key != "channels"}
    usual = {key: value for key, value in usual.items() if key in known}  # another encoder keeps what it has too, as width
    return name, known | usual | dict(options or {})


def from_table(table: Mapping[str, Any], where: str) -> Recipe:
    """Build a recipe from nested plain values. Refuses unknown keys, with a suggestion, and values of a wrong type."""
    known: dict[str, Any] = {"title": str, "seed": int}
    given = {key: value for key, value in table.items() if key not in SECTIONS}
    for key in given:
        if key not in known:
            raise UsageError(f"{where} has no key {key!r}{nearest(key, (*known, *SECTIONS))}")
    for name in SECTIONS:
        if not isinstance(table.get(name, {}), Mapping):
            raise UsageError(f"{where}: {name!r} is a section, written [{name}]")
    values = {name: drop_removed(name, table.get(name, {})) for name in SECTIONS}
    for name, old in sort_model(values["model"]).items():
        values[name] = old if name == "model" else old | values[name]
    sections: dict[str, Any] = check_options(given, known, "")
    for name in SECTIONS:
        sections[name] = _section(name, values)
    return Recipe(**sections)


def _section(name: str, table: Mapping[str, Mapping[str, Any]]) -> Any:
    fixed, options = known_keys(name, table)
    checked = check_options(table[name], fixed | options, f"[{name}]")
    extra = {key: value for key, value in checked.items() if key in options}
    plain = {key: value for key, value in checked.items() if key in fixed}
    with_options = "options" in annotations(SECTIONS[name])
    return SECTIONS[name](**plain, options=extra) if with_options else SECTIONS[name](**plain)


def known_keys(name: str, table: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of a section and their types: the fixed ones, and the options of the dataset, method or encoder."""
    fixed = annotations(SECTIONS[name], without=("options",))
    method = str(table.get("model", {}).get("method", ModelSection.method))
    if name == "data":
        return fixed, dataset_options(str(table.get("data", {}).get("name", DataSection.name)))
    if name == "model":
        return fixed, method_options(method)
    if name == "preprocessing":
        return fixed, annotations(Preprocessing)
    if name == "encoder":
        usual = (method_class(method).usual_encoder or {}).get("name", "")
        named = str(table.get("encoder", {}).get("name") or usual)
        return fixed, encoder_options(named) if named else {}
    return fixed, {}


def data_keys(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of a recipe's [data] and their types, including the options of its dataset."""
    fixed, options = known_keys("data", {"data": {"name": recipe.data.name}})
    return fixed | options


def without_place(recipe: Recipe) -> Recipe:
    """Return the recipe without its title and the settings of the machine, to compare two recipes."""
    data, training = replace(recipe.data, workers=0), replace(recipe.training, device="auto", engine="auto")
    return replace(recipe, title="", data=data, training=training)
