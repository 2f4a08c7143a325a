"""Use a timm backbone as a classifier that needs no training."""

from pathlib import Path
from typing import Any

from sosn.checkpoint.state_dict import read_state_dict
from sosn.encoder.timm import create_timm
from sosn.errors import CheckpointError
from sosn.method.two_orders import TwoOrders

REDUCED = 192  # channels of second-order statistics


def open_timm(model: str, weights: Path | None = None, **options: Any) -> TwoOrders:
    """Return first- and second-order statistics of a frozen timm backbone, compared as the model for photos does.

    weights: a safetensors file, or a PyTorch state dict, which is read without running code; weights of a classifier head are
    ignored. None downloads timm's weights. Image size, crop, mean and standard deviation come from timm. Refuses weights of
    another network.
    """
    source = create_timm(model, pretrained=weights is None)
    about = source.pretrained_cfg
    size = int((about.get("test_input_size") or about["input_size"])[-1])
    images = {"input_size": options.pop("input_size", size), "mean": list(about["mean"]), "std": list(about["std"])}
    images["centre_crop"] = float(about.get("crop_pct") or 0.875)
    usual: dict[str, Any] = {"reduce": min(REDUCED, int(source.num_features))}
    method = TwoOrders(encoder={"name": "timm", "model": model}, preprocessing=images, **usual | options)
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
