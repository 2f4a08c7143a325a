"""Scripts that measure: what they write is of the thing that was asked for."""

import json
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

import sosn
from sosn.bench.contenders import Shape
from sosn.checkpoint.registry import model_card, model_path, pack
from sosn.checkpoint.storage import WEIGHTS_FILE, shelf
from sosn.cli.show import show_card
from sosn.errors import SosnError
from sosn.evaluation.calibration import calibration_of
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training import train, trainer
from sosn.training.setup import open_split

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SCRIPT = BENCHMARKS / "prepare.py"


def photo(file: Path, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 40, 3), number, np.uint8)).save(file)


@pytest.mark.slow
def test_times_of_preparing_and_opening_are_kept_dataset_by_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        photo(tmp_path / "mini" / ("train" if number < 4 else "val") / f"n0000000{number // 2}" / f"{number}.png", number)
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "untouched"))
    out = tmp_path / "results" / "prepare.json"
    out.parent.mkdir()
    other = {"data": "cub", "size": 84, "machine": "another"}
    out.write_text(json.dumps({"rows": [{"data": "mini-imagenet", "size": 84, "machine": "another"}, other]}))
    words = ["--data", "mini-imagenet", "--from", str(tmp_path / "mini"), "--repeats", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["prepare.py", *words])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    kept, mini = json.loads(out.read_text())["rows"]
    assert kept == other  # the new one takes the place of the old one of the same data
    assert (mini["size"], mini["classes"], mini["images"]) == (84, 3, 6)
    assert mini["source_bytes"] == sum(file.stat().st_size for file in tmp_path.glob("mini/*/*/*"))
    assert {split: (one["classes"], one["images"]) for split, one in mini["open"].items()} == {"train": (2, 4), "val": (1, 2)}
    assert 6 * 3 * 84 * 84 < mini["bank_bytes"] < 6 * 3 * 84 * 84 + 10_000
    assert mini["prepare_seconds"] > 0
    for one in mini["open"].values():
        assert 0 < one["seconds"] < one["seconds"] + one["import_seconds"] < one["process_seconds"]
    assert not (tmp_path / "untouched").exists()


@pytest.mark.slow
def test_variants_are_trained_in_turn_and_can_start_from_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = "alphabets=10 characters=6 drawings=8 steps=2 val_episodes=2 report_episodes=2 val_query=2 recalibrate=0"
    (tmp_path / "list.txt").write_text(f"first {small}\n# a remark\n\nsecond {small} every=1 start=@first\nthird steps=0\n")
    out = tmp_path / "out.json"
    words = ["glyphs-5w1s", str(tmp_path / "list.txt"), "--runs", str(tmp_path / "runs"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["variants.py", *words, "--sizes", "5,1,2,3"])
    runpy.run_path(str(BENCHMARKS / "variants.py"), run_name="__main__")
    first, second, third = json.loads(out.read_text("utf-8"))["rows"]
    assert [row["figures"][0]["episodes"] for row in (first, second)] == [3, 3]
    assert str(tmp_path / "runs" / "first") in (tmp_path / "runs" / "second" / "recipe.toml").read_text("utf-8")
    every = [load_recipe(str(tmp_path / "runs" / name)).validation.every for name in ("first", "second")]
    assert every == [2, 1]  # the last weights, unless told
    assert "steps is 0" in third["error"]
    (tmp_path / "list.txt").write_text(f"first {small}\nfourth {small}\n")
    runpy.run_path(str(BENCHMARKS / "variants.py"), run_name="__main__")
    again, fourth, kept = json.loads(out.read_text("utf-8"))["rows"]
    assert (again, kept) == (first, second)  # what is finished is not trained again, and what is not listed is not lost
    assert fourth["variant"] == "fourth"
    monkeypatch.setattr(sys, "argv", ["variants.py", *words, "--sizes", "5,1,2,4"])
    runpy.run_path(str(BENCHMARKS / "variants.py"), run_name="__main__")  # other episodes, of the same weights
    rows = json.loads(out.read_text("utf-8"))["rows"]
    assert [(row["variant"], row["figures"][0]["episodes"]) for row in rows] == [("first", 4), ("fourth", 4), ("second", 3)]
    assert rows[2] == second
    monkeypatch.setattr(sys, "argv", ["variants.py", "omniglot-5w1s", *words[1:]])
    with pytest.raises(SystemExit, match="has variants with recipe 'glyphs-5w1s', not 'omniglot-5w1s'"):
        runpy.run_path(str(BENCHMARKS / "variants.py"), run_name="__main__")


@pytest.mark.slow
def test_a_shipped_model_is_replaced_when_its_successor_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = "alphabets=10 characters=6 drawings=8 steps=2 every=2 val_episodes=2 report_episodes=2 val_query=2 recalibrate=0"
    train(override(load_recipe("glyphs-5w1s"), small.split()), tmp_path / "run")
    monkeypatch.setattr("sosn.checkpoint.storage.shelf", lambda: tmp_path)
    (tmp_path / "glyphs.safetensors").write_bytes(b"what is shipped")

    def ship(query: int) -> None:
        words = ["ship_model.py", str(tmp_path / "run"), "glyphs", "--query", str(query), "--episodes", "3"]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(BENCHMARKS / "ship_model.py"), run_name="__main__")

    with pytest.raises(SosnError, match="query"):
        ship(query=100)  # more than there are drawings
    assert (tmp_path / "glyphs.safetensors").read_bytes() == b"what is shipped"
    assert not (tmp_path / "glyphs.json").exists()
    ship(query=2)
    card = json.loads((tmp_path / "glyphs.json").read_text("utf-8"))
    assert (card["split"], card["episodes"], card["query"]) == ("val", 3, 2)
    assert card["bytes"] == (tmp_path / "glyphs.safetensors").stat().st_size
    shipped = sosn.evaluate(sosn.load(tmp_path / "glyphs.safetensors"), open_split(load_recipe(str(tmp_path / "run")), "val"),
                            5, 1, 2, 3)  # fmt: skip
    assert card["accuracy"] == shipped.accuracy


