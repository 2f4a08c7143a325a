"""`sosn gallery …`: create a gallery of classes, change it, and search it."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sosn.cli.common import AsJson, fail_with, print_json
from sosn.cli.photos import Polarity

if TYPE_CHECKING:
    from sosn.classify.background import Inverting
    from sosn.classify.gallery import Gallery
    from sosn.classify.gallery_files import Found

app = typer.Typer(no_args_is_help=True, help="Keep very many classes on disk, and find those of an image.")
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the gallery.")]
Source = Annotated[Path | None, typer.Option("--from", help="Add a folder with one subfolder of images per class.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


@app.command()
def create(
    folder: Folder,
    model: Annotated[
        str, typer.Option(help="Shipped model or run folder; auto: choose for drawings or photos by the first images.")
    ] = "auto",
    source: Source = None,
    polarity: Polarity = "auto",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Create a gallery, empty or with the classes of a folder. Exits with 1 if an image could not be read."""
    from sosn.classify.gallery import Gallery

    gallery = Gallery.create(folder, model, device, cast("Inverting", polarity))
    _add_folder(gallery, source, as_json)


@app.command()
def add(
    folder: Folder,
    label: Annotated[str | None, typer.Argument(help="Name of the class.")] = None,
    images: Annotated[list[str] | None, typer.Argument(metavar="[IMAGE|FOLDER]...", help="Images of the class.")] = None,
    source: Source = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Add a class, or with --from many; classes that are already there are skipped then."""
    from sosn.classify.batch import find_images
    from sosn.classify.gallery import Gallery
    from sosn.errors import UsageError

    if (source is None) == (label is None) or (label is not None and not images):
        raise UsageError("give a label and images of that class, or --from with a folder of class folders")
    gallery = Gallery(folder, device)
    if label is not None:
        gallery.add(label, find_images(images or []))
    _add_folder(gallery, source, as_json)


def _add_folder(gallery: "Gallery", source: Path | None, as_json: bool) -> None:
    """Add a folder of classes, if there is one, and print what the gallery holds now."""
    from sosn.cli.show import console, progress_bar

    errors: list[str] = []
    if source is not None:
        with progress_bar("adding") as bar:
            done = gallery.add_folder(source, bar)
        errors = done.errors
        if done.known:
            console.print(f"skipped {len(done.known)} classes that are already there", soft_wrap=True, markup=False)
    _print_state(gallery, errors, as_json)
    for error in errors:
        console.print(f"error: {error}", soft_wrap=True, markup=False)
    if errors:
        raise typer.Exit(1)


def _print_state(gallery: "Gallery", errors: list[str], as_json: bool) -> None:
    count = len(gallery)
    if as_json:
        print_json({"folder": str(gallery.folder), "model": gallery.model, "classes": count, "failed": errors})
    else:
        model = f"model {gallery.model!r}" if gallery.model else "its model is chosen by the first images"
        typer.echo(f"{gallery.folder}: {count:,} {'class' if count == 1 else 'classes'}; {model}")


@app.command()
def remove(
    folder: Folder,
    labels: Annotated[list[str], typer.Argument(metavar="LABEL...", help="Classes to remove.")],
    as_json: AsJson = False,
) -> None:
    """Remove classes, all or none."""
    from sosn.classify.gallery import Gallery

    gallery = Gallery(folder)
    gallery.remove(*labels)
    _print_state(gallery, [], as_json)


@app.command()
def index(folder: Folder, as_json: AsJson = False) -> None:
    r"""Move the sketches of all classes to an index on disk, for very many classes. Needs the extra sosn\[lancedb]."""
    from sosn.classify.gallery import Gallery

    gallery = Gallery(folder)
    gallery.build_index()
    _print_state(gallery, [], as_json)


@app.command()
def query(
    folder: Folder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE|FOLDER...", help="Images to look for.")],
    top: Annotated[int, typer.Option(help="Classes to print for each image.", min=1)] = 5,
    reject: Annotated[
        float | None, typer.Option(help="Allow 'none of these'; the share of known images that may be rejected.")
    ] = None,
    device: Device = "cpu",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the most similar classes of images. Exits with 1 if an image could not be read."""
    from sosn.classify.batch import find_images
    from sosn.classify.gallery import Gallery
    from sosn.classify.gallery_files import search_files
    from sosn.cli.show import progress_bar
    from sosn.errors import UsageError

    if as_csv and as_json:
        raise UsageError("--csv and --json cannot be combined: choose one")
    gallery, files = Gallery(folder, device), find_images(images)
    with progress_bar("searching") as bar:
        results = search_files(gallery, files, top, reject, bar)
    if as_csv:
        typer.echo(_csv(results), nl=False)
    elif as_json:
        document: dict[str, Any] = {
            "model": gallery.model,
            "calibrated": gallery.calibration is not None,
            "classes": len(gallery),
            "reject": reject,
            "answers": [one.to_json() for one in results if not one.error],
            "failed": [one.to_json() for one in results if one.error],
        }
        print_json(document)
    else:
        from sosn.cli.answers import show_matches

        show_matches(results)
    fail_with([one.error for one in results if one.error])


def _csv(results: "list[Found]") -> str:
    """One line for each image and match; an image that is none of these has a line without a class."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "similarity", "probability", "error"])
    for one in results:
        for rank, match in enumerate(one.matches, 1):
            chance = "" if match.probability is None else f"{match.probability:.4f}"
            writer.writerow([one.image, rank, match.label, f"{match.similarity:.4f}", chance, ""])
        if not one.matches:
            writer.writerow([one.image, "", "", "", "", one.error])
    return lines.getvalue()
