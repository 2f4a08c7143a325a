"""The Omniglot and miniImageNet tables: planned, run, resumed, read again, and put into the ledger."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sosn.checkpoint.storage import load_tensors
from sosn.cli.app import app
from sosn.cli.reproduce import _show_claims
from sosn.data.bank import Bank
from sosn.errors import DataError, SosnError, TrainingError, UsageError
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe
from sosn.reproduce import claims, mini_imagenet, omniglot, running
from sosn.reproduce import table as planned
from sosn.reproduce.ledger import Entry, gap, ledger_file, of_row, read_entry, read_ledger, same_recipe, summarise, write_entry
from sosn.reproduce.paper import MINI_IMAGENET, OMNIGLOT, PUBLISHED, ahead
from sosn.reproduce.parallel import Failure, Task
from sosn.reproduce.row import LONG, Measure, Row, changes
from sosn.reproduce.table import TABLES, Job, Options, plan, reproduce_rows
from sosn.training import Silent
from sosn.training.setup import open_split
from tests.conftest import Listener

CPU = ["device=cpu"]
ROWS = [row for rows in TABLES.values() for row in rows]
SIGME = "sigme-vinyals-5w1s"


def trained(listener: Listener) -> list[str]:
    return [sentence for sentence in listener.said if "training in" in sentence]


class Interrupted(Silent):
    """Somebody who presses Ctrl-C after some steps."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, step: int, loss: float | None) -> None:
        if step == self.last:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))


def _images(folder: Path, count: int, seed: int, size: int = 20) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        Image.fromarray(random.integers(0, 256, (size, size, 3), np.uint8)).save(folder / f"{number:02}.png")


def characters(root: Path) -> Path:
    """A tree as Omniglot's authors have it: an alphabet for each of Vinyals' splits."""
    for split, alphabet in enumerate(("Greek", "Hebrew", "Tibetan")):
        for number in range(6):
            _images(root / "images_background" / alphabet / f"character{number:02}", 6, 10 * split + number)
    return root


def photos(root: Path, splits: tuple[str, ...] = ("train", "val")) -> Path:
    """A tree as miniImageNet is given out."""
    for place, split in enumerate(splits):
        for number in range(5):
            _images(root / split / f"n0000{place}00{number}", 20, 10 * place + number)
    return root


# The plan


def test_row_ids_are_unique_and_every_row_resolves_to_a_recipe_of_its_seed() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        recipe = row.resolve(7)
        assert recipe.seed == 7
        assert recipe.validation.val_seed != recipe.validation.report_seed
        if not row.table.startswith("open-mic"):  # whose validation classes are too few for 20 ways
            assert (recipe.val_way, recipe.val_shot) in {(one.way, one.shot) for one in row.measures}


def _episodes(row: Row) -> int:
    recipe = row.resolve(0)
    return recipe.training.steps * recipe.episodes.episodes_per_step


def test_rows_that_are_compared_have_one_budget() -> None:
    one = (mini_imagenet.ONE_BUDGET, mini_imagenet.OTHER, "224×224")
    assert {_episodes(row) for row in mini_imagenet.ROWS if row.group in one} == {60_000}
    assert {_episodes(row) for row in mini_imagenet.ROWS if row.group == LONG} == {200_000}
    assert {_episodes(row) for row in mini_imagenet.ROWS if row.group == "ablation"} == {20_000}
    partitions = [f"{partition} partition" for partition in omniglot.PARTITIONS]
    for way, wanted in ((5, 20_000), (20, 10_000)):
        own = [row for row in omniglot.ROWS if row.group in partitions and row.resolve(0).episodes.way == way]
        assert {_episodes(row) for row in own} == {wanted}
        assert len(own) == 16


def test_rows_of_one_budget_differ_in_the_model_and_in_what_its_authors_ask_for_alone() -> None:
    own = {"loss", "clip", "precision", "recalibrate"}
    for protocol in mini_imagenet.SHOTS:
        rows = [row for row in mini_imagenet.ROWS if row.group == mini_imagenet.ONE_BUDGET and row.id.endswith(protocol)]
        tables = [row.resolve(0).to_table() for row in rows]
        for table in tables[1:]:
            for section in ("data", "episodes", "augmentation", "validation"):
                assert table[section] == tables[0][section]
            assert {key for key, value in table["training"].items() if value != tables[0]["training"][key]} <= own


def test_ranked_is_not_trained_at_one_shot_where_it_is_the_average() -> None:
    for row in ROWS:
        recipe = row.resolve(0)
        again = not row.start and recipe.model.options.get("relation") == "ranked"
        assert not again or recipe.episodes.shot > 1


def test_an_ablation_changes_what_it_is_called_after() -> None:
    base = claims.find("mini-imagenet", mini_imagenet.BASE).resolve(0).to_table()
    keys = {"eta": {"eta"}, "beta": {"shift"}, "permutations": {"permutations"}, "size": {"input_size"}}
    keys["augmentation"] = {"flip", "translate", "jitter", "rotate", "rotations"}
    keys["gamma"] = {"power_norm", "gamma", "trace_normalise"}
    for family, (_, values) in mini_imagenet.ABLATIONS.items():
        shared = sum(mini_imagenet.ablation_id(family, value) == mini_imagenet.BASE for value in values)
        assert shared == (family != "gamma")  # the base row is SigmE's
        for value in values:
            table = claims.find("mini-imagenet", mini_imagenet.ablation_id(family, value)).resolve(0).to_table()
            changed = {
                key
                for section in (
                    "data",
                    "model",
                    "encoder",
                    "preprocessing",
                    "test_time",
                    "episodes",
                    "augmentation",
                    "training",
                    "validation",
                )
                for key in table[section]
                if table[section][key] != base[section].get(key)
            }
            assert changed <= keys[family]
            assert bool(changed) == bool(values[value])


