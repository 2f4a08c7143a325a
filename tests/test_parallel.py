"""Several processes that train together: two of them on the CPU, over gloo."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import sosn
from sosn.errors import UsageError
from sosn.evaluation import evaluate
from sosn.training import train
from sosn.training.setup import make_fabric
from test_training import TINY, same, tiny, weights

WORDS = ("steps=4", "every=4", "episodes_per_step=4", "val_episodes=7")

WATCHED = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
sys.path.insert(0, sys.argv[1])
from sosn.evaluation import evaluate
from sosn.training import Silent
from sosn.training.setup import make_fabric
from sosn.training.trainer import Trainer
from sosn.training.run import Run
from test_training import tiny

recipe = tiny("episodes_per_step=4")
fabric = make_fabric(recipe, devices=2)
fabric.launch()
trainer = Trainer(recipe, Run(Path(sys.argv[2]), writes=fabric.is_global_zero), Silent(), fabric)
seen = [trainer.episode("train", number) for number in range(3)]
losses = [trainer.advance() for _ in range(3)]
if fabric.is_global_zero:
    Path(sys.argv[2]).mkdir()
trainer.judge()
judged = evaluate(trainer.judged, trainer.val_bank, 3, 1, 2, 7, fabric=fabric)
document = {f"weight.{name}": value.detach() for name, value in trainer.method.named_parameters()}
document |= {f"query.{number}": episode.query for number, episode in enumerate(seen)}
document |= {"losses": torch.stack(losses), "judged": torch.tensor(judged.per_episode, dtype=torch.float64)}
save_file({name: value.contiguous() for name, value in document.items()}, f"{sys.argv[2]}-{fabric.global_rank}")
"""


def environment() -> dict[str, str]:
    with socket.socket() as probe:  # a port of its own: other tests may run at the same time
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return os.environ | {"MASTER_PORT": str(port), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, *command]
    return subprocess.run(called, env=environment(), capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def watched(folder: Path) -> list[dict[str, torch.Tensor]]:
    """What each of two processes held after three steps."""
    script = folder / "watched.py"
    script.write_text(WATCHED)
    ended = launch(str(script), str(Path(__file__).parent), str(folder / "rank"))
    assert ended.returncode == 0, ended.stderr
    return [load_file(folder / f"rank-{rank}") for rank in range(2)]


def test_weights_stay_the_same_on_all_processes(watched: list[dict[str, torch.Tensor]]) -> None:
    first, second = watched
    for name in first:
        if name.startswith("weight."):
            assert torch.equal(first[name], second[name]), name
    assert not torch.equal(first["losses"], second["losses"])  # of other episodes


def test_processes_share_the_episodes_of_a_step(watched: list[dict[str, torch.Tensor]]) -> None:
    from sosn.training import Silent
    from sosn.training.run import Run
    from sosn.training.trainer import Trainer

    alone = Trainer(tiny("episodes_per_step=4"), Run(Path()), Silent())
    for number in range(3):
        parts = [part[f"query.{number}"] for part in watched]
        assert [len(part) for part in parts] == [2, 2]
        assert not any(torch.equal(one, other) for one in parts[0] for other in parts[1])
        whole = alone.source.draw("train", number).query
        for rank, part in enumerate(parts):
            assert torch.equal(part, whole[rank::2])


def test_episodes_of_an_evaluation_are_shared_and_the_figures_are_those_of_one_process(
    watched: list[dict[str, torch.Tensor]], folder: Path
) -> None:
    first, second = watched
    assert torch.equal(first["judged"], second["judged"])
    model = sosn.load(folder / "rank")
    bank = sosn.open_bank("glyphs", "val", **tiny().data.options)
    assert evaluate(model, bank, 3, 1, 2, 7).per_episode == tuple(first["judged"].tolist())


def test_a_run_of_two_processes_is_like_one_and_resumes_with_another_number(tmp_path: Path) -> None:
    words = ("train", "glyphs-5w1s", *TINY, *WORDS, "--out", str(tmp_path / "two"), "--devices", "2", "--json")
    ended = launch("-m", "sosn", *words)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)  # one process speaks
    assert "distributed" not in ended.stderr
    train(tiny(*WORDS), tmp_path / "one")
    alone = json.loads((tmp_path / "one" / "result.json").read_text())
    assert told["episodes"] == alone["episodes"]
    assert told["fingerprint"] == alone["fingerprint"]
    assert json.loads((tmp_path / "two" / "result.json").read_text())["accuracy"] == told["accuracy"]
    bank = sosn.open_bank("glyphs", "val", **tiny().data.options)
    sizes = (alone["way"], alone["shot"], alone["query"], alone["episodes"])
    assert evaluate(sosn.load(tmp_path / "two"), bank, *sizes).accuracy == told["accuracy"]  # as one process finds it
    again = launch("-m", "sosn", *words)
    assert again.returncode == 2
    assert again.stderr.count("holds a run already") == 1
    # Batch norm sees half of the pairs in each process, so weights come close and not equal.
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert not same(one, two)
    for name in one:
        if name.endswith("weight"):
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=0.02, msg=name)


