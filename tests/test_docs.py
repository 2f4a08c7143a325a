"""Figures in the documentation are those of the files that commands wrote."""

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_measured_figures() -> None:
    fill = runpy.run_path(str(ROOT / "docs" / "readme.py"))["fill"]
    text = (ROOT / "README.md").read_text("utf-8")
    assert fill(text) == text, "run python docs/readme.py"


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