def test_rows_of_two_stages_train_the_first_one_before_with_the_same_seed(tmp_path: Path) -> None:
    rows, wanted = [claims.find("mini-imagenet", f"best-{protocol}") for protocol in ("5w1s", "5w5s")], Options(seeds=(3, 4))
    jobs = plan(rows, tmp_path, wanted)
    assert [job.folder.name for job in jobs] == [
        f"best-{stage}-seed{seed}" for stage in ("pretrain", "5w1s", "5w5s") for seed in (3, 4)
    ]
    assert [job.recipe.training.start for job in jobs] == ["", ""] + 2 * [str(job.folder) for job in jobs[:2]]
    for job in jobs[2::2]:  # seed 3 of both is finished: its first stage is not wanted any more
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").touch()
    assert [job.folder for job in plan(rows, tmp_path, wanted)] == [job.folder for job in jobs[1:]]


def test_every_start_is_a_row_whose_encoder_and_matrices_fit() -> None:
    for row in ROWS:
        if row.start:
            first, own = claims.find(row.table, row.start).resolve(0), row.resolve(0)
            differ = {"rotations"}  # turned classes are there to be told apart, or not to be
            assert all(own.data.options[name] == value for name, value in first.data.options.items() if name not in differ)
            same = "encoder encoder_width input_size conv4_pools conv4_blocks resnet12_pools eta shift"
            for option in same.split():
                assert first.model.options.get(option) == own.model.options.get(option)


def test_every_row_of_the_tables_is_in_the_paper_or_has_another_label() -> None:
    for row in ROWS:
        ours = row.group in (
            "ablation", "image size", "first stage", "best recipe", "best recipe, paper partition", "beyond the paper",
            mini_imagenet.OTHER,
        )  # fmt: skip
        assert (row.label in PUBLISHED[row.table]) == (not ours and not row.id.startswith("long-centred"))
        assert not row.beside or row.beside in PUBLISHED[row.table]


def test_the_papers_figures_are_as_printed() -> None:
    sigme = MINI_IMAGENET["SoSN(⊗)+SigmE"]
    assert [(str(figure), figure.accuracy, figure.ci95) for figure in sigme.values()] == [
        ("52.96 ± 0.83", 52.96, 0.83),
        ("68.63 ± 0.68", 68.63, 0.68),
    ]
    assert str(MINI_IMAGENET["SoSN(⊗)+AsinhE"]["5w1s"]) == "52.10 ± 0.82"
    assert [figure.accuracy for figure in OMNIGLOT["SoSN(⊗)+SigmE"].values()] == [99.8, 99.9, 98.3, 99.4]
    assert OMNIGLOT["Prototypical Net"]["5w1s"].ci95 is None
    assert list(OMNIGLOT["Meta Nets"]) == ["5w1s", "20w1s"]
    assert ahead("mini-imagenet", "SoSN(⊗)+SigmE", "SoSN(⊗)+AsinhE", "5w1s") == 0.86  # "∼0.9%"
    assert ahead("mini-imagenet", "SoSN(⊗)+SigmE", "Relation Net", "5w1s") == 2.52  # "2.5%"
    assert ahead("mini-imagenet", "SoSN(⊗)+SigmE", "Prototypical Net", "5w5s") == 0.43
    with pytest.raises(KeyError, match="20w1s"):
        ahead("mini-imagenet", "SoSN(⊗)+SigmE", "Relation Net", "20w1s")


def test_headline_rows_are_the_papers_model_and_ours_beside_it_but_for_long_trainings() -> None:
    headline = {row.id for row in ROWS if row.headline}
    assert {"sigme-5w1s", "best-5w5s", "resnet12-5w1s", "sigme-paper-20w1s", "best-20w1s"} <= headline
    assert not {"long-5w1s", "asinhe-5w1s", "unchanged-5w1s", "centred-5w5s", "long-centred-5w1s", "best-pretrain"} & headline


def test_rows_of_other_settings_change_what_they_are_called_after() -> None:
    base = claims.find("mini-imagenet", "sigme-5w1s").resolve(0)
    unchanged, centred = (claims.find("mini-imagenet", f"{name}-5w1s").resolve(0) for name in ("unchanged", "centred"))
    assert (unchanged.model, unchanged.training) == (base.model, base.training)
    assert (unchanged.augmentation.flip, unchanged.augmentation.translate, unchanged.augmentation.jitter) == (False, 0, 0)
    assert (centred.augmentation, centred.training) == (base.augmentation, base.training)
    assert centred.model.options == base.model.options | {"shift": 1.0}
    for norm in ("asinhe", "none"):
        plain, own = (claims.find("mini-imagenet", f"{name}-5w5s").resolve(0) for name in (norm, f"centred-{norm}"))
        assert own.model.options == plain.model.options | {"shift": 1.0}
    for row in ROWS:
        assert set(row.against) <= {one.id for one in ROWS if one.table == row.table}
    long, shifted = (claims.find("mini-imagenet", f"{name}-5w1s").resolve(0) for name in ("long", "long-centred"))
    assert shifted.model.options == long.model.options | {"shift": 1.0}
    assert (shifted.augmentation, shifted.training, shifted.episodes) == (long.augmentation, long.training, long.episodes)


