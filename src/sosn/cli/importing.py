"""`sosn import …`: import models as folders for the other commands."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sosn.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sosn.checkpoint.training_classes import TrainingClasses
    from sosn.method import Method
    from sosn.recipe.recipe import Recipe

app = typer.Typer(no_args_is_help=True, help="Import published weights, or the encoder of another model.")
Out = Annotated[Path, typer.Option(help="Folder for the imported model.")]


@app.command("relation-net")
def relation_net(
    encoder: Annotated[Path, typer.Argument(help="State dict of the feature encoder (…_feature_encoder_….pkl).")],
    relation: Annotated[Path, typer.Argument(help="State dict of the relation network (…_relation_network_….pkl).")],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Import the weights of Relation Net's 2018 release. Its published figures use statistics=batch."""
    from sosn.checkpoint.importing import import_relation_net

    _write(out, *import_relation_net(encoder, relation), as_json)


@app.command(context_settings={"ignore_unknown_options": True})
def frozen(
    model: Annotated[str, typer.Argument(help="Run folder, weights file, or shipped model.")],
    out: Out,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="representation, metric, power_norm, eta and other options of the method."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Freeze a model's encoder and compare by the nearest prototype."""
    from sosn.checkpoint.importing import import_frozen
    from sosn.checkpoint.registry import load_with_recipe
    from sosn.checkpoint.training_classes import earlier_classes

    method, recipe = import_frozen(model, options or [])
    _write(out, method, recipe, as_json, earlier_classes(model, load_with_recipe(model)[1]))


def _write(out: Path, method: "Method", recipe: "Recipe", as_json: bool, earlier: "Sequence[TrainingClasses]" = ()) -> None:
    from sosn.checkpoint.storage import write_model

    write_model(out, method, recipe.to_table(), [one.to_json() for one in earlier])
    if as_json:
        document = {"folder": str(out), "method": method.name, "parameters": method.parameter_count(), "config": method.config}
        print_json(document)
    else:
        size, channels = method.preprocessing.size, method.preprocessing.channels
        colour = "colour" if channels == 3 else "grey"
        typer.echo(f"{method.name} for {colour} images of {size}×{size}, {method.parameter_count():,} parameters: {out}")
