"""The floor plan holds: what may import what, and how large things may grow. docs/architecture.md explains it."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import sosn

PACKAGE = Path(sosn.__file__).parent
LEVELS = (  # a module imports from its own level and from those after it
    {"__main__"},
    {"cli"},
    {"reproduce", "report"},
    {"bench"},
    {"classify"},
    {"training"},
    {"evaluation"},
    {"checkpoint"},
    {"recipe"},
    {"data.dataset", "data.prepare"},
    {"data"},
    {"method"},
    {"encoder", "similarity"},
    {"kernel"},
    {"relation", "permutation"},
    {"power_norm", "second_order"},
    {"episode"},
    {"util"},
    {"errors"},
    {"__init__"},  # of which others take __version__ alone; its own imports happen when a name is first used
)
LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 20


def module_name(path: Path) -> str:
    """classify.gallery for classify/gallery.py, classify for classify/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, at its top, inside functions or for types alone."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sosn":
            base = str(node.module).removeprefix("sosn").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                yield inner if inner in MODULES else base or "__init__"
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("sosn.") for alias in node.names if alias.name.startswith("sosn."))
            yield from ("__init__" for alias in node.names if alias.name == "sosn")


GRAPH = {name: set(imports(path)) - {name} for name, path in MODULES.items() if name != "__init__"}


def level(name: str) -> int:
    """The level of a module's room: the longest of its prefixes that has one."""
    parts = name.split(".")
    rooms = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    found = [number for room in rooms for number, level in enumerate(LEVELS) if room in level]
    assert found, f"{name} is in no room of LEVELS"
    return found[0]


@pytest.mark.parametrize("name", GRAPH)
def test_a_module_imports_only_what_stands_beside_or_below_it(name: str) -> None:
    above = sorted(other for other in GRAPH[name] if level(other) < level(name))
    assert not above, f"{name} imports {', '.join(above)} from above"


def test_no_modules_import_one_another_in_a_circle() -> None:
    list(TopologicalSorter(GRAPH).static_order())  # raises CycleError with the circle


def test_the_root_holds_the_ideas_of_the_paper_and_nothing_else() -> None:
    ideas = {"episode", "second_order", "power_norm", "relation", "permutation", "similarity"}
    assert {path.stem for path in PACKAGE.glob("*.py")} == ideas | {"__init__", "__main__", "errors"}


def test_the_page_on_architecture_names_every_room_from_above_to_below() -> None:
    page = (PACKAGE.parent.parent / "docs" / "architecture.md").read_text("utf-8")
    table = page.split("| room | what it holds |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = [room for cell in cells for room in re.findall(r"`([\w/]+?)/?(?:\.py)?`", cell)]
    rooms = [room.replace("/", ".") for room in named]
    levels = [level(room) for room in rooms]
    assert levels == sorted(levels)
    assert set(rooms) == set().union(*LEVELS) - {"__main__", "__init__"}


ISOLATED = """
import importlib, os, sys
import jinja2, lightning_fabric, matplotlib.figure, PIL.ImageOps, rich.progress, safetensors.torch, torch, triton, typer
import scipy.ndimage, torch.utils.data, torch.utils.flop_counter  # once for all: what takes seconds

for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} cannot be imported by itself")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each module is imported in a forked process")
def test_modules_can_be_imported_by_themselves() -> None:
    """In a process of its own, so that no order of imports hides a circle. Every other module, because it takes time."""
    names = [f"sosn.{name}" for name in MODULES if name not in ("__main__", "__init__")][::2]
    ended = subprocess.run([sys.executable, "-c", ISOLATED, *names], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", MODULES)
def test_no_file_function_or_constructor_is_too_long_to_read(name: str) -> None:
    path = MODULES[name]
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LINES
    if "triton" in path.parts:  # kernels take what they are given
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.name == "__init__":
                assert len(parameters) - 1 <= PARAMETERS, f"a constructor in {name} has {len(parameters) - 1} parameters"
