"""The ledger of this repository: its entries were trained with the current recipes of their rows."""

from pathlib import Path

import pytest

from sosn.reproduce.ledger import Entry, read_ledger, same_recipe
from sosn.reproduce.row import Row
from sosn.reproduce.table import TABLES

LEDGER = Path(__file__).parents[2] / "results" / "ledger"
ROWS = {(row.table, row.id): row for rows in TABLES.values() for row in rows}


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return [entry for entry in read_ledger(LEDGER) if entry["table"] in TABLES]


def row_of(entry: Entry) -> Row:
    return ROWS[entry["table"], entry["row"]]


def test_every_entry_was_trained_with_the_recipe_that_its_row_has_today(entries: list[Entry]) -> None:
    assert len(entries) >= 158
    others = [
        f"{entry['table']}/{entry['row']} seed {entry['seed']}" for entry in entries if not same_recipe(entry, row_of(entry))
    ]
    assert others == []


def test_every_entry_belongs_to_a_row(entries: list[Entry]) -> None:
    assert {(entry["table"], entry["row"]) for entry in entries} <= ROWS.keys()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "eta", 7.0),
        ("model", "encoder_width", 32),
        ("model", "conv4_pools", 3),
        ("model", "polarity", "inverted"),
        ("model", "mirror", True),
        ("model", "auxiliary", 0.5),
        ("training", "steps", 1),
        ("episodes", "related", 0.5),
    ],
)
def test_an_entry_with_another_recipe_is_detected(entries: list[Entry], section: str, key: str, value: object) -> None:
    entry = next(
        one for one in entries if one["recipe"]["model"]["method"] == "sosn" and "encoder_width" in one["recipe"]["model"]
    )
    changed = entry | {"recipe": entry["recipe"] | {section: entry["recipe"][section] | {key: value}}}
    assert same_recipe(entry, row_of(entry))
    assert not same_recipe(changed, row_of(entry))


def test_where_it_ran_and_what_it_was_called_make_no_difference(entries: list[Entry]) -> None:
    entry = entries[0]
    training = entry["recipe"]["training"] | {"device": "cuda", "engine": "plain"}
    assert same_recipe(entry | {"recipe": entry["recipe"] | {"title": "another", "training": training}}, row_of(entry))
