"""The commands, their options and their output."""

import json
import logging
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sosn.cli.common import AsJson, import_file, print_json
from sosn.cli.data import app as data_app
from sosn.cli.gallery import app as gallery_app
from sosn.cli.importing import app as import_app
from sosn.cli.photos import classify, export, tune
from sosn.cli.process import check_precision, check_words, keep_freed_memory
from sosn.cli.reproduce import reproduce
from sosn.errors import UsageError

app = typer.Typer(
    name="sosn",
    help="Recognise new classes of images from one to twenty examples of each.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data_app, name="data")
app.add_typer(gallery_app, name="gallery")
app.add_typer(import_app, name="import")
app.command()(classify)
app.command()(export)
app.command()(reproduce)
app.command()(tune)

# Settings have no dashes; a --steps is passed on, so that the recipe's error message explains it.
WORDS = {"ignore_unknown_options": True}
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, for instance steps=2000.")]


def prepare(words: list[str]) -> None:
    """Prepare this process for a long computation with these settings."""
    keep_freed_memory()
    check_words(words)


def _version(wanted: bool) -> None:
    if wanted:
        from sosn import __version__

        typer.echo(f"sosn {__version__}")
        raise typer.Exit


@app.callback()
def _sosn(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    imports: Annotated[
        list[Path] | None, typer.Option("--import", help="Import a Python file of yours first, for what it registers.")
    ] = None,
) -> None:
    """Recognise new classes of images from one to twenty examples of each."""
    for file in imports or []:
        import_file(file)


@app.command(context_settings=WORDS)
def demo(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder for the run and its report.")] = Path("demo-report"),
    as_json: AsJson = False,
) -> None:
    """Train on generated characters, test on new ones and write a report. Takes minutes, offline."""
    from sosn.cli.demo import run_demo
    from sosn.cli.show import RichProgress, show_demo

    prepare(overrides or [])
    with RichProgress() as progress:
        result = run_demo(out, progress, overrides or [])
    if as_json:
        print_json(result.to_json())
    else:
        show_demo(result)


@app.command(context_settings=WORDS)
def train(
    recipe: Annotated[str, typer.Argument(help="Recipe name (see `sosn recipes`), recipe file, or run folder.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in that folder.")] = False,
    devices: Annotated[int, typer.Option(help="GPUs (or CPU processes) on this machine that share each step.", min=1)] = 1,
    nodes: Annotated[int, typer.Option(help="Machines; start the command on each with torchrun.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a recipe, keep the weights that validate best, and report their accuracy on validation classes."""
    from sosn.cli.show import RichProgress, console
    from sosn.recipe.library import RECIPE_FILE, load_recipe
    from sosn.recipe.override import override
    from sosn.training import train as run_training
    from sosn.training.run import CHECKPOINT_FILE

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs a greeting in distributed training
    resolved = override(load_recipe(recipe), overrides or [])
    keep_freed_memory()
    check_precision(resolved.training.precision, resolved.training.device)
    if out is None:
        out = Path(recipe) if Path(recipe).is_dir() else Path("runs") / Path(recipe).stem
    try:
        with RichProgress() as progress:
            result = run_training(resolved, out, resume, progress, devices, nodes)
    except KeyboardInterrupt:
        if (out / RECIPE_FILE).exists():
            saved = "from the last checkpoint" if (out / CHECKPOINT_FILE).exists() else "from the start: nothing was saved yet"
            console.print(f"`sosn train {shlex.quote(str(out))} --resume` continues {saved}", soft_wrap=True)
        raise
    if result.rank:  # only the first process prints
        return
    figures = result.evaluation.to_json() if result.evaluation else {}
    if as_json:
        print_json({"folder": str(out), "split": "val" if figures else None, "seconds": result.seconds, **figures})
    elif result.evaluation:
        figure = result.evaluation
        typer.echo(f"{figure}  {figure.way}-way {figure.shot}-shot on validation classes, {figure.episodes} episodes")
        typer.echo(f"run folder: {out}")
    else:
        typer.echo(f"run folder: {out} (no validation classes, so no accuracy)")


@app.command(context_settings=WORDS)
def eval(
    model: Annotated[str, typer.Argument(help="Run folder, weights file, or shipped model (see `sosn models`).")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="way, shot, query, episodes, seed, statistics=running|batch, split=val|test, within=alphabet|drawers, data "
            "and its options (partition=lake; data.seed=5 where eval has that key too), mirror, scales, turns (test-time "
            "augmentation), device, precision=fp32|bf16, engine=auto|plain; or runs=FOLDER, the tasks of Lake et al.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model: accuracy ± 95% CI on seeded episodes of validation classes; split=test for test classes."""
    from sosn.cli.show import console, progress_bar, protocol
    from sosn.evaluation.model import evaluate_model

    prepare(overrides or [])
    with progress_bar("evaluating") as bar:
        result, settings = evaluate_model(model, overrides or [], bar, console.print)
    if as_json:
        print_json(result.to_json() | {"model": model} | settings.to_json())
    else:
        typer.echo(f"{result}  {protocol(result)}, {settings}")


@app.command(context_settings=WORDS)
def compare(
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN... [KEY=VALUE]...", help="Run folders or shipped models, and settings as in `eval`."),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare models on the same episodes: accuracy ± 95% CI, paired p-values against the first, size, speed."""
    from sosn.cli.show import console, progress_bar, show_comparison
    from sosn.evaluation.comparison import compare_models

    settings_given = [word for word in words if "=" in word and not Path(word).exists()]
    prepare(settings_given)
    with progress_bar("comparing") as bar:
        rows, settings = compare_models([w for w in words if w not in settings_given], settings_given, bar, console.print)
    if as_json:
        print_json(settings.to_json() | {"rows": [row.to_json() for row in rows]})
    else:
        show_comparison(rows, settings)


@app.command()
def models(name: Annotated[str | None, typer.Argument(help="Print its card.")] = None, as_json: AsJson = False) -> None:
    """List the shipped models, or print the card of one: data, accuracy, terms of use, limits."""
    from sosn.checkpoint.registry import model_card, shipped_models
    from sosn.cli.show import show_card, show_models

    if name is not None:
        card = model_card(name)
        print_json(card) if as_json else show_card(name, card)
        return
    cards = shipped_models()
    if as_json:
        print_json(cards)
    else:
        show_models(cards)


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="Print this recipe.")] = None, as_json: AsJson = False) -> None:
    """List the shipped recipes, or print one."""
    from sosn.cli.show import show_recipes
    from sosn.recipe.library import load_recipe, recipe_text, shipped

    if name is not None:
        if as_json:
            print_json(load_recipe(name).to_table())
        else:
            typer.echo(recipe_text(name), nl=False)
        return
    titles = {known: load_recipe(known).title for known in shipped()}
    if as_json:
        print_json(titles)
    else:
        show_recipes(titles)


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Measure one small shape once, to see that it works.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json and bench.png.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure training and evaluation speed on this machine, beside a plain loop and vectorised PyTorch.

    Takes several minutes. Until all is measured, --out holds bench.part.json.
    """
    from sosn.bench import run_bench
    from sosn.cli.show import console, show_bench
    from sosn.util.files import write_atomically

    keep_freed_memory()

    def keep(measured: dict[str, Any]) -> None:
        if out is not None:
            write_atomically(out / "bench.part.json", (json.dumps(measured, indent=2) + "\n").encode())

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create the folder {str(out)!r} ({error.strerror}): choose another --out") from error
        keep({})  # fails early if the folder is not writable
    try:
        document = run_bench(device, quick, lambda sentence: console.print(sentence), keep)
    except KeyboardInterrupt:
        if out is not None:
            console.print(f"the measurements so far are in {out / 'bench.part.json'}")
        raise
    if out is not None:
        from sosn.report.bench import save_bench_figure

        save_bench_figure(document, out / "bench.png")
        (out / "bench.part.json").replace(out / "bench.json")
    if as_json:
        print_json(document)
    else:
        show_bench(document)
