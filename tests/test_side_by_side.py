"""Trainings side by side: so many at a time, in order, none before what it starts from, and none left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Listener
from sosn.reproduce.side_by_side import Task, side_by_side


def task(folder: Path, name: str, code: str = "time.sleep(0.6)", after: str = "", makes: bool = True) -> Task:
    """One that notes when it began and ended, and does something in between."""
    noted = [f"open({str(folder / file)!r}, 'w').write(str(time.monotonic()))" for file in (name, f"{name}.end")]
    program = f"import sys, time; {noted[0]}; {code}; {noted[1]}"
    made = folder / (f"{name}.end" if makes else "nothing")
    return Task(name, (sys.executable, "-c", program), folder / "logs" / f"{name}.log", made, after)


def when(folder: Path, name: str) -> tuple[float, float]:
    return float((folder / name).read_text()), float((folder / f"{name}.end").read_text())


def test_so_many_run_at_a_time_in_their_order(tmp_path: Path) -> None:
    listener = Listener()
    assert side_by_side([task(tmp_path, name) for name in "abcd"], 2, listener.say) == {}
    spans = [when(tmp_path, name) for name in "abcd"]
    for began, _ in spans:
        assert sum(start <= began < end for start, end in spans) <= 2
    assert sum(start < spans[0][1] for start, _ in spans) == 2  # side by side they were
    assert max(spans[0][0], spans[1][0]) < min(spans[2][0], spans[3][0])
    assert {sentence.split(":")[0] for sentence in listener.said} == set("abcd")
    assert all("done in" in sentence for sentence in listener.said)


def test_one_that_starts_from_another_waits_for_it_and_lets_others_pass(tmp_path: Path) -> None:
    tasks = [task(tmp_path, "first"), task(tmp_path, "second", after="first"), task(tmp_path, "other")]
    assert side_by_side(tasks, 2, Listener().say) == {}
    assert when(tmp_path, "second")[0] >= when(tmp_path, "first")[1]
    assert when(tmp_path, "other")[0] < when(tmp_path, "first")[1]


def test_what_went_before_is_not_waited_for(tmp_path: Path) -> None:
    assert side_by_side([task(tmp_path, "second", "pass", after="finished long ago")], 2, Listener().say) == {}


def test_failures_are_told_in_their_own_words_and_end_what_starts_from_them(tmp_path: Path) -> None:
    tasks = [
        task(tmp_path, "bad", "print('error: it is broken'); sys.exit(1)"),
        task(tmp_path, "next", after="bad"),
        task(tmp_path, "last", after="next"),
        task(tmp_path, "mute", "sys.exit(3)"),
        task(tmp_path, "void", "print('the loss is no number')", makes=False),
        task(tmp_path, "good", "pass"),
    ]
    listener = Listener()
    assert side_by_side(tasks, 3, listener.say) == {
        "bad": "it is broken",
        "next": "it starts from bad, which failed",
        "last": "it starts from next, which failed",
        "mute": "it ended with code 3",
        "void": "the loss is no number",
    }
    assert "bad: it is broken" in listener.said
    assert not (tmp_path / "next").exists()
    assert (tmp_path / "logs" / "bad.log").read_text("utf-8").strip() == "error: it is broken"


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs signals of POSIX")
def test_an_interrupt_leaves_none_behind(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        f"import os, time\nprint(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w'), flush=True)\ntime.sleep(60)\n"
    )
    program = (
        "import sys; from pathlib import Path; from sosn.reproduce.side_by_side import Task, side_by_side; "
        f"side_by_side([Task('a', (sys.executable, {str(child)!r}), Path({str(tmp_path / 'log')!r}), Path('a'))], 1, print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    deadline, pid = time.monotonic() + 60, tmp_path / "pid"
    while not pid.exists() or not pid.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