def test_omniglot_is_compared_on_both_partitions_and_all_protocols() -> None:
    pairs = {(one.first, one.second, one.protocol) for claim in claims.CLAIMS for one in claim.contrasts}
    for rival in ("relation-net", "prototypical", "asinhe"):
        for partition in ("vinyals", "paper"):
            wanted = {(f"sigme-{partition}-{p}", f"{rival}-{partition}-{p}", p) for p in omniglot.PROTOCOLS}
            assert wanted <= pairs


def test_claims_refer_to_rows_that_measure_what_is_compared() -> None:
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS)
    for claim in claims.CLAIMS:
        assert claim.contrasts or claim.experiments
        for one in claim.contrasts:
            assert one.measure in claims.find(one.table, one.second).measures
    papers = {(one.first, one.second): one.paper for claim in claims.CLAIMS for one in claim.contrasts}
    assert papers["sigme-5w1s", "none-5w1s"] == 2.08
    assert papers["permutations-5w1s", "sigme-5w1s"] == 1.56  # the text has 1.8
    assert papers["ablation-base", "size-28"] is None


def test_what_a_row_decides_cannot_be_overridden() -> None:
    for word in ("seed=3", "way=7", "episodes.shot=2"):
        with pytest.raises(UsageError, match=f"{word!r} cannot be set"):
            plan(omniglot.ROWS[:1], Path(), Options(overrides=[word]))
    assert changes(["device=cpu", "training.engine=plain", "steps=3", "data.workers=2"]) == ["steps=3"]


# Running


@pytest.mark.slow
def test_rows_run_in_parallel_equal_those_run_one_by_one(tmp_path: Path) -> None:
    row, source, listener = "prototypical-vinyals-5w1s", characters(tmp_path / "source"), Listener()
    wanted = Options([row], (0, 1), CPU, quick=True, data=source)
    one_by_one = reproduce_rows("omniglot", tmp_path / "alone", replace(wanted, estimate=False), listener)
    assert "2 of 2 trainings to run" in listener.said
    together = replace(wanted, jobs=2)
    both = reproduce_rows("omniglot", tmp_path / "together", together, listener)
    assert [entry["seed"] for entry in both.entries] == [0, 1]
    for ours, theirs in zip(both.entries, one_by_one.entries, strict=True):
        assert ours["figures"] == theirs["figures"]
        assert ours["recipe"] == theirs["recipe"]
    assert re.fullmatch(r"2 of 2 trainings to run: about .* on this machine, one after another", listener.said[-4])
    assert (
        listener.said[-3]
        == f"running 2 at a time; the output of each is in TABLE/ROW-seedN.log in {str(tmp_path / 'together')!r}"
    )
    assert f"omniglot/{row}, seed 1: done in" in " ".join(listener.said)
    assert "step 4/4" in (tmp_path / "together" / "omniglot" / f"{row}-seed0.log").read_text("utf-8")
    listener.said.clear()
    assert reproduce_rows("omniglot", tmp_path / "together", together, listener).entries == both.entries
    assert listener.said == []  # what is finished is read


@pytest.mark.slow
def test_rows_that_diverge_in_parallel_are_reported_and_not_tried_again(tmp_path: Path) -> None:
    row, source, listener = "prototypical-vinyals-5w1s", characters(tmp_path / "source"), Listener()
    wanted = Options([row], (0, 1), [*CPU, "learning_rate=1e30"], quick=True, data=source, jobs=2, estimate=False)
    result = reproduce_rows("omniglot", tmp_path / "runs", wanted, listener)
    assert result.entries == []
    assert set(result.skipped) == {f"omniglot/{row}, seed {seed}" for seed in (0, 1)}
    assert all(reason.startswith("loss is not finite at step") for reason in result.skipped.values())
    assert not any("training in" in sentence for sentence in listener.said)
    with pytest.raises(UsageError, match="jobs is 0; it must be 1 or more"):
        reproduce_rows("omniglot", tmp_path / "runs", replace(wanted, jobs=0))


def test_tasks_wait_for_first_stages_and_take_all_that_was_asked_for_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Task] = []

    def fail(tasks: list[Task], at_once: int, say: Callable[[str], None]) -> dict[str, Failure]:
        asked.extend(tasks)
        return {task.name: Failure("no", task is tasks[0]) for task in tasks}

    monkeypatch.setattr(planned, "prepare_missing", lambda *_: True)
    monkeypatch.setattr(planned, "run_parallel", fail)
    wanted = Options(["best-5w*"], (0, 1), CPU, ledger=tmp_path / "ledger", jobs=2, estimate=False)
    with pytest.raises(SosnError, match="1 of 6 trainings failed, such as mini-imagenet/best-pretrain, seed 0: no; the"):
        reproduce_rows("mini-imagenet", tmp_path / "runs", wanted)
    names = {task.name for task in asked}
    assert len(names) == 6
    for task in asked:
        seed = task.name[-1]
        assert task.after == ("" if "pretrain" in task.name else f"mini-imagenet/best-pretrain, seed {seed}")
        assert task.after in names | {""}
        row = task.name.split("/")[1].split(",")[0]
        folder = tmp_path / "runs" / "mini-imagenet" / f"{row}-seed{seed}"
        assert (task.makes, task.log) == (folder / "entry.json", folder.with_name(f"{row}-seed{seed}.log"))
        words = f"-m sosn reproduce mini-imagenet {' '.join(CPU)} --rows {row} --seeds {seed} --out {tmp_path / 'runs'}"
        assert task.command[1:] == (*words.split(), "--no-estimate", "--ledger", str(tmp_path / "ledger"))


