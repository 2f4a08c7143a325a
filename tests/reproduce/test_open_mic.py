"""Open MIC's tables are rows of the common runner: planned, run, resumed, and printed beside the paper's figures."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sosn.cli.app import app
from sosn.cli.reproduce import _check_precision
from sosn.data.prepare.catalog import prepare_dataset
from sosn.errors import DataError, UsageError
from sosn.reproduce.open_mic import ROWS, averages
from sosn.reproduce.paper import PAIRS, PUBLISHED
from sosn.reproduce.table import Options, plan, reproduce_rows, select
from tests.conftest import Listener
from tests.data.dataset import open_mic_trees as trees

TINY = "size=28 val_way=2 val_share=0.4 device=cpu".split()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))


def test_the_papers_printed_rows_average_to_what_was_computed_from_them_by_hand() -> None:
    printed = {(label, way): paper for label, way, paper, _ in averages("open-mic-1", [])}
    assert [round(100 * (printed[model, 5] or 0), 2) for model in ("Relation Net", "SoSN", "SoSN+SigmE")] == [
        57.31,
        69.68,
        70.47,
    ]
    assert [round(100 * (printed[model, 20] or 0), 2) for model in ("Relation Net", "SoSN", "SoSN+SigmE")] == [
        32.73,
        46.97,
        48.13,
    ]
    assert {len(figures) for figures in PUBLISHED["open-mic-1"].values()} == {2 * 12}
    assert {len(figures) for figures in PUBLISHED["open-mic-2"].values()} == {3 * 10}


def test_the_average_of_ours_is_that_of_all_twelve_pairs() -> None:
    entries = [
        {"table": "open-mic-1", "row": row.id, "seed": 0, "figures": [
            {"split": "test", "way": 5, "shot": 1, "query": 2, "statistics": "running", "protocol": measure.protocol,
             "accuracy": number / 100 + place / 1000, "ci95": 0.01}
            for place, measure in enumerate(row.measures)
        ]}
        for number, row in enumerate(select(ROWS["open-mic-1"], ["sigme-p?-5w"]))
    ]  # fmt: skip
    ours = {(label, way): mean for label, way, _, mean in averages("open-mic-1", entries)}
    assert ours["SoSN+SigmE", 5] == pytest.approx(0.015 + 0.001)
    assert ours["SoSN+SigmE", 20] is None
    assert {label: mean for (label, way), mean in ours.items() if way == 5 and mean is not None}.keys() == {"SoSN+SigmE"}


def test_one_training_serves_the_three_tests_of_its_part() -> None:
    rows = select(ROWS["open-mic-1"], ["sigme-p*"])
    assert [row.id for row in rows[:2]] == ["sigme-p1-5w", "sigme-p2-5w"]
    assert len(rows) == 8
    assert [measure.protocol for measure in rows[0].measures] == ["p1→p2 5w1s", "p1→p3 5w1s", "p1→p4 5w1s"]
    recipe = rows[0].resolve(0)
    assert (recipe.training.steps, recipe.training.learning_rate) == (50_000, 1e-4)
    assert (recipe.episodes.shot, recipe.episodes.query, recipe.validation.val_query) == (1, 2, 2)


def test_every_measure_of_every_row_has_the_papers_figure() -> None:
    for rows in ROWS.values():
        for row in rows:
            assert all(row.paper(measure.protocol) for measure in row.measures), row.id
    assert str(ROWS["open-mic-1"][0].paper("p1→p2 5w1s")) == "71.1 ± 1.0"


def test_protocol_two_has_ten_exhibitions_in_three_ways_from_source_to_target() -> None:
    rows = select(ROWS["open-mic-2"], ["sigme-*"])
    assert len(rows) == 30
    for row in rows:
        options = row.resolve(0).data.options
        assert options["train"] == options["test"]
        assert (options["train_domain"], options["test_domain"]) == ("source", "target")


def test_what_a_row_decides_cannot_be_overridden(tmp_path: Path) -> None:
    for word in ("way=7", "test=p3", "data.train=p2"):
        with pytest.raises(UsageError, match=f"'{word}' cannot be set"):
            plan(ROWS["open-mic-1"][:1], tmp_path, Options(overrides=[word]))


def test_nothing_prepared_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="open-mic at 84×84 is not prepared"):
        reproduce_rows("open-mic-1", tmp_path / "runs", Options(rows=["sigme-p1-5w"]))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_protocol_one_runs_end_to_end_and_a_second_time_from_its_files(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.parts(tmp_path / "parts", 9), 28)
    words = ["reproduce", "open-mic-1", *TINY, "--rows", "sigme-p[12]-*", "--quick", "--out", str(tmp_path / "runs")]
    first = CliRunner().invoke(app, [*words, "--json"])
    assert first.exit_code == 0, first.output
    assert "4 of 4 trainings to run" in first.stderr
    document = json.loads(first.stdout)
    figures = {
        figure["protocol"]: figure
        for entry in document["entries"]
        for figure in entry["figures"]
        if figure["statistics"] == "running"
    }
    assert set(figures) == {f"{train}→{test} 5w1s" for train, test in PAIRS if train in ("p1", "p2")}
    assert all(0 <= figure["accuracy"] <= 1 and figure["episodes"] == 4 for figure in figures.values())
    assert len({figure["fingerprint"] for figure in figures.values()}) == 4  # tests of one part are the same episodes
    assert len(document["skipped"]) == 2
    assert all("20-way episodes need 20 classes and there are 5" in reason for reason in document["skipped"].values())
    listener = Listener()
    again = reproduce_rows("open-mic-1", tmp_path / "runs", Options(["sigme-p[12]-5w"], [0], TINY, True), listener)
    assert again.entries == document["entries"]
    assert "training" not in " ".join(listener.said)
    shown = CliRunner().invoke(app, words)
    assert "p2→p3" in shown.stdout
    assert "average" not in shown.stdout  # of all twelve pairs, or of none


@pytest.mark.slow
def test_exhibitions_that_were_not_prepared_are_skipped_with_the_reason(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.crops(tmp_path / "crops", 9, 2, ("shn",)), 28)
    wanted = Options(["sigme-shn-5w", "sigme-hon-5w"], [0], TINY, True)
    result = reproduce_rows("open-mic-2", tmp_path / "runs", wanted)
    (entry,) = result.entries
    assert entry["row"] == "sigme-shn-5w"
    assert "prepared with shn and without hon" in result.skipped["open-mic-2/sigme-hon-5w, seed 0"]
    folder = tmp_path / "runs" / "open-mic-2" / "sigme-shn-5w-seed0"
    words = ["eval", str(folder), "split=test", "way=5", "device=cpu", "--json"]
    evaluated = CliRunner().invoke(app, words)
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.stdout)["accuracy"] == entry["figures"][0]["accuracy"]


def test_bf16_is_probed_only_for_rows_that_wait_to_be_trained_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []
    monkeypatch.setattr("sosn.cli.process.check_bf16", lambda: probed.append("bf16"))
    _check_precision("open-mic-1", tmp_path, Options(["sigme-p1-5w"], overrides=["device=cpu"]))
    assert probed == []  # fp32
    wanted = Options(["sigme-5w1s"], overrides=["device=cpu"])
    _check_precision("mini-imagenet", tmp_path, wanted)
    assert probed == ["bf16"]
    folder = tmp_path / "mini-imagenet" / "sigme-5w1s-seed0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    _check_precision("mini-imagenet", tmp_path, wanted)
    assert probed == ["bf16"]  # trained, so only read