def test_a_checkpoint_of_two_processes_goes_on_with_one(tmp_path: Path) -> None:
    words = (*TINY, *WORDS)
    ended = launch("-m", "sosn", "train", "glyphs-5w1s", *words, "--out", str(tmp_path / "run"), "--devices", "2")
    assert ended.returncode == 0, ended.stderr
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    (tmp_path / "run" / "recipe.toml").write_text(recipe.replace("steps = 4\n", "steps = 6\n"))
    (tmp_path / "run" / "result.json").unlink()
    result = train(tiny(*WORDS, "steps=6"), tmp_path / "run", resume=True)
    assert result.evaluation is not None
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val_accuracy" in row] == [4, 6]


@pytest.mark.parametrize("shared", [True, False])
def test_two_machines_train_in_a_folder_that_both_see_and_refuse_others_before_training(tmp_path: Path, shared: bool) -> None:
    where = environment()
    machines = []
    for number in range(2):
        out = tmp_path / "run" if shared else tmp_path / f"machine{number}"
        agent = ("torch.distributed.run", "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1")
        address = ("--master-addr", where["MASTER_ADDR"], "--master-port", where["MASTER_PORT"])
        words = ("train", "glyphs-5w1s", *TINY, *WORDS, "--out", str(out), "--devices", "1", "--nodes", "2")
        command = [sys.executable, "-m", *agent, *address, "-m", "sosn", *words]
        machines.append(subprocess.Popen(command, env=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [machine.communicate(timeout=300)[1] for machine in machines]
    if shared:
        assert [machine.returncode for machine in machines] == [0, 0], said
        assert (tmp_path / "run" / "result.json").exists()
    else:
        assert all(machine.returncode for machine in machines)
        assert "1 of 2 processes do not see the run folder" in said[0]
        assert "give --out on a file system that all machines share" in said[0]
        assert not list(tmp_path.glob("*/metrics.jsonl"))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_processes_with_one_sentence(tmp_path: Path, number: signal.Signals) -> None:
    words = ("train", "glyphs-5w1s", *TINY, *WORDS, "steps=100000", "--out", str(tmp_path / "run"), "--devices", "2")
    command = [sys.executable, "-m", "sosn", *words]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(child.pid, number)  # as a terminal does
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-2:] == [f"`sosn train {tmp_path / 'run'} --resume` goes on from the last checkpoint", "stopped"]
    assert [word for word in ("Traceback", "distributed", "terminat") if word in err] == []
    assert err.count("stopped") == 1
    with pytest.raises(ProcessLookupError):  # nobody is left
        os.killpg(child.pid, 0)


def test_a_numbered_gpu_cannot_be_several_and_a_processor_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_fabric(tiny("device=cpu:0")).device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="device is 'cuda:0', which is one, and devices is 2: use device=cuda"):
        make_fabric(tiny("device=cuda:0"), devices=2)


def test_machines_that_nobody_started_and_other_numbers_of_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="nodes is 2: start the command on each machine with torchrun --nnodes 2"):
        make_fabric(tiny(), nodes=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for devices, nodes in ((4, 1), (2, 2), (1, 1)):
        wrong = f"2 processes were started together, and devices={devices} on nodes={nodes} are {devices * nodes}"
        with pytest.raises(UsageError, match=wrong):
            make_fabric(tiny(), devices, nodes)
    make_fabric(tiny(), 2)


def test_a_process_that_dies_is_told_in_a_sentence(tmp_path: Path) -> None:
    words = ("train", "glyphs-5w1s", *TINY, *WORDS, "steps=100000", "--out", str(tmp_path / "run"), "--devices", "2")
    command = [sys.executable, "-m", "sosn", *words]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=False).stdout.split()
        os.kill(int(workers[0]), signal.SIGKILL)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert err.splitlines()[-1] == "error: another process of this run has ended: resume it to go on from the last checkpoint"
    assert "Traceback" not in err


def test_episodes_that_cannot_be_shared_and_devices_that_are_not_there_are_refused() -> None:
    from sosn.data import EpisodeSampler
    from sosn.training.source import EpisodeSource

    recipe = tiny("episodes_per_step=3")
    sampler = EpisodeSampler(sosn.open_bank("glyphs", "val", **recipe.data.options), 2, 1, 1)
    with pytest.raises(UsageError, match="must be a multiple of 2"):
        EpisodeSource(sampler, recipe, torch.device("cpu"), 0, 2)
    with pytest.raises(UsageError, match="devices is 0"):
        make_fabric(recipe, devices=0)
