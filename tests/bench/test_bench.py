"""`sosn bench`: its contenders, how they are timed, and the output."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sosn.bench import contenders, evaluation_ratios, measure
from sosn.bench.contenders import Shape
from sosn.bench.measure import run_bench
from sosn.bench.tensors import Tensors
from sosn.encoder import Conv4
from sosn.kernel import enabled
from sosn.report.bench import bench_figure
from sosn.util.memory import free_memory
from tests.conftest import Cli

CPU = torch.device("cpu")
SMALL = Shape(3, 2, 2, 28, 1)
ENGINES = ("engine", "engine, in sosn train")
ROOT = Path(__file__).parent.parent.parent


def losses(make: Callable[[], contenders.Step], steps: int = 3) -> torch.Tensor:
    torch.manual_seed(0)
    step = make()
    return torch.stack([value for _ in range(steps) if isinstance(value := step(), torch.Tensor)])


@pytest.mark.slow
def test_contenders_train_the_same_model_on_the_same_images() -> None:
    loop = losses(lambda: contenders.loop_step(SMALL, CPU))
    plain = losses(lambda: contenders.training_step(SMALL, 1, CPU, False, "plain"))
    ours = losses(lambda: contenders.training_step(SMALL, 1, CPU, False, "auto"))
    torch.testing.assert_close(plain, loop, rtol=2e-3, atol=0)
    torch.testing.assert_close(ours, loop, rtol=2e-3, atol=0)
    assert (loop[1:] - loop[:-1]).abs().min() > 0.02 * loop.max()  # steps are taken


@pytest.mark.parametrize(
    ("make", "on_engine"),
    [
        (lambda: contenders.loop_step(SMALL, CPU), False),
        (lambda: contenders.training_step(SMALL, 1, CPU, False, "plain"), False),
        (lambda: contenders.training_step(SMALL, 1, CPU, False, "auto"), True),
        (lambda: contenders.whole_step(SMALL, 1, CPU, False), True),
        (lambda: contenders.evaluation_step(SMALL, CPU, "plain", False), False),
        (lambda: contenders.evaluation_step(SMALL, CPU, "auto", False), True),
        (lambda: contenders.whole_evaluation(SMALL, CPU, "plain", 2), False),
        (lambda: contenders.whole_evaluation(SMALL, CPU, "auto", 2), True),
        (lambda: contenders.easyfsl_step(SMALL, CPU), False),
        (lambda: contenders.easyfsl_evaluation(SMALL, CPU, False), False),
        (lambda: contenders.easyfsl_evaluation(SMALL, CPU, True), False),
    ],
    ids="loop plain engine train judge judge-engine whole whole-engine easyfsl easyfsl-judge easyfsl-known".split(),
)
def test_only_the_engine_runs_on_the_engine(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, make: Callable[[], contenders.Step], on_engine: bool
) -> None:
    if "easyfsl" in request.node.name:
        pytest.importorskip("easyfsl")
    seen: set[bool] = set()
    forward = Conv4.forward

    def watched(self: Conv4, images: torch.Tensor) -> torch.Tensor:
        seen.add(enabled())
        return forward(self, images)

    monkeypatch.setattr(Conv4, "forward", watched)
    make()()
    assert seen == {on_engine}


def test_known_feature_maps_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [contenders.evaluation_step(SMALL, CPU, "auto", True)]
    if contenders.has_easyfsl():
        steps.append(contenders.easyfsl_evaluation(SMALL, CPU, True))
    monkeypatch.setattr(Conv4, "forward", lambda *_: pytest.fail("encoded"))
    for step in steps:
        step()


class Clock:
    """Contenders whose calls take as long as they are told, by a clock that nothing else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, dict[str, int]()
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def contender(self, name: str, *seconds: float) -> Callable[..., contenders.Step]:
        """The last duration is that of all further calls."""

        def step() -> None:
            number = self.calls[name] = self.calls.get(name, 0) + 1
            self.now += seconds[min(number, len(seconds)) - 1]

        return lambda *_: step


def test_a_slow_contender_is_called_once_a_turn_and_a_quick_one_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    makers = {"slow": clock.contender("slow", 3.0), "quick": clock.contender("quick", 0.125)}
    seconds, memory = measure._take_turns(makers, CPU, False)
    assert seconds == {"slow": 3.0, "quick": 0.125}
    assert memory == {"slow": 0.0, "quick": 0.0}  # they make no tensors
    assert clock.calls == {"slow": 1 + 3, "quick": 1 + 3 * 2}


