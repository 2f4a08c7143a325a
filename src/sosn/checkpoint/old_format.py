"""Read files that earlier versions of sosn saved."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sosn.recipe.old_keys import sort_model

TIMM = "timm_prototype"  # formerly a separate method, now the nearest prototype on a timm encoder


def method_and_config(name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the constructor arguments of a saved method, whichever version saved it."""
    if name == TIMM:
        encoder = {"name": "timm", "model": config["backbone"]}
        images = {key: config[key] for key in ("input_size", "mean", "std")}
        options = {key: value for key, value in config.items() if key not in ("backbone", *images)}
        return "nearest_prototype", options | {"encoder": encoder, "preprocessing": images}
    if isinstance(config.get("preprocessing"), Mapping):
        return name, dict(config)
    sections = sort_model({"method": name} | dict(config))
    options = {key: value for key, value in sections.pop("model").items() if key != "method"}
    return name, options | {section: values for section, values in sections.items() if values}


def tensors_of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a saved method under their current names."""
    if name != TIMM:
        return dict(tensors)
    return {f"encoder.{key}" if key.startswith("backbone.") else key: value for key, value in tensors.items()}
