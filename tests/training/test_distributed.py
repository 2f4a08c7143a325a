"""Distributed training: two processes on the CPU, over gloo."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file

import sosn
from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.evaluation.protocol import evaluate
from sosn.method.base import batch_statistics
from sosn.recipe.recipe import Recipe
from sosn.training import Silent, train
from sosn.training.run import Run
from sosn.training.setup import make_fabric
from sosn.training.trainer import Trainer
from tests.conftest import heed
from tests.training.test_loop import TINY, tiny

WORDS = ("steps=4", "every=4", "episodes_per_step=4", "val_episodes=7")
# Batch norm sees the episodes of its process alone, so most methods learn otherwise in another number of processes. That of
# MAML sees one episode, and SGD, unlike Adam, makes nothing of gradients that are 0 but for rounding.
EXACT = "method=maml encoder_width=8 inner_steps=1 test_steps=1 loss=cross_entropy average=0.9".split()
EXACT += "optimiser=sgd learning_rate=0.05 warmup=0".split()
ROUNDING = 1e-5  # of weights, average and momentum after four steps, which move every weight by 0.02 or more; 6e-7 was seen
# SoSN with its own optimiser, for long enough to tell three unseen characters apart in seven cases of ten
LEARNS = "way=3 alphabets=20 characters=12 episodes_per_step=4 steps=20 every=20 learning_rate=0.004 warmup=3".split()
LEARNS += "average=0.9 recalibrate=5 report_episodes=40".split()

WATCHED = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
sys.path.insert(0, sys.argv[1])
from sosn.evaluation.protocol import evaluate
from sosn.training import Silent
from sosn.training.setup import make_fabric
from sosn.training.trainer import Trainer
from sosn.training.run import Run
from tests.training.test_distributed import exact, sosn_by_sgd, stop_after_two_steps
from tests.training.test_loop import tiny

recipe = tiny("episodes_per_step=4")
fabric = make_fabric(recipe, devices=2)
fabric.launch()
trainer = Trainer(recipe, Run(Path(sys.argv[2]), writes=fabric.is_global_zero), Silent(), fabric)
seen = [trainer.episode("train", number) for number in range(3)]
losses = [trainer.advance() for _ in range(3)]
if fabric.is_global_zero:
    Path(sys.argv[2]).mkdir()
trainer.validate()
counts = []
progress = lambda *count: counts.append(count)
validated = evaluate(trainer.validated, trainer.val_bank, 3, 1, 2, 7, progress=progress, fabric=fabric)
document = {f"weight.{name}": value.detach() for name, value in trainer.method.named_parameters()}
document |= {f"query.{number}": episode.query for number, episode in enumerate(seen)}
document |= {"losses": torch.stack(losses), "validated": torch.tensor(validated.per_episode, dtype=torch.float64)}
document["counts"] = torch.tensor(counts[-1])
augmenting = Trainer(tiny("episodes_per_step=4", "turn=20", "zoom=0.2"), trainer.run, Silent(), fabric)
images = augmenting.source.draw("recalibrate", 0)
augmenting.source.draw = lambda purpose, number: images
document |= {f"augmented.{number}": augmenting.episode("train", number).query for number in range(3)}
document["recalibrating"] = augmenting.episode("recalibrate", 0).query
stop_after_two_steps(exact(), Path(sys.argv[3]), fabric)
torch.set_default_dtype(torch.float64)
trainer = Trainer(sosn_by_sgd(), trainer.run, Silent(), fabric)
trainer.keep = lambda selection: None
document["sosn.losses"] = torch.stack([trainer.advance() for _ in range(2)])
trainer.validate()
document |= {f"sosn.{name}": value for name, value in trainer.validated.state_dict().items()}
save_file({name: value.contiguous() for name, value in document.items()}, f"{sys.argv[2]}-{fabric.global_rank}")
"""


def exact() -> Recipe:
    """A recipe that trains the same weights, but for rounding, whatever the number of processes."""
    return tiny(*WORDS, *EXACT)


def sosn_by_sgd() -> Recipe:
    """SoSN, validated with the weights and the statistics of its last step."""
    return tiny(*"way=3 episodes_per_step=4 optimiser=sgd learning_rate=0.05 warmup=0 average=0 recalibrate=0".split())