def test_a_row_whose_first_stage_diverged_is_reported_and_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(job: Job, *_: object) -> Entry:
        if "pretrain" in job.row.id:
            raise TrainingError("loss is not finite")
        return {"row": job.row.id}

    monkeypatch.setattr(planned, "prepare_missing", lambda *_: True)
    monkeypatch.setattr(planned, "_run", run)
    wanted = Options(["best-5w1s", "sigme-5w1s"], (0,), CPU, estimate=False)
    result = reproduce_rows("mini-imagenet", tmp_path, wanted)
    assert result.entries == [{"row": "sigme-5w1s"}]
    assert result.skipped == {
        "mini-imagenet/best-pretrain, seed 0": "loss is not finite",
        "mini-imagenet/best-5w1s, seed 0": "it starts from mini-imagenet/best-pretrain, seed 0, which failed",
    }


@pytest.mark.slow
def test_a_row_is_prepared_for_run_measured_and_read_again(tmp_path: Path) -> None:
    source = characters(tmp_path / "source")
    words = f"reproduce omniglot --rows {SIGME} --seeds 0 1 --quick --data {source} --out {tmp_path / 'runs'} --json device=cpu"
    first = CliRunner().invoke(app, words.split())
    assert first.exit_code == 0, first.output
    assert "preparing omniglot at 28×28" in first.stderr
    assert "2 of 2 trainings to run: about" in first.stderr
    printed = json.loads(first.stdout)
    assert printed["rows"][0]["paper"]["5w1s"] == {"accuracy": 0.998, "ci95": pytest.approx(0.001)}
    assert [entry["seed"] for entry in printed["entries"]] == [0, 1]
    entry = printed["entries"][0]
    assert entry == read_entry(tmp_path / "runs" / "omniglot" / f"{SIGME}-seed0" / "entry.json")
    assert {(one["split"], one["protocol"], one["statistics"]) for one in entry["figures"]} == {
        (split, "5w1s", statistics) for split in ("val", "test") for statistics in ("running", "batch")
    }
    for one in entry["figures"]:
        assert (one["way"], one["shot"], one["query"], one["episodes"], one["seed"]) == (5, 1, 1, 4, 0)
        assert 0 <= one["accuracy"] <= 1
        assert one["fingerprint"]
    assert (entry["quick"], entry["changed"], entry["recipe"]["training"]["steps"]) == (True, [], 4)
    assert entry["parameters"] == 226_513
    assert entry["data"]["train"]["classes"] == 24  # with rotations
    assert entry["seconds"] > 0
    assert entry["validation"]["steps"] == [2, 4]
    assert all(0 <= accuracy <= 1 for accuracy in entry["validation"]["accuracy"])
    assert len(entry["validation"]["accuracy"]) == 2
    assert str(tmp_path) not in json.dumps(printed["entries"])
    listener = Listener()
    again = reproduce_rows("omniglot", tmp_path / "runs", Options([SIGME], (0, 1), CPU, quick=True), listener)
    assert again.entries == printed["entries"]
    assert listener.said == []
    (tmp_path / "home" / "omniglot-28").rename(tmp_path / "gone")  # finished rows need no images
    assert (
        reproduce_rows("omniglot", tmp_path / "runs", Options([SIGME], (0, 1), CPU, quick=True)).entries == printed["entries"]
    )
    shown = CliRunner().invoke(app, words.replace(" --json", "").split())
    assert "99.8 ± 0.1" in shown.stdout