@pytest.mark.slow
def test_steps_of_a_recipe_are_timed_with_and_without_the_engine_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    class Watched(trainer.Trainer):
        def advance(self) -> Tensor:
            taken.append(self.recipe.training.engine)
            return super().advance()

    monkeypatch.setattr("time.monotonic", lambda: float(len(taken)))  # a step takes a second

    monkeypatch.setattr(trainer, "Trainer", Watched)
    out = tmp_path / "steps.json"
    small = "alphabets=10 characters=6 drawings=8 episodes_per_step=1 query=1 val_query=2 device=cpu".split()
    words = ["glyphs-5w1s", *small, "--rounds", "2", "--steps", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["steps.py", *words])
    runpy.run_path(str(BENCHMARKS / "steps.py"), run_name="__main__")
    (row,) = json.loads(out.read_text("utf-8"))["rows"]
    assert row["words"] == small
    assert taken[-8:] == ["auto", "auto", "plain", "plain"] * 2
    assert row["ms"] == {"auto": [1000, 1000], "plain": [1000, 1000]}  # a CPU has no graph
    for wrong in (["engine=plain"], ["--steps", "0"], ["start=glyphs"]):
        monkeypatch.setattr(sys, "argv", ["steps.py", "glyphs-5w1s", *wrong, "--out", str(out)])
        with pytest.raises(SystemExit):
            runpy.run_path(str(BENCHMARKS / "steps.py"), run_name="__main__")


