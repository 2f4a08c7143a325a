"""Files of earlier versions, read as those of this one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sosn.recipe.old_keys import sort_model

TIMM = "timm_prototype"  # once a method of its own, now the nearest prototype on a timm encoder


def method_and_config(name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and constructor's arguments of a saved method, whichever version saved it."""
    if name == TIMM:
        encoder = {"name": "timm", "model": config["backbone"]}
        images = {key: config[key] for key in ("input_size", "mean", "std")}
        own = {key: value for key, value in config.items() if key not in ("backbone", *images)}
        return "nearest_prototype", own | {"encoder": encoder, "preprocessing": images}
    if isinstance(config.get("preprocessing"), Mapping):
        return name, dict(config)
    sections = sort_model({"method": name} | dict(config))
    own = {key: value for key, value in sections.pop("model").items() if key != "method"}
    return name, own | {section: values for section, values in sections.items() if values}


def tensors_of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a saved method under the names that they have now."""
    if name != TIMM:
        return dict(tensors)
    return {f"encoder.{key}" if key.startswith("backbone.") else key: value for key, value in tensors.items()}
