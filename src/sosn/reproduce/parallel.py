"""Run several trainings at a time in separate processes: one small model does not use a large GPU fully."""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOK = 0.2  # seconds between two checks
GRACE = 30.0  # seconds that processes have to end after SIGTERM


@dataclass(frozen=True)
class Task:
    """A command to run in a separate process."""

    name: str
    command: tuple[str, ...]
    log: Path  # its output is appended here
    makes: Path  # a file that exists if it succeeded
    after: str = ""  # name of the task that must succeed before it starts


@dataclass(frozen=True)
class Failure:
    """Why a task failed. broke: it crashed; otherwise it ended normally without a result."""

    reason: str
    broke: bool = False


class _Running:
    """A task with a running process."""

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
        """Return why a finished task failed, or None if it succeeded."""
        code = self.process.returncode
        if code == 0 and self.task.makes.exists():
            return None
        if code < 0:
            return Failure(f"it was killed by signal {-code}; see {str(self.task.log)!r}", True)
        with self.task.log.open("rb") as log:
            log.seek(self.start)
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        reason = lines[-1] if lines else f"it exited with code {code} and no message"
        return Failure(reason.removeprefix("error: ").removeprefix(f"– {self.task.name}: "), code != 0)


def run_parallel(tasks: Sequence[Task], at_once: int, say: Callable[[str], None]) -> dict[str, Failure]:
    """Run tasks in order, `at_once` at a time; a task waits for the one that it starts after. Returns failures by name.

    On interruption, running tasks are terminated.
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
    """Return the reason for skipping a task whose start failed."""
    return f"it starts from {first}, which failed"


def _can_start(waiting: Sequence[Task], running: Collection[Task], failed: dict[str, Failure]) -> list[Task]:
    """Return the tasks that do not wait for another."""
    unfinished = {task.name for task in (*waiting, *running)} | failed.keys()
    return [task for task in waiting if task.after not in unfinished]


def _end(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Terminate processes, and kill those that do not end in time."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