def test_where_a_contender_is_very_slow_all_have_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    measure._take_turns({"slow": clock.contender("slow", 21.0), "quick": clock.contender("quick", 2.0)}, CPU, False)
    assert clock.calls == {"slow": 2, "quick": 2}


def test_of_three_turns_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    seconds, _ = measure._take_turns({"unsteady": clock.contender("unsteady", 1.0, 1.5, 7.0, 2.0)}, CPU, False)
    assert seconds == {"unsteady": 2.0}


@pytest.mark.slow
def test_figures_of_training_follow_from_seconds_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(measure, "EPISODES", {"cpu": 8})
    monkeypatch.setattr(measure, "has_easyfsl", lambda: False)
    monkeypatch.setattr(measure, "_fits", lambda *_: True)
    monkeypatch.setattr(measure, "_work", lambda *_: 10e9)
    monkeypatch.setattr(measure, "loop_step", lambda *_: clock.contender("loop", 2.0)())
    monkeypatch.setattr(measure, "whole_step", lambda *_: clock.contender("whole", 1.6)())
    monkeypatch.setattr(
        measure, "training_step", lambda *given: clock.contender(given[-1], 1.0 if given[-1] == "auto" else 4.0)()
    )
    found = measure._training(Shape(5, 1, 15, 84), CPU, 1e12, False)
    rates = {"loop": 0.5, "vectorised": 2.0, "engine": 8.0, "engine, in sosn train": 5.0}  # eight episodes, of the loop one
    assert found["episodes_per_second"] == pytest.approx(rates)
    assert found["pairs_per_second"] == pytest.approx({name: 375 * rate for name, rate in rates.items()})
    assert found["ratios"] == {"engine / loop": 16.0, "engine / vectorised": 4.0}
    assert found["episodes_per_step"] == {name: 1 if name == "loop" else 8 for name in rates}
    assert found["share_of_floor"] == pytest.approx({name: rate / 100 for name, rate in rates.items()})
    assert found["gflop_per_episode"] == 10.0
    assert measure._growth(SMALL, CPU, True) == {"shape": str(SMALL), "ms_per_episode": 1000.0, "peak_gib": 0.0}


@pytest.mark.slow
def test_the_work_of_an_episode_is_that_of_its_convolutions() -> None:
    def convolutions(*layers: tuple[int, int]) -> list[float]:
        return [2 * 9 * inputs * 64 * side**2 for inputs, side in layers]

    encoder = convolutions((3, 82), (64, 39), (64, 19), (64, 19))
    similarity = convolutions((2, 62), (64, 29), (64, 12), (64, 4))
    matrix = 2 * 64 * 64 * 19**2
    image = 3 * (sum(encoder) + matrix) - encoder[0]  # forward, and backward twice as much; pixels have no gradient
    expected = 80 * image + 375 * 3 * sum(similarity)
    assert measure._work(Shape(5, 1, 15, 84), CPU) == pytest.approx(expected, rel=1e-4)


def test_an_image_of_a_whole_evaluation_is_in_five_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(contenders, "evaluate", lambda *sizes: given.append(sizes))
    contenders.whole_evaluation(Shape(5, 1, 15, 28, 1), CPU, "auto", 100)()
    ((_, bank, *sizes),) = given
    assert sizes == [5, 1, 15, 100]
    assert 100 * 5 * 16 / len(bank) == 5


def test_easyfsl_trains_in_training_mode_and_evaluates_in_evaluation_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("easyfsl")
    made: list[Any] = []
    model = contenders.easyfsl_model

    def watched(*given: Any, **more: Any) -> Any:
        made.append(model(*given, **more))
        return made[-1]

    monkeypatch.setattr(contenders, "easyfsl_model", watched)
    contenders.easyfsl_step(SMALL, CPU)()
    contenders.easyfsl_evaluation(SMALL, CPU, False)()
    assert [{module.training for module in one.modules()} for one in made] == [{True}, {False}]


def test_memory_on_the_cpu_is_that_of_tensors_that_live_at_once() -> None:
    before = torch.zeros(1000)
    with Tensors() as tensors:
        first, second = before + 1, torch.ones(500)
        view = second.view(5, 100)
        del first, second
        third = torch.ones(600)
        assert (tensors.now, tensors.most) == (4 * 1100, 4 * 1500)
    del view, third
    assert tensors.now == 0


@pytest.mark.slow
def test_a_contender_without_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> contenders.Step:
        raise torch.OutOfMemoryError("CUDA out of memory")

    clock = Clock(monkeypatch)
    seconds, memory = measure._take_turns({"large": fails, "small": clock.contender("small", 1.0)}, CPU, True)
    assert seconds.keys() == memory.keys() == {"small"}
    monkeypatch.setattr(measure, "_take_turns", lambda *_: ({}, {}))
    assert measure._training(SMALL, CPU, 1.0, True)["episodes_per_second"] == {}
    assert measure._growth(SMALL, CPU, True) is None