@pytest.mark.slow
def test_settings_of_test_time_augmentation_are_held_against_none_on_the_same_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, model = tmp_path / "test-time.json", tmp_path / "model.safetensors"
    pack(model_path("glyphs"), model, ["scales=1", "turns=1"])  # what it has itself counts for nothing
    words = [str(model), "--settings", "scales=1,turns=1,mirror=true", "--sizes", "5,1,3,20", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["test_time.py", *words])
    runpy.run_path(str(BENCHMARKS / "test_time.py"), run_name="__main__")
    rows = json.loads(out.read_text("utf-8"))["rows"]
    monkeypatch.setattr(sys, "argv", ["test_time.py", *words, "--settings", "eta=1"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(BENCHMARKS / "test_time.py"), run_name="__main__")
    assert [row["setting"] for row in rows] == ["", "scales=1,turns=1,mirror=true"]
    assert len({row["fingerprint"] for row in rows}) == 1
    bank = open_split(load_recipe("glyphs-5w1s"), "val")
    settings: list[dict[str, Any]] = [{}, {"scales": 1, "turns": 1, "mirror": True}]
    for row, options in zip(rows, settings, strict=True):
        method = sosn.load("glyphs")
        changed = type(method)(**method.config | {"test_time": options})
        changed.load_state_dict(method.state_dict())
        found = sosn.evaluate(changed, bank, 5, 1, 3, 20, seed=7)
        assert row["accuracy"] == pytest.approx(found.accuracy)
        assert row["difference"] == pytest.approx(row["accuracy"] - rows[0]["accuracy"])
    assert rows[1]["difference"] != 0


@pytest.mark.slow
def test_results_of_further_protocols_are_added_to_a_card_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("safetensors", "json"):
        shutil.copy(shelf() / f"glyphs.{suffix}", tmp_path)
    for module in ("sosn.checkpoint.registry", "sosn.checkpoint.storage"):
        monkeypatch.setattr(f"{module}.shelf", lambda: tmp_path)
    before = model_card("glyphs")
    for sizes in (["3,1,1", "2,2,1"], ["3,1,1"]):
        words = ["glyphs", "--sizes", *sizes, "--words", "drawings=4,seed=5", "--episodes", "2"]
        monkeypatch.setattr(sys, "argv", ["card_figures.py", *words])
        runpy.run_path(str(BENCHMARKS / "card_figures.py"), run_name="__main__")
    card = model_card("glyphs")
    assert [(one["way"], one["shot"], one["seed"]) for one in card["figures"]] == [(2, 2, 5), (3, 1, 5)]
    assert {key: value for key, value in card.items() if key != "figures"} == before
    assert list(card)[-1] == "calibration"
    bank = sosn.open_bank("glyphs", "val", drawings=4)
    found = sosn.evaluate(sosn.load("glyphs"), bank, 2, 2, 1, 2, seed=5)
    assert card["figures"][0]["accuracy"] == found.accuracy
    assert card["figures"][0]["fingerprint"] == found.fingerprint
    capsys.readouterr()
    show_card("glyphs", card)
    told = capsys.readouterr().out
    assert "% on glyphs val classes, drawings=4, seed=5, 2-way 2-shot, 2 episodes of 1 query a class, running" in told


@pytest.mark.slow
def test_answers_and_times_of_a_gallery_are_kept_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sosn, "open_bank", partial(sosn.open_bank, alphabets=10, characters=2, drawings=4))
    out = tmp_path / "gallery.json"
    for part, queries in (("answers", 30), ("times", 2), ("answers", 26)):
        words = [part, "--sizes", "12", "--queries", str(queries), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["gallery.py", *words])
        runpy.run_path(str(BENCHMARKS / "gallery.py"), run_name="__main__")
    told = json.loads(out.read_text("utf-8"))
    answers, times = told["answers"]["rows"][0], told["times"]["rows"][0]
    assert (answers["classes"], answers["queries"], times["classes"], times["queries"]) == (12, 26, 12, 2)
    assert "CPU" in told["times"]["machine"]
    assert all([one["shortlist"] for one in row["shortlists"]] == [10, None] for row in (answers, times))
    listed, every = answers["shortlists"]
    for share, (low, high) in ((listed["recall"], listed["recall_ci95"]), (every["accuracy"], every["accuracy_ci95"])):
        assert 0 <= low <= share <= high <= 1
        assert high - low > 0.2  # 12 classes
    assert every["accuracy"] > 0.5
    assert all(one["ms_a_query"] > 0 for one in times["shortlists"])