def take_apart(trainer: Trainer, episode: Episode) -> torch.Tensor:
    """The step of two processes in one: batch norm sees half of the episodes at a time, and remembers the first half."""
    assert episode.labels is not None
    halves = [Episode(episode.support[rank::2], episode.query[rank::2], episode.labels[rank::2]) for rank in range(2)]
    trainer.optimizer.zero_grad()
    first = trainer.method.loss(halves[0])
    with batch_statistics(trainer.method):
        losses = torch.stack((first, trainer.method.loss(halves[1])))
    losses.mean().backward()
    trainer.optimizer.step()
    return losses.detach()


def stop_after_two_steps(recipe: Recipe, folder: Path, fabric: Fabric | None = None) -> None:
    """Leave a run behind that ended there, with a checkpoint."""
    run = Run(folder, writes=fabric is None or fabric.is_global_zero)
    trainer = Trainer(recipe, run, Silent(), fabric)
    if run.writes:
        run.create(recipe, trainer.contents)
    for _ in range(2):
        trainer.advance()
    trainer.save()


def check_same(first: Path, second: Path) -> None:
    """Two runs ended with the same weights, average and momentum, but for rounding."""
    ours, theirs = (load_file(folder / "checkpoint.safetensors") for folder in (first, second))
    assert {name.partition(".")[0] for name in ours} == {"method", "average", "optimiser"}
    torch.testing.assert_close(ours, theirs, rtol=0, atol=ROUNDING)


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
    """What each of two processes held after three steps. They leave a run behind, stopped."""
    script = folder / "watched.py"
    script.write_text(WATCHED)
    ended = launch(str(script), str(Path(__file__).parent.parent.parent), str(folder / "rank"), str(folder / "stopped"))
    assert ended.returncode == 0, ended.stderr
    return [load_file(folder / f"rank-{rank}") for rank in range(2)]


