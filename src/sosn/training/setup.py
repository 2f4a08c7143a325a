"""Build what a recipe describes: images, method, optimiser, processes."""

import os
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric

from sosn.data.bank import Bank
from sosn.data.dataset import open_bank
from sosn.data.sampler import leave_out_small
from sosn.errors import UsageError
from sosn.method import Method, method_class, method_options
from sosn.recipe.recipe import Recipe
from sosn.util.device import resolve_device
from sosn.util.seeding import generator

MOMENTUM = 0.9  # Nesterov's, of optimiser = "sgd"


def build(recipe: Recipe, bank: Bank) -> Method:
    """Build the method of a recipe for the images of a bank, with initial weights from the recipe's seed."""
    method_type, options = method_class(recipe.model.method), dict(recipe.model.options)
    if "classes" in method_options(method_type.name):  # methods that learn to classify the training classes
        options.setdefault("classes", len(bank.names))
    if method_type.usual_encoder is not None:
        options["encoder"] = {"name": recipe.encoder.name} | recipe.encoder.options
    images = fitted_preprocessing(recipe, bank)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator("weights", recipe.seed).initial_seed())
        method = method_type(preprocessing=images, test_time=recipe.test_time, **options)
    if method.preprocessing.by_pixel:
        mean_image = bank.mean_image().cpu()
        if recipe.augmentation.rotate != "none":  # images are rotated at random, so the mean is over the four rotations
            mean_image = torch.stack([mean_image.rot90(turns, (-2, -1)) for turns in range(4)]).mean(0)
        method.preprocessing.take_mean(mean_image)
    return method


def fitted_preprocessing(recipe: Recipe, bank: Bank) -> dict[str, Any]:
    """Return the preprocessing options of a recipe; what it does not set follows from the images of a bank."""
    wanted = recipe.preprocessing.options
    options: dict[str, Any] = {"channels": bank.channels, "input_size": bank.size}
    if wanted.get("input_size", 0) > bank.size:  # images are enlarged
        options["detail"] = bank.size
    if recipe.data.standardise and method_class(recipe.model.method).usual_encoder and not {"mean", "std"} & wanted.keys():
        mean, std = bank.mean_std()
        mean = (
            [1 - value for value in mean] if wanted["polarity"] == "inverted" else mean
        )  # standardisation follows the inversion
        channels = wanted.get("channels", bank.channels)
        if channels != len(mean):  # grey images for a colour model, or the reverse
            mean, std = ([sum(values) / len(values)] * channels for values in (mean, std))
        options |= {"std": std} if wanted["mean_image"] else {"mean": mean, "std": std}
    return options | wanted


def open_split(recipe: Recipe, split: str, say: Callable[[str], None] | None = None) -> Bank:
    """Open a split of a recipe's data. With leave_out_small, skips small classes and reports how many to `say`."""
    bank = open_bank(recipe.data.name, split, recipe.data.min_images, **recipe.data.options)
    if not recipe.data.leave_out_small:
        return bank
    episodes, wanted = recipe.episodes, recipe.validation
    shot, query = (episodes.shot, episodes.query) if split == "train" else (recipe.val_shot, wanted.val_query)
    return leave_out_small(bank, split, shot, query, say)


def make_optimiser(method: Method, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Create the recipe's optimiser; on a GPU, one that a CUDA graph can capture."""
    wanted = recipe.training
    on_gpu = device.type == "cuda"
    # a tensor, so that a captured step reads the current rate
    rate = torch.tensor(wanted.learning_rate, device=device) if on_gpu else wanted.learning_rate
    if wanted.optimiser == "sgd":  # only the fused one reads its rate on the GPU without synchronising
        return torch.optim.SGD(
            method.parameters(), rate, MOMENTUM, weight_decay=wanted.weight_decay, nesterov=True, fused=on_gpu or None
        )
    optimiser = torch.optim.AdamW if wanted.optimiser == "adamw" else torch.optim.Adam
    return optimiser(
        method.parameters(), rate, weight_decay=wanted.weight_decay, fused=on_gpu or None, capturable=on_gpu
    )  # fmt: skip


def _check_launcher(devices: int, nodes: int) -> None:
    """Refuse several nodes without a launcher, which would wait forever, and a wrong number of processes."""
    if nodes > 1 and not {"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys():
        raise UsageError(f"nodes is {nodes}: start the command on each machine with torchrun --nnodes {nodes}")
    started = int(os.environ.get("WORLD_SIZE", devices * nodes))
    if started != devices * nodes:
        raise UsageError(
            f"{started} processes were started, but devices={devices} and nodes={nodes} need {devices * nodes}: set --devices "
            "to torchrun's --nproc-per-node and --nodes to its --nnodes"
        )


def make_fabric(recipe: Recipe, devices: int = 1, nodes: int = 1) -> Fabric:
    """Set up the recipe's device and precision for one process, or for several that share each step's episodes."""
    wanted = recipe.training
    device = resolve_device(wanted.device)
    if devices < 1 or nodes < 1:
        raise UsageError(f"devices is {devices} and nodes is {nodes}; both must be 1 or more")
    _check_launcher(devices, nodes)
    if devices > 1 and device.index is not None:
        raise UsageError(f"device is {wanted.device!r}, a single device, but devices is {devices}: use device={device.type}")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise UsageError(f"devices is {devices}, but this machine has {torch.cuda.device_count()} GPUs: lower --devices")
    return Fabric(
        accelerator=device.type,
        devices=[device.index] if devices == 1 and device.index is not None else devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision="bf16-mixed" if wanted.precision == "bf16" else "32-true",
    )