@pytest.mark.slow
def test_an_interrupted_row_continues_to_the_same_weights(tmp_path: Path) -> None:
    wanted = Options([SIGME], overrides=CPU, quick=True, data=characters(tmp_path / "source"))
    whole = reproduce_rows("omniglot", tmp_path / "whole", wanted)
    with pytest.raises(KeyboardInterrupt):
        reproduce_rows("omniglot", tmp_path / "broken", wanted, Interrupted(3))
    folder = tmp_path / "broken" / "omniglot" / f"{SIGME}-seed0"
    assert not (folder / "entry.json").exists()
    listener = Listener()
    resumed = reproduce_rows("omniglot", tmp_path / "broken", wanted, listener)
    assert len(trained(listener)) == 1
    assert resumed.entries[0]["figures"] == whole.entries[0]["figures"]
    weights = [
        load_tensors(tmp_path / one / "omniglot" / f"{SIGME}-seed0" / "model.safetensors")[0] for one in ("whole", "broken")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    (folder / "entry.json").unlink()  # stopped between training and measuring
    listener = Listener()
    assert reproduce_rows("omniglot", tmp_path / "broken", wanted, listener).entries == resumed.entries
    assert trained(listener) == []


@pytest.mark.slow
def test_a_run_of_other_settings_is_not_taken_for_the_row(tmp_path: Path) -> None:
    wanted = Options([SIGME], overrides=CPU, quick=True, data=characters(tmp_path / "source"))
    reproduce_rows("omniglot", tmp_path / "runs", wanted)
    with pytest.raises(UsageError, match=r"training.steps=4, not 2"):
        reproduce_rows("omniglot", tmp_path / "runs", Options([SIGME], overrides=[*CPU, "steps=2"], quick=True))


@pytest.mark.slow
def test_a_missing_split_is_reported_and_measured_later(tmp_path: Path) -> None:
    wanted = Options(["none-5w1s"], overrides=[*CPU, "input_size=28"], quick=True, data=photos(tmp_path / "photos"))
    first = reproduce_rows("mini-imagenet", tmp_path / "runs", wanted)
    assert first.entries[0]["missing"] == {"test": "mini-imagenet at 84×84 was prepared without test images"}
    assert {one["split"] for one in first.entries[0]["figures"]} == {"val"}
    assert first.entries[0]["changed"] == ["input_size=28"]
    for file in (tmp_path / "home" / "mini-imagenet-84").iterdir():
        file.unlink()
    (tmp_path / "home" / "mini-imagenet-84").rmdir()
    wanted = Options(wanted.rows, overrides=wanted.overrides, quick=True, data=tmp_path / "photos")
    photos(tmp_path / "more", ("a", "b", "test"))
    (tmp_path / "more" / "test").rename(tmp_path / "photos" / "test")
    words = f"data prepare mini-imagenet --from {tmp_path / 'photos'}"
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    listener = Listener()
    second = reproduce_rows("mini-imagenet", tmp_path / "runs", wanted, listener)
    assert trained(listener) == []
    assert second.entries[0]["missing"] == {}
    assert second.entries[0]["figures"][:2] == first.entries[0]["figures"]
    assert {one["split"] for one in second.entries[0]["figures"][2:]} == {"test"}


@pytest.mark.slow
def test_rows_without_images_are_skipped_and_all_of_them_are_an_error(tmp_path: Path) -> None:
    wanted = Options(["sigme-5w1s", "sigme-224-5w1s"], overrides=[*CPU, "input_size=28"], quick=True)
    with pytest.raises(
        DataError, match="mini-imagenet at 84×84 is not prepared: give the folder of the dataset with --data DIR"
    ):
        reproduce_rows("mini-imagenet", tmp_path / "runs", wanted)
    assert not (tmp_path / "runs").exists()
    words = f"data prepare mini-imagenet --from {photos(tmp_path / 'photos')}"
    assert CliRunner().invoke(app, words.split()).exit_code == 0
    result = reproduce_rows("mini-imagenet", tmp_path / "runs", wanted)
    assert [entry["row"] for entry in result.entries] == ["sigme-5w1s"]
    assert list(result.skipped) == ["mini-imagenet/sigme-224-5w1s, seed 0"]
    (tmp_path / "home" / "mini-imagenet-84").rename(tmp_path / "gone")  # a finished seed is read all the same
    more = reproduce_rows("mini-imagenet", tmp_path / "runs", replace(wanted, rows=["sigme-5w1s"], seeds=(0, 1)))
    assert more.entries == result.entries
    assert list(more.skipped) == ["mini-imagenet/sigme-5w1s, seed 1"]


@pytest.mark.slow
def test_the_ledger_takes_rows_as_they_are_planned_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more in (Options(quick=True, ledger=tmp_path), Options(overrides=["steps=2"], ledger=tmp_path)):
        with pytest.raises(
            UsageError, match=r"--ledger takes only unchanged rows: remove --ledger, or remove (--quick|steps=2)"
        ):
            reproduce_rows("omniglot", tmp_path / "runs", more)
    tiny = (
        "steps=2 every=2 episodes_per_step=1 query=2 val_episodes=2 val_query=2 report_episodes=2 recalibrate=1 precision=fp32"
    )
    row = claims.find("omniglot", SIGME)
    small = Row(row.table, row.group, row.id, row.label, row.recipe, (*row.words, *tiny.split()), row.measures)
    monkeypatch.setitem(TABLES, "omniglot", (small,))
    wanted = Options(seeds=(0, 2), overrides=CPU, data=characters(tmp_path / "source"), ledger=tmp_path / "ledger")
    result = reproduce_rows("omniglot", tmp_path / "runs", wanted)
    files = sorted(path.relative_to(tmp_path / "ledger").as_posix() for path in (tmp_path / "ledger").rglob("*.json"))
    assert files == [f"omniglot/{SIGME}-seed0.json", f"omniglot/{SIGME}-seed2.json"]
    assert read_ledger(tmp_path / "ledger") == result.entries
    before = result.entries[0] | {"weights": "of another training"}
    file = ledger_file(tmp_path / "ledger", before)
    write_entry(file, before)
    listener = Listener()
    reproduce_rows("omniglot", tmp_path / "runs", replace(wanted, seeds=(0, 2)), listener)
    assert "seed0.json' comes from another training and was kept: move it away" in listener.said[-1]
    assert read_ledger(tmp_path / "ledger") == [before, result.entries[1]]
    del before["weights"], before["validation"]  # of an earlier version, and of the same training by all that it tells
    write_entry(file, before)
    reproduce_rows("omniglot", tmp_path / "runs", replace(wanted, seeds=(0,)))
    assert read_ledger(tmp_path / "ledger") == result.entries
    assert all(same_recipe(entry, small) for entry in result.entries)
    assert not same_recipe(result.entries[0], row)
    del result.entries[0]["recipe"]["model"]["alpha"]  # an option that came later counts with its default
    assert same_recipe(result.entries[0], small)
    result.entries[0]["recipe"]["model"]["coordinates"] = 0  # one that is gone makes no difference if it was off
    assert same_recipe(result.entries[0], small)
    result.entries[0]["recipe"]["model"]["coordinates"] = 1
    assert not same_recipe(result.entries[0], small)
    result.entries[0]["recipe"]["model"] = {"method": "no_more"}
    assert not same_recipe(result.entries[0], small)


@pytest.mark.slow
def test_a_damaged_bank_is_not_a_missing_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Options(["none-5w1s"], overrides=[*CPU, "input_size=28"], quick=True, data=photos(tmp_path / "photos"))
    first = reproduce_rows("mini-imagenet", tmp_path / "runs", wanted).entries[0]
    assert set(first["missing"]) == {"test"}
    entry = tmp_path / "runs/mini-imagenet/none-5w1s-seed0/entry.json"
    document = json.loads(entry.read_text("utf-8"))
    entry.write_text(json.dumps(document | {"figures": []}), "utf-8")

    def damaged(recipe: Recipe, split: str, say: Callable[[str], None]) -> Bank:
        if split == "val":
            raise DataError("the bank is damaged")
        return open_split(recipe, split, say)

    monkeypatch.setattr(planned, "open_split", damaged)
    with pytest.raises(DataError, match="the bank is damaged"):
        reproduce_rows("mini-imagenet", tmp_path / "runs", wanted)


def test_trainings_whose_steps_take_longer_are_timed_by_themselves() -> None:
    def configuration(name: str, *words: str) -> tuple[object, ...]:
        return running._configuration(claims.find("mini-imagenet", name).resolve(0, words))

    assert configuration("sigme-5w1s") == configuration("sigme-5w1s", "eta=5", "seed=3", "shift=1")
    pairs = (("matching-5w1s", "matching-plain-5w1s"), ("sigme-5w1s", "streams-5w1s"), ("best-pretrain", "resnet12-pretrain"))
    assert all(configuration(one) != configuration(other) for one, other in pairs)
    for words in (["precision=fp32"], ["engine=plain"], ["permutations=3"], ["jitter=0"]):
        assert configuration("sigme-5w1s") != configuration("sigme-5w1s", *words)
    assert configuration("maml-5w1s") != configuration("maml-5w1s", "inner_steps=50")


def test_a_best_row_is_held_against_the_figure_that_it_stands_beside() -> None:
    contrast = claims.Contrast("mini-imagenet", "best-5w1s", "none-5w1s", "5w1s")
    assert contrast.paper == pytest.approx(52.96 - 50.88)


def test_the_estimate_is_that_of_steps_and_of_scoring_at_a_third_of_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def half_a_second(recipe: Recipe) -> float:
        timed.append(recipe.training.steps)
        return 0.5

    monkeypatch.setattr(running, "_step_seconds", half_a_second)
    words = "alphabets=10 characters=3 drawings=6 every=30 val_episodes=10 val_query=2".split()
    recipe = override(load_recipe("glyphs-5w1s"), words)  # a step scores 3 episodes × 5 classes × 5 queries = 75 pairs
    long, short = (override(recipe, more.split()) for more in ("steps=100 report_episodes=20", "steps=40 report_episodes=25"))
    # 4 validations × 10 + 20 episodes × 5 × 10 pairs, and 600 more: 48 steps' worth, which count as 16: (100 + 16) × 0.5 s
    assert running.estimate([(long, 600)]) == "about 58 seconds on this machine"
    # 2 × 10 + 25 episodes × 50 pairs: 30 steps' worth, which count as 10: (40 + 10) × 0.5 s more
    assert running.estimate([(long, 600), (short, 0)]) == "about 83 seconds on this machine"
    assert timed == [100, 100]  # one for each configuration
    wide = override(recipe, ["way=1000"])
    assert running.estimate([(wide, 0), (short, 0)]) == "about 25 seconds on this machine"
    assert running.estimate([(wide, 0)]) == "none has enough images"


@pytest.mark.slow
def test_a_row_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    source, rate = characters(tmp_path / "source"), "learning_rate=1e30"
    result = reproduce_rows("omniglot", tmp_path / "runs", Options([SIGME], (0, 1), [*CPU, rate], quick=True, data=source))
    assert result.entries == []
    assert list(result.skipped) == [f"omniglot/{SIGME}, seed 0", f"omniglot/{SIGME}, seed 1"]
    assert "is not finite" in result.skipped[f"omniglot/{SIGME}, seed 0"]


@pytest.mark.slow
def test_claims_run_their_rows_and_experiments_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = photos(tmp_path / "photos")
    (bursts,) = (one for one in claims.CLAIMS if one.id == "burstiness")
    assert [one.row for one in bursts.experiments] == ["sigme-5w1s", "asinhe-5w1s", "none-5w1s"]
    monkeypatch.setattr(claims, "CLAIMS", (replace(bursts, experiments=bursts.experiments[1:]),))  # two are enough
    words = f"reproduce claims --rows burst* --quick --data {source} --out {tmp_path / 'runs'} --json "
    words += "device=cpu input_size=28 report_episodes=2"
    first = CliRunner().invoke(app, words.split())
    assert first.exit_code == 0, first.output
    (claim,) = json.loads(first.stdout)["claims"]
    assert [one["of"]["row"] for one in claim["experiments"]] == ["asinhe-5w1s", "none-5w1s"]
    assert {one["change"] for one in claim["experiments"][0]["results"]} >= {"patch 2×2", "replaced 2×2", "tiled 2×2"}
    assert str(tmp_path) not in first.stdout
    again = CliRunner().invoke(app, words.replace(" --json", "").split())
    assert again.exit_code == 0, again.output
    assert again.stderr == ""
    assert "Power normalisation discards how often a texture repeats" in again.stdout
    assert "[…] can detect co-occurring responses" in again.stdout  # brackets are the quotation's, no markup


def test_a_claim_is_printed_with_its_quotation_and_the_names_of_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    (claim,) = (one for one in claims.CLAIMS if one.id == "sigme-none")
    figures = (("sigme-5w1s", 0.52), ("none-5w1s", 0.5))
    _show_claims(claims.Claimed((claim,), [entry(row, 0, accuracy) for row, accuracy in figures]), quick=False)
    printed = capsys.readouterr().out
    assert "“Tables [of miniImageNet and Open MIC] show" in printed
    heads, first = (line for line in printed.splitlines() if "minus" in line or "sigme-5w1s" in line)
    assert [cell.strip() for cell in heads.split("┃")][1:3] == ["row", "minus"]
    assert [cell.strip() for cell in first.split("│")][1:3] == ["sigme-5w1s", "none-5w1s"]
    assert "+2.00" in first


@pytest.mark.real_data
@pytest.mark.slow
def test_a_row_runs_on_real_omniglot(
    real_omniglot: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOSN_HOME", str(real_omniglot[0]))
    wanted = Options(["prototypical-paper-20w1s"], overrides=[*CPU, "size=42"], quick=True)
    entry = reproduce_rows("omniglot", tmp_path / "runs", wanted).entries[0]
    assert entry["data"]["train"]["classes"] == 4 * 1100
    assert {one["protocol"] for one in entry["figures"] if one["split"] == "test"} == set(omniglot.PROTOCOLS)
    assert all(one["accuracy"] > 1 / one["way"] for one in entry["figures"])


# The command


def test_the_command_lists_rows_and_claims_without_running(tmp_path: Path) -> None:
    run: Callable[[str], Any] = lambda words: CliRunner().invoke(app, ["reproduce", *words.split()])  # noqa: E731
    shown = run("mini-imagenet --list --rows sigme-5w* streams-5w1s")
    assert shown.stdout.count("sosn train mini-imagenet-5w") == 3
    assert "paper: 5w1s 54.72 ± 0.89" in shown.stdout
    assert "3 rows" in shown.stdout
    assert len(json.loads(run("omniglot --list --json").stdout)) == len(omniglot.ROWS)
    listed = run("claims --list").stdout
    assert "∼0.9% better than AsinhE" in listed
    assert "mini-imagenet/ranked-5w5s" in listed


def _as_a_shell_reads(listing: str) -> dict[str, list[str]]:
    """The last command of each row, the array COMMON in its place, by the row's id."""
    given, common = listing.replace("\\\n", ""), ""
    if given.startswith("COMMON="):
        common, given = given.removeprefix("COMMON=(").split(")", 1)
    commands: dict[str, list[str]] = {}
    name = ""
    for line in given.strip().splitlines()[:-1]:
        if line.startswith("    "):
            commands[name] = line.replace('"${COMMON[@]}"', common).split()
        else:
            name = line.split()[0]
    return commands


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["", " --rows sigme-*", " --rows size-*"])
@pytest.mark.parametrize("table", ["omniglot", "mini-imagenet"])
def test_the_list_prints_common_words_once_and_commands_that_run(table: str, rows: str) -> None:
    shown = CliRunner().invoke(app, f"reproduce {table} --list{rows}".split()).stdout
    assert shown.count("optimiser=adamw") == 1
    assert max(map(len, shown.splitlines())) <= 140
    commands = _as_a_shell_reads(shown)
    whole = CliRunner().invoke(app, f"reproduce {table} --list --json{rows}".split()).stdout
    listed = {one["row"]: one for one in json.loads(whole)}
    assert commands.keys() == listed.keys()
    for row in TABLES[table]:
        if row.id not in commands:
            continue
        assert listed[row.id]["overrides"] == list(row.words)  # complete
        sosn, train, recipe, *words, option, folder = commands[row.id]
        assert (sosn, train, recipe, option, folder) == ("sosn", "train", row.recipe, "--out", f"runs/{row.name}")
        start = [f"start=runs/{table}/{row.start}"] if row.start else []
        assert [word for word in words if word.startswith("start=")] == start
        own = override(load_recipe(recipe), [word for word in words if word not in start])
        assert own == replace(row.resolve(0), title=own.title)


def test_a_single_row_is_listed_with_its_whole_command() -> None:
    shown = CliRunner().invoke(app, "reproduce mini-imagenet --list --rows sigme-5w1s".split()).stdout
    (row,) = (one for one in TABLES["mini-imagenet"] if one.id == "sigme-5w1s")
    whole = ["sosn", "train", row.recipe, *row.words, "--out", "runs/mini-imagenet/sigme-5w1s"]
    assert _as_a_shell_reads(shown) == {row.id: whole}


def test_the_list_prints_the_start_of_a_row() -> None:
    run: Callable[[str], str] = lambda words: CliRunner().invoke(app, ["reproduce", *words.split()]).stdout  # noqa: E731
    for table, protocol in (("mini-imagenet", "5w5s"), ("omniglot", "20w1s")):
        first, second = (f"runs/{table}/best-{name}" for name in ("pretrain", protocol))
        shown = [line.strip() for line in run(f"{table} --list --rows best-{protocol}").splitlines()]
        assert shown[1] == f"sosn train {table}-best-pretrain --out {first}"
        assert shown[2] == f"sosn train {table}-best-{protocol} start={first} --out {second}"
        assert "1 rows" in shown[3]
        listed = {row["row"]: row["start"] for row in json.loads(run(f"{table} --list --json"))}
        assert listed[f"best-{protocol}"] == "best-pretrain"
        assert listed["best-pretrain"] == ""


def test_words_that_mean_nothing_are_refused() -> None:
    for words, message in (
        ("omniglo", "there is no table 'omniglo', did you mean 'omniglot'"),
        ("omniglot fast", "'fast' is not key=value"),
        ("omniglot --list --rows sigme-vinyals", "no id matches 'sigme-vinyals'"),
        ("claims --list --rows sigmoid", "no id matches 'sigmoid'"),
        ("open-mic-1 --rows p1", "no id matches 'p1'"),
        ("omniglot eta=5 --list", "--list runs nothing: use it only with --rows and --json"),
        ("omniglot --list --jobs 0", "--list runs nothing"),
        ("omniglot --seeds 0 --seeds -1", "seeds are 0"),
    ):
        result = CliRunner().invoke(app, ["reproduce", *words.split()])
        assert isinstance(result.exception, UsageError)
        assert message.split(",")[0] in str(result.exception)


# The ledger's arithmetic


def entry(row: str, seed: int, accuracy: float, ci95: float = 0.01, fingerprint: str = "f", size: int = 84) -> dict[str, Any]:
    figure = {"split": "val", "protocol": "5w1s", "way": 5, "shot": 1, "query": 15, "statistics": "running"}
    figure |= {"accuracy": accuracy, "ci95": ci95, "fingerprint": fingerprint}
    recipe = {"data": {"size": size}}
    return {"table": "mini-imagenet", "row": row, "seed": seed, "figures": [figure], "recipe": recipe}


VAL = Measure("val", 5, 1, 15)


def test_a_figure_over_seeds_has_students_interval() -> None:
    entries = [entry("a", 2, 0.56), entry("a", 0, 0.5), entry("b", 0, 0.1), entry("a", 1, 0.53)]
    figure = summarise(of_row(entries, "mini-imagenet", "a"), VAL, "running")
    assert figure is not None
    assert figure.seeds == (0, 1, 2)
    assert figure.mean == pytest.approx(0.53)
    assert figure.between == pytest.approx(4.302652730 * 0.03 / math.sqrt(3))  # t of 2 degrees of freedom
    assert summarise(entries[:1], VAL, "batch") is None
    alone = summarise(entries[:1], VAL, "running")
    assert alone is not None
    assert alone.between is None


def test_an_entry_keeps_a_list_of_numbers_on_one_line(tmp_path: Path) -> None:
    made: Entry = {"a": [1, -2.5, 3e-7], "b": {"c": ["1", 2], "d": [], "e": [[1, 2], [3]]}, "f": "[\n 1,\n 2]"}
    write_entry(tmp_path / "entry.json", made)
    text = (tmp_path / "entry.json").read_text("utf-8")
    assert json.loads(text) == made
    assert '"a": [1, -2.5, 3e-07],\n' in text
    assert text.count("\n") == 15


def test_an_experiment_on_another_training_does_not_take_the_place_of_one_in_a_ledger(tmp_path: Path) -> None:
    first = {"table": "claims", "row": "rank-of-a-row", "seed": 0, "versions": {"code": "1"}, "weights": "a", "results": [1]}
    other, again = first | {"weights": "b"}, first | {"results": [1, 2]}
    listener, file = Listener(), tmp_path / "rank.json"
    for one in (first, other):
        planned.into_ledger(tmp_path, one, file, listener)
    assert read_ledger(tmp_path) == [first]
    there = str(ledger_file(tmp_path, other))
    kept = f"{there!r} comes from another training and was kept: move it away to copy {str(file)!r} there"
    assert listener.said == [kept]
    planned.into_ledger(tmp_path, again, file, listener)
    assert read_ledger(tmp_path) == [again]
    planned.into_ledger(None, other, file, listener)
    assert len(listener.said) == 1


def test_a_gap_is_over_pairs_of_episodes_where_answers_were_kept() -> None:
    first, second = [entry("a", seed, 0.5) for seed in (0, 1)], [entry("b", seed, 0.4) for seed in (0, 1)]
    rights = {"a": ([40, 30, 35], [42, 30, 34]), "b": ([30, 28, 32], [34, 24, 30])}
    for entries in (first, second):
        for one, right in zip(entries, rights[entries[0]["row"]], strict=True):
            one["figures"][0]["right"] = right
    alone, both = gap(first[:1], second[:1], VAL), gap(first, second, VAL)
    assert alone is not None
    assert both is not None
    assert alone.ci95 == pytest.approx(1.96 * np.std([10 / 75, 2 / 75, 3 / 75], ddof=1) / math.sqrt(3))
    assert both.ci95 == pytest.approx(1.96 * np.std([9 / 75, 4 / 75, 3.5 / 75], ddof=1) / math.sqrt(3))  # seeds do not differ
    larger = [entry("c", 0, 0.5, fingerprint="of larger images", size=224)]
    larger[0]["figures"][0]["right"] = rights["a"][0]
    of_sizes = gap(larger, second, VAL)  # drawn alike, so in pairs too
    assert of_sizes is not None
    assert of_sizes.ci95 == alone.ci95
    larger[0]["figures"][0]["right"] = [40, 30]
    of_other_lengths = gap(larger, second, VAL)
    assert of_other_lengths is not None
    assert of_other_lengths.ci95 == pytest.approx(math.hypot(0.01, 0.01))
    first[0]["figures"][0].pop("right")
    mixed = gap(first, second, VAL)
    assert mixed is not None
    assert mixed.ci95 == pytest.approx(math.hypot(0.01, 0.01))


def test_a_gap_is_over_seeds_that_both_rows_have_on_the_same_episodes() -> None:
    first = [entry("a", 0, 0.50), entry("a", 1, 0.54), entry("a", 2, 0.6)]
    second = [entry("b", 0, 0.48), entry("b", 1, 0.5), entry("b", 2, 0.5, fingerprint="other")]
    ours = gap(first, second, VAL)
    assert ours is not None
    assert ours.mean == pytest.approx(0.03)
    assert ours.seeds == 2
    between = 12.70620474 * 0.01  # t of 1 degree of freedom, times the standard error
    assert ours.ci95 == pytest.approx(math.hypot(between, 0.01, 0.01))
    alone = gap(first[:1], second[:1], VAL)
    assert alone is not None
    assert alone.ci95 == pytest.approx(math.hypot(0.01, 0.01))
    assert gap(first, [], VAL) is None
    larger = [entry("c", 2, 0.7, fingerprint="of larger images", size=224)]
    of_sizes = gap(larger, first, VAL)  # whose episodes cannot have the same pixels
    assert of_sizes is not None
    assert of_sizes.mean == pytest.approx(0.1)
