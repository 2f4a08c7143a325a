"""Trainings in processes of their own, several at a time: one small model does not keep a large GPU busy."""

import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

LOOK = 0.2  # seconds between two looks at them
GRACE = 30.0  # seconds that they have to end when they are told to


@dataclass(frozen=True)
class Task:
    """A command that runs by itself."""

    name: str
    command: tuple[str, ...]
    log: Path  # for what it prints
    makes: Path  # a file that is there if it went well
    after: str = ""  # name of the task that has to go well before it starts


def side_by_side(tasks: Sequence[Task], at_once: int, say: Callable[[str], None]) -> dict[str, str]:
    """Run tasks, so many at a time, in their order as far as they need not wait for others. Returns why some failed, by name.

    If this is interrupted, those that run are told to end, and waited for.
    """
    waiting, failed = list(tasks), dict[str, str]()
    running: dict[Task, tuple[subprocess.Popen[bytes], float]] = {}
    with ExitStack() as files:
        try:
            while waiting or running:
                for task in _can_start(waiting, running, failed)[: at_once - len(running)]:
                    waiting.remove(task)
                    task.log.parent.mkdir(parents=True, exist_ok=True)
                    log = files.enter_context(task.log.open("ab"))
                    process = subprocess.Popen(task.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                    running[task] = process, time.monotonic()
                time.sleep(LOOK)
                for task, (process, began) in list(running.items()):
                    if process.poll() is not None:
                        del running[task]
                        if process.returncode or not task.makes.exists():
                            failed[task.name] = _last_line(task.log) or f"it ended with code {process.returncode}"
                        told = failed.get(task.name, f"done in {time.monotonic() - began:.0f} s")
                        say(f"{task.name}: {told}")
                for task in [one for one in waiting if one.after in failed]:
                    waiting.remove(task)
                    failed[task.name] = f"it starts from {task.after}, which failed"
        finally:
            _end([process for process, _ in running.values()])
    return failed


def _can_start(waiting: Sequence[Task], running: Collection[Task], failed: dict[str, str]) -> list[Task]:
    """Those that wait for no other."""
    unfinished = {task.name for task in (*waiting, *running)} | failed.keys()
    return [task for task in waiting if task.after not in unfinished]


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else ""


def _end(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Tell processes to end, and end those that do not."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
