"""Trainings in processes of their own, several at a time: one small model does not keep a large GPU busy."""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOK = 0.2  # seconds between two looks at them
GRACE = 30.0  # seconds that they have to end when they are told to


@dataclass(frozen=True)
class Task:
    """A command that runs by itself."""

    name: str
    command: tuple[str, ...]
    log: Path  # for what it prints, after what is there
    makes: Path  # a file that is there if it went well
    after: str = ""  # name of the task that has to go well before it starts


@dataclass(frozen=True)
class Failure:
    """Why a task went wrong, and whether it broke or ended as it should and had nothing to show."""

    reason: str
    broke: bool = False


class _Running:
    """A task whose process runs."""

    def __init__(self, task: Task) -> None:
        self.task, self.began = task, time.monotonic()
        task.log.parent.mkdir(parents=True, exist_ok=True)
        around = os.environ | {"PYTHONUTF8": "1"}  # the log is read as it is written
        with task.log.open("ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                task.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=around
            )

    def failure(self) -> Failure | None:
        """Why it went wrong, now that it is over; None if it went well."""
        code = self.process.returncode
        if code == 0 and self.task.makes.exists():
            return None
        if code < 0:
            return Failure(f"signal {-code} ended it; see {str(self.task.log)!r}", True)
        with self.task.log.open("rb") as log:
            log.seek(self.start)
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        said = lines[-1] if lines else f"it ended with code {code} and said nothing"
        return Failure(said.removeprefix("error: ").removeprefix(f"– {self.task.name}: "), code != 0)


def side_by_side(tasks: Sequence[Task], at_once: int, say: Callable[[str], None]) -> dict[str, Failure]:
    """Run tasks, so many at a time, in their order as far as they need not wait for others. Returns why some failed, by name.

    If this is interrupted, those that run are told to end, and waited for.
    """
    waiting, failed = list(tasks), dict[str, Failure]()
    running: list[_Running] = []
    try:
        while waiting or running:
            for task in _can_start(waiting, [one.task for one in running], failed)[: at_once - len(running)]:
                waiting.remove(task)
                running.append(_Running(task))
            time.sleep(LOOK)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                failure = one.failure()
                if failure:
                    failed[one.task.name] = failure
                say(f"{one.task.name}: {failure.reason if failure else f'done in {time.monotonic() - one.began:.0f} s'}")
            for task in [one for one in waiting if one.after in failed]:
                waiting.remove(task)
                failed[task.name] = Failure(starts_from_failed(task.after))
                say(f"{task.name}: {failed[task.name].reason}")
    finally:
        _end([one.process for one in running])
    return failed


def starts_from_failed(first: str) -> str:
    """Why something cannot be run whose beginning failed."""
    return f"it starts from {first}, which failed"


def _can_start(waiting: Sequence[Task], running: Collection[Task], failed: dict[str, Failure]) -> list[Task]:
    """Those that wait for no other."""
    unfinished = {task.name for task in (*waiting, *running)} | failed.keys()
    return [task for task in waiting if task.after not in unfinished]


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
