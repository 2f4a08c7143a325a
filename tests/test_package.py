"""The version stands in one place, and what must repeat it agrees."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import sosn

ROOT = Path(__file__).parent.parent


def test_the_build_takes_the_version_from_the_package_without_pytorch(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    attribute = project["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported')", "utf-8")
    script = f"from setuptools.config.expand import read_attr; print(read_attr({attribute!r}, {{'': 'src'}}, {str(ROOT)!r}))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (sosn.__version__, "")


def test_the_citation_names_the_version() -> None:
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert version == sosn.__version__


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert f"\n## [{sosn.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