@pytest.mark.slow
def test_a_whole_evaluation_is_timed_per_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(measure, "has_easyfsl", lambda: False)
    monkeypatch.setattr(measure, "evaluation_step", lambda *given: clock.contender("one", 0.5 if given[2] == "auto" else 1.0)())
    monkeypatch.setattr(measure, "whole_evaluation", lambda *given: clock.contender("all", given[3] * 0.25)())
    found = measure._evaluation(Shape(5, 1, 15, 84), CPU, False)
    assert found["episodes"] == 20
    assert found["seconds_per_episode"]["engine, whole evaluation"] == 0.25
    assert found["ratios"]["plain, with encoding"] == 2.0
    assert found["ratios"]["plain, whole evaluation"] == 1.0
    assert measure._evaluation(Shape(100, 1, 2, 28, 1), CPU, False)["episodes"] == 5  # of 20,000 pairs each
    assert evaluation_ratios({"plain, with encoding": 2.0}) == {}


def test_the_floor_is_the_rate_of_a_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_take_turns", lambda *_: ({"product": 0.5}, {}))
    assert measure._peak(CPU, True) == 2 * 512**3 / 0.5


@pytest.mark.slow
def test_measurements_are_kept_after_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_training", "_evaluation", "_growth"):
        monkeypatch.setattr(measure, name, lambda shape, *_: {"shape": str(shape), "left_out": ["loop"]})
    sizes: list[tuple[int, int, int]] = []
    messages: list[str] = []

    def keep(document: Mapping[str, Any]) -> None:
        sizes.append((len(document["training"]), len(document["evaluation"]), len(document["growth"])))

    run_bench("cpu", False, messages.append, keep)
    assert "several minutes" in messages[0]
    assert messages[1].endswith(" s  1 of 10: training, 5w1s15q 84²")
    assert messages[2].endswith("skipped, because memory may not suffice: loop")
    assert messages[-1].endswith("10 of 10: growth with permutations")
    assert sizes == [(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), *((5, 1, grown) for grown in range(5))]


@pytest.mark.parametrize(
    ("share", "left"),
    [(0.9, set()), (1.1, {"loop"}), (2.7, {"loop", *ENGINES}), (8.1, {"loop", "vectorised", *ENGINES})],
)
def test_the_benchmark_leaves_out_what_may_not_fit(monkeypatch: pytest.MonkeyPatch, share: float, left: set[str]) -> None:
    """Memory of so many times what one episode takes layer by layer; a vectorised step has eight, the engine needs a third."""
    monkeypatch.setattr(measure, "EPISODES", {"cpu": 8})
    monkeypatch.setattr(measure, "has_easyfsl", lambda: False)
    monkeypatch.setattr(measure, "_available", lambda device: share * measure._memory(measure.QUICK[0], device) / measure.SHARE)
    monkeypatch.setattr(measure, "_work", lambda *_: 1.0)
    monkeypatch.setattr(measure, "_take_turns", lambda makers, *_: (dict.fromkeys(makers, 1.0), dict.fromkeys(makers)))
    found = measure._training(measure.QUICK[0], torch.device("cpu"), 1.0, True)
    assert set(found["episodes_per_second"]) == left
    assert set(found["left_out"]) == {"loop", "vectorised", *ENGINES} - left


def test_memory_that_others_use_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    page, all_there_is = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free_memory() < all_there_is
    files = {"meminfo": "MemTotal:  4096 kB\nMemAvailable:  1024 kB\n", "statm": "900 7 5 1 0 3 0\n", "cgroup": ""}
    monkeypatch.setattr(Path, "read_text", lambda path, _: files[path.name])
    assert free_memory() == 2**20 + 7 * page  # what this process has is its own to use
    files["meminfo"] = "MemTotal:  4096 kB\n"
    assert free_memory() == all_there_is