@pytest.mark.slow
def test_a_gallery_of_warped_classes_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sosn, "open_bank", partial(sosn.open_bank, alphabets=10, characters=2, drawings=2))
    out = tmp_path / "gallery.json"
    words = ["--model", "glyphs", "--data", "glyphs", "--queries", "10", "--sizes", "60", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gallery_scale.py", *words])
    runpy.run_path(str(BENCHMARKS / "gallery_scale.py"), run_name="__main__")
    (row,) = json.loads(out.read_text("utf-8"))["rows"]
    assert row["classes"] == 60
    assert row["kept_of_exact"] == 1  # 500 are compared by their descriptors
    assert row["recall"] == row["exact_recall"] > 0.8
    assert row["start_mb"] < row["query_mb"]


def test_queries_of_a_gallery_take_every_class_before_another_picture_of_one_and_intervals_are_wilsons() -> None:
    script = runpy.run_path(str(BENCHMARKS / "gallery.py"))
    bank = sosn.open_bank("glyphs", "train", alphabets=10, characters=2, drawings=3)
    classes = {name: bank.class_images(name) for name in bank.names[:3]}
    asked = script["ask"](classes, 5)
    assert [name for name, _ in asked] == [*classes, *bank.names[:2]]
    assert (asked[3][1] == classes[bank.names[0]][2]).all()
    assert len(script["ask"](classes, 100)) == 6
    told = script["share"]([True] * 8 + [False] * 2, [str(number) for number in range(10)], "recall")
    assert told["recall_ci95"] == pytest.approx([0.4902, 0.9433], abs=1e-3)  # by tables
    assert script["share"]([True] * 8 + [False] * 2, ["a", "b"] * 5, "recall")["recall_ci95"][0] < 0.4


@pytest.mark.slow
def test_several_models_are_calibrated_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        shutil.copy(model_path("glyphs"), folder / WEIGHTS_FILE)
    words = [*map(str, folders), "--ways", "1", "--shots", "1", "--episodes", "4", "--query", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["calibrate_model.py", *words])
    runpy.run_path(str(BENCHMARKS / "calibrate_model.py"), run_name="__main__")
    first, second = (calibration_of(folder) for folder in folders)
    assert first is not None
    assert first == second
    assert [(one.way, one.shot, one.episodes, one.queries) for one in first.sizes] == [(1, 1, 20, 40)]
    words = [str(folders[0]), "--ways", "2", "--shots", "1", "--episodes", "4", "--query", "2", "--device", "cpu"]
    for more in (["--add"], []):
        monkeypatch.setattr(sys, "argv", ["calibrate_model.py", *words, *more])
        runpy.run_path(str(BENCHMARKS / "calibrate_model.py"), run_name="__main__")
        found = calibration_of(folders[0])
        assert found is not None
        assert found.sizes[:-1] == (first.sizes if more else ())
        assert [(one.way, one.episodes) for one in found.sizes[-1:]] == [(2, 10)]


@pytest.mark.slow
def test_the_engine_is_held_against_the_layers_one_by_one_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = BENCHMARKS / "engine_accuracy.py"
    small = "alphabets=10 characters=6 drawings=20 steps=2 every=2 val_episodes=2 report_episodes=2 val_query=2 recalibrate=0"
    out = tmp_path / "results" / "engine.json"
    for seeds in (["3"], ["3", "4"]):
        monkeypatch.setattr(sys, "argv", [str(script), "glyphs-5w1s", *small.split(), "--seeds", *seeds, "--out", str(out)])
        script_globals = runpy.run_path(str(script))
        main = script_globals["main"]
        main.__globals__.update(EPISODES=2, QUERIES=2)
        main()
    rows = json.loads(out.read_text("utf-8"))["rows"]
    assert [row["seed"] for row in rows] == [3, 4]
    for row in rows:
        assert row["difference"] == pytest.approx(row["engine"]["accuracy"] - row["plain"]["accuracy"])
        assert row["engine"]["fingerprint"] == row["plain"]["fingerprint"]
        assert (row["engine"]["episodes"], row["engine"]["query"]) == (2, 2)
        assert row["engine"]["seconds"] > 0


@pytest.mark.slow
def test_answers_to_drawings_on_either_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawings = sosn.open_bank("glyphs", "val", alphabets=12, characters=6, drawings=8)
    monkeypatch.setattr(sosn, "open_bank", lambda *_: drawings)
    out = tmp_path / "results" / "background.json"
    words = ["--models", "glyphs", "--tasks", "2", "--splits", "val", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["background.py", *words])
    runpy.run_path(str(BENCHMARKS / "background.py"), run_name="__main__")
    told = json.loads(out.read_text("utf-8"))
    rows = {(row["shown"], row["asked"]): row for row in told["rows"]}
    assert rows["paper", "paper"]["as_is"] == rows["paper", "paper"]["auto"] > 0.8
    assert rows["negatives", "negatives"]["auto"] == rows["paper", "negatives"]["auto"] == rows["paper", "paper"]["auto"]
    assert rows["paper", "negatives"]["as_is"] < 0.6
    assert told["recognised"] == [{"split": "val", "drawings": len(drawings), "turned": 0, "negatives_turned": len(drawings)}]


@pytest.mark.slow
def test_a_profile_names_the_operators_that_take_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(BENCHMARKS / "profile_engine.py"))
    small = {"SHAPE": Shape(5, 1, 1, 28, 1), "CALLS": 2, "WARM": 0}
    monkeypatch.setattr(sys, "argv", ["profile_engine.py", "--device", "cpu", "--out", str(tmp_path / "p.json")])
    for function in ("main", "look", "contenders"):
        script[function].__globals__.update(small)
    script["main"]()
    told = json.loads((tmp_path / "p.json").read_text())
    assert told["shape"] == "5w1s1q 28²"
    kinds = ["training", *["evaluation with encoding"] * 2, *["evaluation"] * 2]
    assert [row["what"].split(",")[0] for row in told["rows"]] == kinds
    for row in told["rows"]:
        assert row["ms"] > 0
        assert sum(part["share"] for part in row["parts"]) == pytest.approx(1)
        shares = [part["share"] for part in row["parts"][:-1]]
        assert shares == sorted(shares, reverse=True)
        assert any("convolution" in part["name"] for part in row["parts"])
