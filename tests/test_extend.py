"""The examples of docs/extend.md are those of examples/extend.py, and they work."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sosn
from sosn.data.dataset import DATASETS
from sosn.encoder import ENCODERS
from sosn.method import METHODS
from sosn.power_norm import _REGISTERED, PowerNorm

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "extend.py"
SMALL = "steps=2 every=2 recalibrate=1 val_episodes=2 report_episodes=2 query=2 val_query=2 device=cpu".split()


@pytest.fixture(scope="module", autouse=True)
def _extended() -> Iterator[None]:
    """The example imported, as a user's file would be; forgotten afterwards."""
    registries: tuple[dict[str, Any], ...] = (METHODS, ENCODERS, DATASETS, _REGISTERED)
    before = [dict(registry) for registry in registries]
    spec = importlib.util.spec_from_file_location("extend_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["extend_example"] = module
    spec.loader.exec_module(module)
    yield
    for registry, known in zip(registries, before, strict=True):
        for name in registry.keys() - known.keys():
            del registry[name]


def test_the_page_shows_the_example_and_nothing_else() -> None:
    page = (ROOT / "docs" / "extend.md").read_text("utf-8")
    example = EXAMPLE.read_text("utf-8")
    shown = re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```\n<!-- end: \1 -->", page, re.DOTALL)
    assert [name for name, _ in shown] == ["method", "encoder", "power_norm", "dataset"]
    for name, code in shown:
        body = code[code.index("@sosn") :] if name == "method" else code
        assert body in example, f"examples/extend.py has another {name} than docs/extend.md"
        assert len(body.splitlines()) <= 22


@pytest.mark.slow
def test_a_custom_method_trains_saves_loads_and_classifies(tmp_path: Path) -> None:
    recipe = sosn.override("glyphs-5w1s", ["method=strongest_response", "scale=20", *SMALL])
    assert recipe.training.loss == "cross_entropy"
    result = sosn.train(recipe, tmp_path / "run")
    loaded = sosn.load(tmp_path / "run")
    assert loaded.config["scale"] == 20
    assert result.evaluation is not None
    drawings = list(sosn.open_bank("glyphs", "test", alphabets=10).images[::20][:6])
    classifier = sosn.FewShotClassifier(str(tmp_path / "run")).fit(drawings[:3], ["a", "b", "c"])
    assert classifier.predict(drawings[:3]).tolist() == ["a", "b", "c"]


@pytest.mark.slow
def test_a_custom_encoder_norm_and_dataset_work_together(tmp_path: Path) -> None:
    words = ["data=stripes", "classes=6", "encoder=wide", "kernel=3", "power_norm=softsign", "eta=50", *SMALL]
    recipe = sosn.override("glyphs-5w1s", words)
    assert recipe.encoder.options["kernel"] == 3
    sosn.train(recipe, tmp_path / "run")
    loaded = sosn.load(tmp_path / "run")
    assert loaded.config["encoder"] == {"name": "wide", "width": 64, "kernel": 3}
    assert loaded.config["power_norm"] == "softsign"


def test_a_custom_norm_computes_its_formula() -> None:
    m = torch.linspace(-1, 1, 9)
    torch.testing.assert_close(PowerNorm("softsign", 50.0)(m, 361), 50 * m / (1 + (50 * m).abs()))


def test_a_model_of_a_method_that_is_not_registered_names_it(tmp_path: Path) -> None:
    model = METHODS["strongest_response"](channels=1, input_size=28)
    from sosn.checkpoint.storage import save_method

    save_method(tmp_path / "model.safetensors", model)
    kind = METHODS.pop("strongest_response")
    try:
        with pytest.raises(sosn.SosnError, match="strongest_response"):
            sosn.load(tmp_path)
    finally:
        METHODS["strongest_response"] = kind


@pytest.mark.slow
def test_the_command_line_imports_a_file_first(tmp_path: Path) -> None:
    words = [
        "--import",
        str(EXAMPLE),
        "train",
        "glyphs-5w1s",
        "method=strongest_response",
        *SMALL,
        "--out",
        str(tmp_path / "run"),
    ]
    ended = subprocess.run([sys.executable, "-m", "sosn", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    words = ["--import", str(tmp_path / "absent.py"), "recipes"]
    ended = subprocess.run([sys.executable, "-m", "sosn", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "--import needs a Python file" in ended.stderr


def test_names_of_sosn_s_own_are_not_given_away() -> None:
    with pytest.raises(sosn.UsageError, match="method 'sosn' is one of sosn's own"):
        sosn.register_method(type("Mine", (sosn.SoSN,), {"name": "sosn"}))
    with pytest.raises(sosn.UsageError, match="encoder 'conv4' is one of sosn's own"):
        sosn.register_encoder(type("Mine", (ENCODERS["wide"],), {"name": "conv4"}))
    with pytest.raises(sosn.UsageError, match="dataset 'glyphs' is one of sosn's own"):
        sosn.register_dataset("glyphs")(DATASETS["stripes"])
