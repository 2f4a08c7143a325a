"""Figures in the documentation are those of the files that commands wrote."""

import json
import re
import runpy
from pathlib import Path

from sosn.method import METHODS

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_measured_figures() -> None:
    fill = runpy.run_path(str(ROOT / "docs" / "readme.py"))["fill"]
    text = (ROOT / "README.md").read_text("utf-8")
    assert fill(text) == text, "run python docs/readme.py"


def test_the_page_on_rivals_shows_the_measured_figures() -> None:
    fill = runpy.run_path(str(ROOT / "docs" / "readme.py"))["fill_rivals"]
    text = (ROOT / "docs" / "rivals.md").read_text("utf-8")
    assert fill(text) == text, "run python docs/readme.py"


def test_the_page_on_speed_shows_the_measured_figures() -> None:
    fill = runpy.run_path(str(ROOT / "docs" / "readme.py"))["fill_speed"]
    text = (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert fill(text) == text, "run python docs/readme.py"
    assert "NVIDIA H200" in text


def test_the_page_on_photos_shows_the_measured_figures() -> None:
    fill = runpy.run_path(str(ROOT / "docs" / "readme.py"))["fill_photos"]
    text = (ROOT / "docs" / "photos.md").read_text("utf-8")
    assert fill(text) == text, "run python docs/readme.py"
    assert "| glyphs | 5 | 1 |" in text


def test_the_page_on_datasets_shows_the_measured_times() -> None:
    fill = runpy.run_path(str(ROOT / "docs" / "readme.py"))["fill_data"]
    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    assert fill(text) == text, "run python docs/readme.py"
    for row in json.loads((ROOT / "results" / "prepare-cpu.json").read_text("utf-8"))["rows"]:
        assert f"| {row['data']} | {row['images']:,} at {row['size']}² |" in text


def test_the_page_on_rivals_names_every_method_and_says_what_it_declares() -> None:
    text = (ROOT / "docs" / "rivals.md").read_text("utf-8")
    for name, method in METHODS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2] == f"`{method.own_loss}`"
        assert cells[3] == ("yes" if method.transductive else "no")
        assert cells[4].split(";")[0] == ("yes" if method.adapts else "no")


def test_files_that_the_documentation_links_to_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_measured_demo_keeps_its_promise() -> None:
    demo = json.loads((ROOT / "results" / "demo.json").read_text("utf-8"))
    assert demo["accuracy"] >= 0.9
    assert demo["episodes"] >= 150
    assert demo["seconds"] <= 240
    assert demo["pixels"] < demo["accuracy"] - 0.3
