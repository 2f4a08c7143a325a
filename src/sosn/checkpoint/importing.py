"""Import models: published weights of Relation Net, and frozen encoders of other models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from sosn.checkpoint.registry import load_with_recipe
from sosn.checkpoint.state_dict import read_state_dict
from sosn.errors import CheckpointError, UsageError
from sosn.method import NearestPrototype, RelationNet, method_options
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override, refuse_option
from sosn.recipe.recipe import Recipe
from sosn.recipe.sections import ModelSection
from sosn.util.typed import check_options, parse

MEAN, STD = 0.92206, 0.08426  # the 2018 release standardises grey and colour images with these
SIZES = {1: 28, 9: 84}  # image side, by the number of positions that reach the first fully connected layer
KEPT = ("weight", "bias", "running_mean", "running_var")


def import_relation_net(encoder: Path, relation: Path) -> tuple[RelationNet, Recipe]:
    """Load Relation Net with the weights of the 2018 release: one state dict for the encoder, one for the relation network.

    The files are read with torch.load(weights_only=True), which runs no code. Image size and channels follow from the shapes
    of the weights, and images are standardised as in the release. The release uses batch norm with momentum 1, so its running
    statistics are those of the last training batch; its published figures use statistics="batch". Refuses files whose tensors
    have other names or shapes, and names the first difference.
    """
    ours, theirs = read_state_dict(encoder), read_state_dict(relation)
    if "fc1.weight" in ours and "layer4.0.weight" in theirs:
        raise UsageError("the two files are swapped: give the feature encoder first, then the relation network")
    _check_names(encoder, ours, [f"layer{n}" for n in (1, 2, 3, 4)], [], "a feature encoder")
    _check_names(relation, theirs, ["layer1", "layer2"], ["fc1", "fc2"], "a relation network")
    width, channels = (*ours["layer1.0.weight"].shape, 0, 0)[:2]
    inputs = theirs["fc1.weight"].shape[-1]
    if channels not in (1, 3):
        raise CheckpointError(f"{str(encoder)!r} takes images with {channels} channels; the release has 1 or 3")
    if inputs not in [positions * width for positions in SIZES]:
        raise CheckpointError(
            f"{str(relation)!r} has {inputs} inputs to fc1; with {width} filters the release has {width} for images of 28² and "
            f"{9 * width} for 84²"
        )
    size = SIZES[inputs // width]
    images = {"channels": channels, "input_size": size, "mean": [MEAN] * channels, "std": [STD] * channels}
    method = RelationNet(encoder={"name": "conv4", "width": width}, preprocessing=images)
    _fill(method.encoder, ours, ("layer1", "layer2", "layer3", "layer4"), (), encoder)
    _fill(method.relation, theirs, ("layer1", "layer2"), ("fc1", "fc2"), relation)
    method.trained = True
    plain = load_recipe("mini-imagenet-5w1s" if channels == 3 else "omniglot-5w1s")
    words = ["title=Relation Net with the weights of the 2018 release", "method=relation_net", "clip=0.5"]
    return method.eval(), override(plain, words)


def import_frozen(model: str, options: Sequence[str]) -> tuple[NearestPrototype, Recipe]:
    """Return the nearest prototype on another model's encoder; options are key=value words for NearestPrototype."""
    source, recipe = load_with_recipe(model)
    pairs = {}
    for word in options:
        key, _, text = word.partition("=")
        refuse_option(key)
        if not key or not text:
            raise UsageError(f"{word!r} is not key=value: write, for instance, representation=mean")
        pairs[key] = parse(text)
    frozen = NearestPrototype.of(source, **check_options(pairs, method_options(NearestPrototype.name), "frozen"))
    model_options = {key: frozen.config[key] for key in method_options(frozen.name)}
    title = f"nearest prototype on the frozen encoder of {model}"
    section = ModelSection(NearestPrototype.name, model_options)
    return frozen, replace(recipe, title=title, model=section, test_time=frozen.test_time)


def _check_names(path: Path, tensors: Mapping[str, Tensor], blocks: list[str], linear: list[str], what: str) -> None:
    wanted = {f"{block}.0.{name}" for block in blocks for name in ("weight", "bias")}
    wanted |= {f"{block}.1.{name}" for block in blocks for name in KEPT}
    wanted |= {f"{layer}.{name}" for layer in linear for name in ("weight", "bias")}
    found = {name for name in tensors if not name.endswith("num_batches_tracked")}  # older PyTorch does not save it
    for name in sorted(wanted ^ found):
        missing = "lacks" if name in wanted else "has"
        raise CheckpointError(f"{str(path)!r} is not {what} of the release: it {missing} {name!r}")


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], blocks: Sequence[str], linear: Sequence[str], path: Path) -> None:
    """Copy weights into the layers of a module, which are in the same order under other names."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]
    sources = [f"{block}.{part}" for block in blocks for part in (0, 1)] + list(linear)
    for layer, source in zip(layers, sources, strict=True):
        state = layer.state_dict()
        for name, target in state.items():
            if name == "num_batches_tracked":
                target.fill_(1)  # the running statistics are valid
                continue
            given = tensors[f"{source}.{name}"]
            if given.shape != target.shape:
                raise CheckpointError(
                    f"{str(path)!r} has {source}.{name} of shape {tuple(given.shape)}; Relation Net needs {tuple(target.shape)}"
                )
            target.copy_(given)
