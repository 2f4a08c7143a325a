"""Keys of earlier versions, in recipes, in saved models and on the command line.

The options of the encoder, of preprocessing and of test-time augmentation were once in [model]; now they have sections.
Removed options are dropped if they were off, and refused otherwise.
"""

from collections.abc import Mapping
from typing import Any

from sosn.encoder import encoder_options
from sosn.encoder.preprocessing import Preprocessing
from sosn.errors import UsageError
from sosn.method import method_class, method_options
from sosn.method.test_time import TestTimeAugmentation
from sosn.util.typed import annotations

ENCODER = {  # old key: encoder, option, old default
    "conv4_pools": ("conv4", "pools", 2),
    "conv4_blocks": ("conv4", "blocks", 4),
    "resnet12_width": ("resnet12", "first_width", 64),
    "resnet12_pools": ("resnet12", "pools", 3),
    "resnet12_drop": ("resnet12", "drop", 0.0),
}
ALIASES = {  # keys without a section, on the command line
    "data": "data.name",
    "encoder": "encoder.name",
    "encoder_width": "encoder.width",
    **{key: f"encoder.{option}" for key, (_, option, _) in ENCODER.items()},
}
REMOVED: dict[str, dict[str, Any]] = {  # removed options by section, and the value that turned them off
    "data": {"reflections": False},
    "model": {"coordinates": 0, "coordinate_weight": 1.0, "auxiliary": 0.0},
    "episodes": {"related": 0.0},
    "augmentation": {"erase": 0.0},
}


MOVED = ("encoder", "preprocessing", "test_time")  # sections whose keys were once in [model]


def current_key(key: str) -> str:
    """Return the current name of a command-line key."""
    moved = ALIASES.get(key.removeprefix("model."), "")
    return moved if key in ALIASES or moved.startswith("encoder.") else key


def is_inactive(key: str, value: Any, encoder: str) -> bool:
    """Whether an old key belongs to another encoder and is off. Refuses one that is on."""
    name, _, default = ENCODER.get(key.removeprefix("model."), (encoder, "", None))
    if name == encoder:
        return False
    if value != default:
        raise UsageError(f"{key} is {value} and the encoder is {encoder or 'none'}: this option needs encoder {name}")
    return True


def refuse_removed(key: str) -> None:
    """Refuse a key of the command line that an earlier version had."""
    section, _, name = key.rpartition(".")
    if any(name in options for home, options in REMOVED.items() if section in ("", home)):
        raise UsageError(f"this version of sosn no longer has {name}: leave it out")


def drop_removed(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without removed options. Refuses a removed option that was on."""
    removed = REMOVED.get(section, {})
    for key, value in values.items():
        if key in removed and value != removed[key]:
            raise UsageError(f"{section}.{key} is {value!r}; this version of sosn no longer has {key}: leave it out")
    return {key: value for key, value in values.items() if key not in removed}


def sort_model(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Split a [model] table of any version into the sections model, encoder, preprocessing and test_time."""
    flat = drop_removed("model", values)
    method = flat.get("method", "sosn")
    options = method_options(method)
    if method == "sosn":
        flat.pop("classes", None)  # needed only by the removed auxiliary loss
    sections: dict[str, dict[str, Any]] = {name: {} for name in ("model", *MOVED)}
    homes = {"preprocessing": annotations(Preprocessing), "test_time": annotations(TestTimeAugmentation)}
    usual = (method_class(method).usual_encoder or {}).get("name", "")
    encoder = flat.get("encoder") or usual
    for key, value in flat.items():
        if key in options or key == "method":
            sections["model"][key] = value
        elif key == "encoder":
            sections["encoder"]["name"] = value
        elif key == "encoder_width":
            sections["encoder"]["width"] = value
        elif key in ENCODER:
            if not is_inactive(key, value, encoder):
                sections["encoder"][ENCODER[key][1]] = value
        elif usual and key in encoder_options(encoder):
            sections["encoder"][key] = value
        else:
            home = next((section for section, keys in homes.items() if key in keys), "model")
            sections[home][key] = value  # unknown keys are refused when [model] is read
    return sections