@pytest.mark.parametrize(
    ("line", "root", "files"),
    [
        ("0::/job/step", "/sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/job/step",
            "/sys/fs/cgroup/memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_memory_that_a_container_or_job_allows_is_what_counts(
    line: str, root: str, files: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, used, cached = files
    resident = 7 * os.sysconf("SC_PAGE_SIZE")
    contents = {
        "/proc/meminfo": "MemAvailable:  1024 kB\n",
        "/proc/self/statm": "900 7 5\n",
        "/proc/self/cgroup": f"1:cpu:/\n{line}\n",
    }

    def limited(folder: str, most: str) -> None:
        contents.update({f"{folder}/{limit}": most, f"{folder}/{used}": "500000\n"})
        contents[f"{folder}/memory.stat"] = f"anon 1\n{cached} 100\n"

    def read(path: Path, _: str) -> str:
        if str(path) not in contents:
            raise FileNotFoundError(path)
        return contents[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert free_memory() == 2**20 + resident
    limited(f"{root}/job/step", "max\n")
    assert free_memory() == 2**20 + resident
    limited(f"{root}/job", "700000\n")  # of all that it holds; cached files can be let go
    assert free_memory() == 200_100 + resident
    limited(f"{root}/job/step", "600000\n")
    assert free_memory() == 100_100 + resident
    limited(root, "100000\n")
    assert free_memory() == resident


def test_an_interrupted_benchmark_has_kept_what_it_measured(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_training", lambda shape, *_: {"shape": str(shape), "left_out": []})
    monkeypatch.setattr(measure, "_evaluation", stopped)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "bench.json").write_text("of an earlier run")
    code, _, err = cli("bench", "--quick", "--device", "cpu", "--out", "bench")
    assert code == 130
    kept = json.loads((tmp_path / "bench" / "bench.part.json").read_text())
    assert kept["training"] == [{"shape": "5w1s1q 28²", "left_out": []}]
    assert not kept["evaluation"]
    assert (tmp_path / "bench" / "bench.json").read_text() == "of an earlier run"
    assert "s  2 of 6: evaluation, 5w1s1q 28²" in err
    assert "the measurements so far are in bench/bench.part.json" in err


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sosn.bench.run_bench", lambda *_: pytest.fail("measured"))
    code, _, err = cli("bench", "--quick", "--out", f"{__file__}/results")
    assert code == 2
    assert "cannot create the folder" in err
    assert "choose another --out" in err


def test_the_benchmarks_table_fits_into_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sosn.cli.show import show_bench

    monkeypatch.setenv("COLUMNS", "80")
    printed = json.loads((ROOT / "results" / "bench-h200.json").read_text("utf-8"))
    show_bench(printed)
    table = capsys.readouterr().out.partition("growth with")[0].splitlines()
    assert max(map(len, table)) <= 80
    for row in printed["training"]:
        for name, pairs in row["pairs_per_second"].items():
            cells = (row["shape"], name.partition(",")[0], f"{pairs:,.0f}", f"{row['peak_gib'][name]:.2f}")
            assert any(all(cell in line for cell in cells) for line in table), cells


@pytest.mark.slow
def test_the_benchmark_compares_contenders_in_one_run(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("bench", "--quick", "--device", "cpu", "--out", "bench", "--json")
    assert code == 0, err
    document = json.loads(out)
    (row,) = document["training"]
    assert {"loop", "vectorised", "engine"} <= row["episodes_per_second"].keys()
    assert row["ratios"]["engine / loop"] == row["episodes_per_second"]["engine"] / row["episodes_per_second"]["loop"]
    assert row["gflop_per_episode"] > 1
    assert set(document["growth"]) == {"way", "shot", "image side", "permutations"}
    assert json.loads((tmp_path / "bench" / "bench.json").read_text()) == document
    assert not (tmp_path / "bench" / "bench.part.json").exists()
    with Image.open(tmp_path / "bench" / "bench.png") as picture:
        assert picture.width > 800


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bench" / "bench.part.json").mkdir(parents=True)  # where a file would be
    monkeypatch.setattr("sosn.bench.run_bench", lambda *_: pytest.fail("measured"))
    code, _, err = cli("bench", "--quick", "--out", "bench")
    assert code == 1
    assert "cannot write 'bench/bench.part.json'" in err


def test_figures_do_without_what_had_no_memory() -> None:
    whole = json.loads((ROOT / "results" / "bench-h200.json").read_text("utf-8"))
    without = whole | {"training": [], "growth": {}}
    rates = {"easyfsl": 7.0}
    alone = {"shape": "20w1s10q 28²", "ratios": {}, "episodes_per_second": rates, "pairs_per_second": rates,
             "episodes_per_step": {"easyfsl": 1}, "peak_gib": {"easyfsl": None}, "share_of_floor": {}}  # fmt: skip
    empty = alone | {"episodes_per_second": {}, "pairs_per_second": {}, "peak_gib": {}}
    for document in (without, whole | {"training": [empty, alone]}, whole | {"training": [empty]}):
        assert bench_figure(document).get_suptitle() == "sosn bench on NVIDIA H200"