@pytest.fixture(scope="module")
def two(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run of two processes, in the folder two, and what it said."""
    words = ("train", "glyphs-5w1s", *TINY, *WORDS, *EXACT, "--out", str(folder / "two"), "--devices", "2", "--json")
    ended = launch("-m", "sosn", *words)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision, where sums in another order make no difference that counts."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def one(folder: Path) -> Path:
    """A run of one process."""
    return train(exact(), folder / "one").folder


@pytest.mark.slow
def test_weights_stay_the_same_on_all_processes(watched: list[dict[str, torch.Tensor]]) -> None:
    first, second = watched
    for name in first:
        if name.startswith("weight."):
            assert torch.equal(first[name], second[name]), name
    assert not torch.equal(first["losses"], second["losses"])  # of other episodes


def test_processes_share_the_episodes_of_a_step(watched: list[dict[str, torch.Tensor]]) -> None:
    alone = Trainer(tiny("episodes_per_step=4"), Run(Path()), Silent())
    for number in range(3):
        parts = [part[f"query.{number}"] for part in watched]
        assert [len(part) for part in parts] == [2, 2]
        assert not any(torch.equal(one, other) for one in parts[0] for other in parts[1])
        whole = alone.source.draw("train", number).query
        for rank, part in enumerate(parts):
            assert torch.equal(part, whole[rank::2])


def test_processes_augment_with_different_numbers_and_recalibrate_with_the_same(
    watched: list[dict[str, torch.Tensor]],
) -> None:
    augmented = [part[f"augmented.{number}"].flatten(0, 1) for part in watched for number in range(3)]  # of the same images
    for one, other in combinations(augmented, 2):
        assert not any(torch.equal(left, right) for left, right in zip(one, other, strict=True))
    assert torch.equal(*(part["recalibrating"] for part in watched))


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_sosn_in_two_processes_follows_the_mean_gradient_of_halves_that_batch_norm_sees_apart(
    watched: list[dict[str, torch.Tensor]],
) -> None:
    alone, whole = (Trainer(sosn_by_sgd(), Run(Path()), Silent()) for _ in range(2))
    alone.learn = lambda episode: take_apart(alone, episode)
    losses = [torch.stack([trainer.advance() for _ in range(2)]) for trainer in (alone, whole)]
    for rank, part in enumerate(watched):
        torch.testing.assert_close(part["sosn.losses"], losses[0][:, rank])
        for name, value in alone.method.state_dict().items():
            torch.testing.assert_close(part[f"sosn.{name}"], value, rtol=0, atol=1e-9, msg=name)  # 1e-13 was seen
    for name in ("encoder.blocks.0.weight", "encoder.blocks.1.running_var"):  # batch norm that sees all is something else
        assert (watched[0][f"sosn.{name}"] - whole.method.state_dict()[name]).abs().max() > 1e-5
    torch.testing.assert_close(losses[0].mean(1), losses[1], rtol=0.01, atol=0)


@pytest.mark.slow
def test_sosn_learns_as_well_in_two_processes_as_in_one(tmp_path: Path) -> None:
    words = ("train", "glyphs-5w1s", *TINY, *LEARNS, "--out", str(tmp_path / "two"), "--devices", "2", "--json")
    ended = launch("-m", "sosn", *words)
    assert ended.returncode == 0, ended.stderr
    two, one = json.loads(ended.stdout), train(tiny(*LEARNS), tmp_path / "one").evaluation
    assert one is not None
    assert two["fingerprint"] == one.fingerprint
    assert min(two["accuracy"], one.accuracy) > 0.5  # chance is 0.33; 0.63 to 0.76 was seen with four seeds
    assert abs(two["accuracy"] - one.accuracy) < two["ci95"] + one.ci95


def test_episodes_of_an_evaluation_are_shared_and_the_figures_are_those_of_one_process(
    watched: list[dict[str, torch.Tensor]], folder: Path
) -> None:
    first, second = watched
    assert torch.equal(first["validated"], second["validated"])
    assert [part["counts"].tolist() for part in watched] == [[4, 4], [3, 3]]  # each validated its share
    model = sosn.load(folder / "rank")
    bank = sosn.open_bank("glyphs", "val", **tiny().data.options)
    assert evaluate(model, bank, 3, 1, 2, 7).per_episode == tuple(first["validated"].tolist())


@pytest.mark.slow
def test_a_run_of_two_processes_learns_what_one_learns(two: subprocess.CompletedProcess[str], one: Path, folder: Path) -> None:
    check_same(folder / "two", one)
    start = Trainer(exact(), Run(folder), Silent()).method.state_dict()
    end = load_file(one / "checkpoint.safetensors")
    assert all(
        (end[f"method.{name}"] - start[name]).abs().max() > 1_000 * ROUNDING for name in start if name.endswith("weight")
    )
    losses = [json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"] for run in (folder / "two", one)]
    assert losses[0] == pytest.approx(losses[1], abs=ROUNDING)  # of all episodes of the step
    printed = json.loads(two.stdout)  # one process speaks
    assert "processes registered" not in two.stderr
    alone = json.loads((one / "result.json").read_text())
    assert printed["episodes"] == alone["episodes"]
    assert printed["fingerprint"] == alone["fingerprint"]
    assert json.loads((folder / "two" / "result.json").read_text())["accuracy"] == printed["accuracy"]
    bank = sosn.open_bank("glyphs", "val", **tiny().data.options)
    sizes = (alone["way"], alone["shot"], alone["query"], alone["episodes"])
    assert evaluate(sosn.load(folder / "two"), bank, *sizes).accuracy == printed["accuracy"]  # as one process finds it


@pytest.mark.slow
@pytest.mark.usefixtures("two")
def test_two_processes_refuse_a_folder_with_a_run_with_one_message(folder: Path) -> None:
    again = launch("-m", "sosn", "train", "glyphs-5w1s", *TINY, *WORDS, "--out", str(folder / "two"), "--devices", "2")
    assert again.returncode == 2
    assert again.stderr.count("already contains a run") == 1


@pytest.mark.usefixtures("watched", "two")
def test_an_interrupted_run_of_two_processes_continues_with_one(folder: Path) -> None:
    assert train(exact(), folder / "stopped", resume=True).evaluation is not None
    check_same(folder / "stopped", folder / "two")


@pytest.mark.slow
def test_an_interrupted_run_of_one_process_continues_with_two(one: Path, tmp_path: Path) -> None:
    stop_after_two_steps(exact(), tmp_path / "run")
    ended = launch("-m", "sosn", "train", str(tmp_path / "run"), "--resume", "--devices", "2")
    assert ended.returncode == 0, ended.stderr
    check_same(tmp_path / "run", one)


@pytest.mark.slow
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


@contextmanager
def two_at_work(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Two processes that train for long, in a process group of their own, after their first checkpoint."""
    words = ("train", "glyphs-5w1s", *TINY, *WORDS, "steps=100000", "--out", str(folder), "--devices", "2")
    command = [sys.executable, "-m", "sosn", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stderr=pipe, text=True, start_new_session=True, preexec_fn=heed) as child:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield child


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_an_interrupt_ends_all_processes_with_one_sentence(tmp_path: Path) -> None:
    with two_at_work(tmp_path / "run") as child:
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-2:] == [f"`sosn train {tmp_path / 'run'} --resume` continues from the last checkpoint", "stopped"]
    assert [word for word in ("Traceback", "distributed", "terminat") if word in err] == []
    assert err.count("stopped") == 1
    with pytest.raises(ProcessLookupError):  # nobody is left
        os.killpg(child.pid, 0)


