"""Parallel trainings: a limited number at a time, in order, each after its start, and all ended on interruption."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sosn.reproduce.parallel import Failure, Task, run_parallel
from tests.conftest import Listener, heed


def task(folder: Path, name: str, code: str = "pass", after: str = "", makes: bool = True) -> Task:
    """One that notes when it began and ended, and does something in between."""
    noted = [f"open({str(folder / file)!r}, 'w').write(str(time.monotonic()))" for file in (name, f"{name}.end")]
    program = f"import os, sys, time\n{noted[0]}\n{code}\n{noted[1]}"
    made = folder / (f"{name}.end" if makes else "nothing")
    return Task(name, (sys.executable, "-c", program), folder / "logs" / f"{name}.log", made, after)


def until(folder: Path, name: str) -> str:
    """Waits until another has begun: in vain if the two do not run at the same time."""
    return (
        f"deadline = time.monotonic() + 60\nwhile not os.path.exists({str(folder / name)!r}):\n"
        "    time.sleep(0.01)\n    assert time.monotonic() < deadline"
    )


def when(folder: Path, name: str) -> tuple[float, float]:
    return float((folder / name).read_text()), float((folder / f"{name}.end").read_text())


@pytest.mark.slow
def test_so_many_run_at_a_time_in_their_order(tmp_path: Path) -> None:
    listener = Listener()
    pairs = zip("abcd", "badc", strict=True)  # a and b wait for each other, then c and d
    tasks = [task(tmp_path, one, f"{until(tmp_path, other)}\ntime.sleep(0.3)") for one, other in pairs]
    assert run_parallel(tasks, 2, listener.say) == {}
    spans = [when(tmp_path, name) for name in "abcd"]
    for began, _ in spans:
        assert sum(start <= began < end for start, end in spans) <= 2
    ends, later = sorted(end for _, end in spans), sorted(start for start, _ in spans[2:])
    assert later[0] >= ends[0]
    assert later[1] >= ends[1]
    assert {sentence.split(":")[0] for sentence in listener.said} == set("abcd")
    assert all("done in" in sentence for sentence in listener.said)


def test_one_that_starts_from_another_waits_for_it_and_lets_others_pass(tmp_path: Path) -> None:
    first, second = task(tmp_path, "first", until(tmp_path, "other")), task(tmp_path, "second", after="first")
    assert run_parallel([first, second, task(tmp_path, "other")], 2, Listener().say) == {}
    assert when(tmp_path, "second")[0] >= when(tmp_path, "first")[1]


def test_what_went_before_is_not_waited_for(tmp_path: Path) -> None:
    assert run_parallel([task(tmp_path, "second", "pass", after="finished long ago")], 2, Listener().say) == {}


def test_failures_are_reported_with_their_message_and_stop_dependent_tasks(tmp_path: Path) -> None:
    tasks = [
        task(tmp_path, "bad", "print('error: it is broken – näher'); sys.exit(1)"),
        task(tmp_path, "next", after="bad"),
        task(tmp_path, "last", after="next"),
        task(tmp_path, "mute", "sys.exit(3)"),
        task(tmp_path, "void", "print('– void: the loss is no number')", makes=False),
        task(tmp_path, "good"),
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mute.log").write_text("error: of an earlier attempt\n")
    listener = Listener()
    assert run_parallel(tasks, 3, listener.say) == {
        "bad": Failure("it is broken – näher", True),
        "next": Failure("it starts from bad, which failed"),
        "last": Failure("it starts from next, which failed"),
        "mute": Failure("it exited with code 3 and no message", True),
        "void": Failure("the loss is no number"),
    }
    assert "bad: it is broken – näher" in listener.said
    assert "last: it starts from next, which failed" in listener.said
    assert len(listener.said) == len(tasks)
    assert not (tmp_path / "next").exists()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs signals of POSIX")
def test_a_killed_task_is_reported_with_its_signal(tmp_path: Path) -> None:
    killed = task(tmp_path, "killed", "print('step 1', flush=True); os.kill(os.getpid(), 9)")
    assert run_parallel([killed], 1, Listener().say) == {
        "killed": Failure(f"it was killed by signal 9; see {str(killed.log)!r}", True)
    }


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_finished_tasks_keep_no_files_open(tmp_path: Path) -> None:
    def count(_: str = "") -> None:
        opened.append(len(list(Path("/proc/self/fd").iterdir())))

    opened: list[int] = []
    count()
    tasks = [Task(str(number), (sys.executable, "-S", "-c", ""), tmp_path / f"{number}.log", tmp_path) for number in range(3)]
    assert run_parallel(tasks, 1, count) == {}
    assert len(opened) == 4
    assert len(set(opened)) == 1


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs signals of POSIX")
def test_an_interrupt_leaves_none_behind(tmp_path: Path) -> None:
    child, pid = tmp_path / "child.py", tmp_path / "pid"
    child.write_text(f"import os, time\nprint(os.getpid(), file=open({str(pid)!r}, 'w'), flush=True)\ntime.sleep(300)\n")
    program = (
        "import sys; from pathlib import Path; from sosn.reproduce.parallel import Task, run_parallel; "
        f"run_parallel([Task('a', (sys.executable, {str(child)!r}), Path({str(tmp_path / 'log')!r}), Path('a'))], 1, print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, preexec_fn=heed)
    try:
        deadline = time.monotonic() + 60
        while not pid.exists() or not pid.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(60) != 0
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    finally:
        parent.kill()
        parent.wait()
