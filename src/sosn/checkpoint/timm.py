"""Use a timm backbone as a classifier that needs no training."""

from pathlib import Path
from typing import Any

from sosn.checkpoint.state_dict import read_state_dict
from sosn.encoder.timm import create_timm
from sosn.errors import CheckpointError
from sosn.method.nearest_prototype import NearestPrototype


def open_timm(model: str, weights: Path | None = None, **options: Any) -> NearestPrototype:
    """Return the nearest second-order prototype on a frozen timm backbone.

    weights: a safetensors file, or a PyTorch state dict, which is read without running code; weights of a classifier head are
    ignored. None downloads timm's weights. Image size, mean and standard deviation come from timm. Refuses weights of another
    network.
    """
    source = create_timm(model, pretrained=weights is None)
    about = source.pretrained_cfg
    size = int((about.get("test_input_size") or about["input_size"])[-1])
    images = {"input_size": options.pop("input_size", size), "mean": list(about["mean"]), "std": list(about["std"])}
    usual: dict[str, Any] = {"metric": "cosine", "scale": 10.0}
    method = NearestPrototype(encoder={"name": "timm", "model": model}, preprocessing=images, **usual | options)
    given = source.state_dict() if weights is None else read_state_dict(weights)
    backbone = {name.removeprefix("backbone."): tensor for name, tensor in method.encoder.state_dict().items()}
    for name, tensor in backbone.items():
        if name not in given or given[name].shape != tensor.shape:
            there = tuple(given[name].shape) if name in given else "absent"
            what = f"{name!r} is {there} there and {tuple(tensor.shape)} here"
            raise CheckpointError(f"{str(weights)!r} does not hold the weights of {model!r}: {what}")
    method.encoder.load_state_dict({f"backbone.{name}": given[name] for name in backbone})
    method.trained = True
    return method.eval()