def test_a_numbered_gpu_cannot_be_several_and_a_processor_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_fabric(tiny("device=cpu:0")).device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="device is 'cuda:0', a single device, but devices is 2: use device=cuda"):
        make_fabric(tiny("device=cuda:0"), devices=2)


def test_nodes_without_a_launcher_and_wrong_numbers_of_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="nodes is 2: start the command on each machine with torchrun --nnodes 2"):
        make_fabric(tiny(), nodes=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for devices, nodes in ((4, 1), (2, 2), (1, 1)):
        wrong = f"2 processes were started, but devices={devices} and nodes={nodes} need {devices * nodes}"
        with pytest.raises(UsageError, match=wrong):
            make_fabric(tiny(), devices, nodes)
    make_fabric(tiny(), 2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="needs pgrep, to find the process")
def test_the_death_of_a_process_is_reported(tmp_path: Path) -> None:
    with two_at_work(tmp_path / "run") as child:
        workers = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=False).stdout.split()
        os.kill(int(workers[0]), signal.SIGKILL)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert (
        err.splitlines()[-1] == "error: another process of this run has ended: resume it to continue from the last checkpoint"
    )
    assert "Traceback" not in err


WAITING = """
import subprocess, sys, time
from types import SimpleNamespace
from sosn.cli.process import end_at_once
from sosn.training import distributed

distributed.LOOK, distributed.GRACE = 0.05, float(sys.argv[1])
procs = []
start = lambda: procs.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(1)"]))
fabric = SimpleNamespace(launch=start, strategy=SimpleNamespace(launcher=SimpleNamespace(procs=procs)))
with distributed.launched(fabric, lambda: end_at_once("another process of this run has ended")):
    assert not procs  # Fabric's own watch would end this process at once
    time.sleep(2)
print("through")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("grace", "ends"), [("60", 0), ("0.1", -signal.SIGKILL)], ids=["noticed", "waits"])
def test_a_process_that_waits_for_a_dead_one_is_killed(grace: str, ends: int) -> None:
    ended = subprocess.run([sys.executable, "-c", WAITING, grace], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == ends
    assert ("through" in ended.stdout) == (ends == 0)
    assert ("another process of this run has ended" in ended.stderr) == (ends != 0)


SETTLING = """
import sys
import torch
from lightning_fabric import Fabric
from sosn.training.distributed import launched

def barrier():
    print("waits")
    raise RuntimeError("gloo: connection closed by peer")

fabric = Fabric(accelerator="cpu", strategy="ddp", devices=1)
fabric.launch()
torch.distributed.barrier = barrier
try:
    with launched(fabric):
        print("trains")
        assert sys.argv[1] == "ends"
except AssertionError:
    print("fails")
print("through")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "printed"), [("ends", "trains waits through"), ("breaks", "trains fails through")])
def test_a_process_waits_for_gloo_before_it_ends_and_takes_no_harm_if_others_are_gone(way: str, printed: str) -> None:
    """Without the wait, one of some ten trainings of two processes was aborted on its way out."""
    ended = launch("-c", SETTLING, way)
    assert ended.stdout.split() == printed.split(), ended.stderr


def test_episodes_that_cannot_be_shared_and_devices_that_are_not_there_are_refused() -> None:
    from sosn.data.sampler import EpisodeSampler
    from sosn.training.source import EpisodeSource

    recipe = tiny("episodes_per_step=3")
    sampler = EpisodeSampler(sosn.open_bank("glyphs", "val", **recipe.data.options), 2, 1, 1)
    with pytest.raises(UsageError, match="must be a multiple of 2"):
        EpisodeSource(sampler, recipe, torch.device("cpu"), 0, 2)
    with pytest.raises(UsageError, match="devices is 0"):
        make_fabric(recipe, devices=0)
