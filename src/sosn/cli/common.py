"""Options and functions that several commands share."""

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def print_json(document: Any) -> None:
    """Print a document as one line of JSON."""
    typer.echo(json.dumps(document, ensure_ascii=False))
