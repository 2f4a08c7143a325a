"""Options and functions that several commands share."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sosn.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def print_json(document: Any) -> None:
    """Print a document as one line of JSON."""
    typer.echo(json.dumps(document, ensure_ascii=False))


def import_file(file: Path) -> None:
    """Import a Python file, which may register methods, encoders, power normalisations and datasets."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"--import needs a Python file, got {str(file)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)


def fail_with(errors: list[str]) -> None:
    """Print errors of files, and exit with code 1 if there are any."""
    from sosn.cli.show import console

    for error in errors:
        console.print(f"error: {error}", soft_wrap=True, markup=False)
    if errors:
        raise typer.Exit(1)
