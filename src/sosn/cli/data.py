"""`sosn data …`: list, prepare, check and show datasets."""

from pathlib import Path
from typing import Annotated

import typer

from sosn.cli.common import AsJson, print_json

app = typer.Typer(no_args_is_help=True, help="List, prepare, check and show datasets.")


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List prepared datasets with their classes and images, and what others can be prepared from."""
    from sosn.cli.show import show_datasets
    from sosn.data.prepare.catalog import CATALOG, prepared

    found = prepared()
    forms = {name: dataset.forms for name, dataset in CATALOG.items()}
    if as_json:
        print_json({"prepared": found, "forms": forms})
    else:
        show_datasets(found, forms)


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="Dataset, as `sosn data list` names it.")],
    source: Annotated[Path, typer.Option("--from", help="Folder or archive that holds it.")],
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels; default: the usual one.", min=8)] = None,
    max_pixels: Annotated[int | None, typer.Option(help="Refuse images with more pixels; default: 50 million.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Decode a dataset once, so that it opens at once later. Continues where it was interrupted."""
    from sosn.cli.show import progress_bar
    from sosn.data.prepare.catalog import prepare_dataset

    try:
        with progress_bar("preparing") as bar:
            done = prepare_dataset(name, source, size, bar, max_pixels)
    except KeyboardInterrupt:
        typer.echo("run the same command again to continue", err=True)
        raise
    if as_json:
        print_json(done)
        return
    typer.echo(
        f"{name}: {done['classes']} classes, {done['images']} images at {done['size']}×{done['size']} in {done['folder']}"
    )
    for split, part in done["splits"].items():
        typer.echo(f"  {split}: {part['classes']} classes, {part['images']} images")
    for split in done["missing"]:
        typer.echo(f"  {split}: missing (it can be prepared later)")


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="Prepared dataset, folder of images, or CSV.")],
    as_json: AsJson = False,
) -> None:
    """Find unreadable files, duplicates, tiny classes and wrong sizes. Exits with 1 if something is wrong."""
    from dataclasses import asdict

    from sosn.cli.show import progress_bar, show_findings
    from sosn.data.prepare.check import check as look

    with progress_bar("checking") as bar:
        findings, images = look(name, bar)
    if as_json:
        print_json({"images": images, "findings": [asdict(finding) for finding in findings]})
    else:
        show_findings(findings, images)
    if any(finding.wrong for finding in findings):
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Dataset, for instance glyphs, omniglot or folder:PATH.")],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    way: Annotated[int, typer.Option(min=2, help="Classes of the sample episode.")] = 5,
    shot: Annotated[int, typer.Option(min=1, help="Support images of each class.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the images.")] = Path(),
) -> None:
    """Write a contact sheet and a sample episode as PNG."""
    from sosn.data.dataset import open_bank
    from sosn.report.sheet import save_sheets

    for path in save_sheets(open_bank(name, split), out, f"{name.replace(':', '-').replace('/', '-')}-{split}", way, shot):
        typer.echo(str(path))
