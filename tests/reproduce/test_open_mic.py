"""The paper's tables are run whole, resumed, and shown beside its figures."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sosn.cli.app import app
from sosn.data.prepare.catalog import prepare_dataset
from sosn.errors import DataError, UsageError
from sosn.recipe.library import load_recipe
from sosn.reproduce.open_mic import plan, reproduce
from sosn.reproduce.paper import EXHIBITIONS, OPEN_MIC_1, OPEN_MIC_2, PAIRS
from tests.conftest import Listener
from tests.data.dataset import open_mic_trees as trees

TINY = "size=28 steps=1 every=1 val_way=2 val_episodes=2 report_episodes=2 recalibrate=1 val_share=0.4 device=cpu".split()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))


def test_the_papers_printed_rows_average_to_what_was_computed_from_them_by_hand() -> None:
    averages = {(row.model, row.way): round(row.average, 2) for row in OPEN_MIC_1}
    assert [averages[model, 5] for model in ("Relation Net", "SoSN", "SoSN+SigmE")] == [57.31, 69.68, 70.47]
    assert [averages[model, 20] for model in ("Relation Net", "SoSN", "SoSN+SigmE")] == [32.73, 46.97, 48.13]
    assert all(len(row.figures) == len(PAIRS) == 12 for row in OPEN_MIC_1)
    assert all(len(row.figures) == len(EXHIBITIONS) == 10 for row in OPEN_MIC_2)


def test_one_training_serves_the_three_tests_of_its_part() -> None:
    jobs = plan("open-mic-1")
    assert [(job.name, job.tests) for job in jobs[:2]] == [("p1-5way", ("p2", "p3", "p4")), ("p2-5way", ("p1", "p3", "p4"))]
    assert len(jobs) == 8
    assert jobs[0].recipe.training.steps == 50_000
    assert jobs[0].recipe.training.learning_rate == 1e-4
    assert {(job.recipe.episodes.shot, job.recipe.episodes.query, job.recipe.validation.val_query) for job in jobs} == {
        (1, 2, 2)
    }


def test_protocol_two_has_ten_exhibitions_in_three_ways_from_source_to_target() -> None:
    jobs = plan("open-mic-2", ["steps=7"])
    assert len(jobs) == 30
    assert {job.recipe.training.steps for job in jobs} == {7}
    for job in jobs:
        options = job.recipe.data.options
        assert job.tests == (options["train"],) == (options["test"],)
        assert (options["train_domain"], options["test_domain"]) == ("source", "target")


def test_what_the_table_decides_cannot_be_overridden() -> None:
    with pytest.raises(UsageError, match="'way=7' cannot be set"):
        plan("open-mic-1", ["way=7"])
    with pytest.raises(UsageError, match="there is no table 'open-mic-3'"):
        plan("open-mic-3")


def test_nothing_prepared_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="open-mic at 84×84 is not prepared"):
        reproduce("open-mic-1", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_protocol_one_runs_end_to_end_and_a_second_time_from_its_files(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.parts(tmp_path / "parts", 9), 28)
    words = ["reproduce", "open-mic-1", *TINY, "--quick", "--out", str(tmp_path / "runs"), "--json"]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    table = json.loads(first.stdout)
    measured = [cell for cell in table["cells"] if not cell["reason"]]
    assert {(cell["train"], cell["test"]) for cell in measured} == set(PAIRS)
    assert {cell["way"] for cell in measured} == {5}
    assert all(0 <= cell["accuracy"] <= 1 and cell["episodes"] == 2 for cell in measured)
    failed = [cell for cell in table["cells"] if cell["reason"]]
    assert {cell["way"] for cell in failed} == {20}
    assert all("20-way episodes need 20 classes and there are 5" in cell["reason"] for cell in failed)
    assert table["averages"]["5"] == pytest.approx(sum(cell["accuracy"] for cell in measured) / 12)
    assert table["averages"]["20"] is None
    assert "8 of 8 trainings to run" in first.stderr
    (tmp_path / "runs" / "p1-5way" / "test-p3.json").unlink()
    listener = Listener()
    again = reproduce("open-mic-1", tmp_path / "runs", TINY, True, listener)
    assert [cell for cell in again.to_json()["cells"] if not cell["reason"]] == measured
    assert "training" not in " ".join(sentence for sentence in listener.said if "5-way" in sentence)
    shown = CliRunner().invoke(app, words[:-1])
    assert "p4→p3" in shown.stdout
    assert "70.47" in shown.stdout
    assert "– p1→p2, 20-way: for training: 20-way episodes need 20 classes" in shown.stdout


def test_exhibitions_that_were_not_prepared_are_dashes_with_the_reason(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.crops(tmp_path / "crops", 9, 2, ("shn",)), 28)
    table = reproduce("open-mic-2", tmp_path / "runs", TINY, True)
    figures = {(cell.train, cell.test, cell.way): cell.measured["accuracy"] for cell in table.cells if cell.measured}
    assert list(figures) == [("shn", "shn", 5)]
    assert "prepared with shn and without hon" in table.cell("hon", "hon", 5).reason
    recipe = load_recipe(str(tmp_path / "runs" / "shn-5way"))
    assert recipe.data.options["train_domain"] == "source"
    words = ["eval", str(tmp_path / "runs" / "shn-5way"), "split=test", "way=5", "device=cpu", "--json"]
    evaluated = CliRunner().invoke(app, words)
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.stdout)["accuracy"] == figures["shn", "shn", 5]
