"""Override a recipe with key=value words."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from sosn.encoder import encoder_options
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import UsageError
from sosn.method import method_class, method_options
from sosn.recipe.library import as_recipe
from sosn.recipe.old_keys import MOVED, current_key, is_inactive, refuse_removed
from sosn.recipe.recipe import Recipe, from_table, known_keys, usual_encoder
from sosn.recipe.sections import SECTIONS
from sosn.util.spelling import nearest
from sosn.util.typed import annotations, check_options, defaults, parse

LAST = ("encoder", "preprocessing")  # if another section has a key of the same name, that section is meant


def override(recipe: Recipe | str | os.PathLike[str], assignments: Iterable[str]) -> Recipe:
    """Return the recipe with key=value words applied. A key may omit its section if only one section has it (steps).

    A new dataset resets the options of the old dataset, and a new encoder those of the old encoder. A new method is applied
    first: it keeps the options that were set and that it has too, and uses its usual loss and encoder unless they are given.
    Refuses unknown keys and values of a wrong type.
    """
    if isinstance(assignments, str):
        raise UsageError(f"override takes a list of words, not a string: write [{assignments!r}]")
    table, assignments = as_recipe(recipe).to_table(), list(assignments)
    named = {word.partition("=")[0].strip() for word in assignments}
    for assignment in sorted(assignments, key=_order):
        key, equals, text = assignment.partition("=")
        refuse_option(key)
        if not equals:
            raise UsageError(f"{assignment!r} is not key=value: write, for example, steps=2000")
        key, value = key.strip(), parse(text)
        text = value if isinstance(value, str) else text  # a name may be quoted
        if key in ("title", "seed"):
            table[key] = value
            continue
        refuse_removed(key)
        if is_inactive(key, value, table["encoder"].get("name", "")):
            continue
        section, name = _locate(current_key(key), table)
        if section == "data" and name == "name" and text != table["data"]["name"]:  # drop the old dataset's options
            table["data"] = {key: value for key, value in table["data"].items() if key in annotations(SECTIONS["data"])}
        if section == "model" and name == "method" and text != table["model"]["method"]:
            _change_method(table, text)
            if not named & {"loss", "training.loss"}:
                table["training"]["loss"] = method_class(text).own_loss
        if section == "encoder" and name == "name" and text != table["encoder"].get("name"):
            _change_encoder(table, text)
        table[section][name] = value
    return from_table(table, "the command line")


def _order(word: str) -> int:
    """Sort methods first, then encoders, because other keys may be their options."""
    key = current_key(word.partition("=")[0].strip())
    return 0 if key in ("method", "model.method") else 1 if key == "encoder.name" else 2


def _change_method(table: dict[str, Any], name: str) -> None:
    """Change the method of a table, and keep options, encoder and preprocessing that were set and fit."""
    old, new = method_class(table["model"]["method"]), method_class(name)
    usual = defaults(old)
    kept = {key: value for key, value in table["model"].items() if value != usual.get(key)}
    table["model"] = _fitting(kept, method_options(name))
    usual = defaults(Preprocessing) | dict(old.usual_preprocessing)
    images = {key: value for key, value in table["preprocessing"].items() if value != usual.get(key)}
    table["preprocessing"] = dict(new.usual_preprocessing) | images
    if old.usual_encoder is None or new.usual_encoder is None:
        table["encoder"] = {}
        return
    plain, options = usual_encoder(old.name)
    usual = {"name": plain} | options
    kept = {key: value for key, value in table["encoder"].items() if value != usual.get(key)}
    plain, options = usual_encoder(name, kept.pop("name", ""))
    table["encoder"] = {"name": plain} | options | _fitting(kept, encoder_options(plain))


def _change_encoder(table: dict[str, Any], name: str) -> None:
    """Change the encoder of a table, and keep options that were set and that it has too."""
    _, options = usual_encoder(table["model"]["method"], table["encoder"].get("name", ""))
    kept = {key: value for key, value in table["encoder"].items() if key != "name" and value != options.get(key)}
    table["encoder"] = {"name": name} | _fitting(kept, encoder_options(name))


def _fitting(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are known and have a valid value: the same name may have another meaning."""
    fitting: dict[str, Any] = {}
    for key, value in options.items():
        with suppress(UsageError):
            fitting |= check_options({key: value}, known, "")
    return fitting


def refuse_option(word: str) -> None:
    """Raise UsageError for --steps, which should be steps=2000."""
    if word.startswith("-"):
        raise UsageError(f"there is no option {word}: write settings without dashes, {word.lstrip('-')}=VALUE")


def _locate(key: str, table: Mapping[str, Any]) -> tuple[str, str]:
    known = {name: set().union(*known_keys(name, table)) for name in SECTIONS}
    section, dot, name = key.rpartition(".")
    if dot:
        for home in (section, *(MOVED if section == "model" else ())):
            if name in known.get(home, ()):
                return home, name
    else:
        homes = [home for home, keys in known.items() if name in keys]
        homes = [home for home in homes if home not in LAST] or homes
        if len(homes) == 1:
            return homes[0], name
        if homes:
            raise UsageError(f"{name!r} is in several sections: write {' or '.join(f'{h}.{name}' for h in homes)}")
    everything = [k for keys in known.values() for k in keys] + [f"{s}.{k}" for s, keys in known.items() for k in keys]
    raise UsageError(f"there is no key {key!r}{nearest(key, everything)}; `sosn recipes NAME --json` shows every key")
