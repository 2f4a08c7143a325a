"""The command line. Heavy imports happen inside the commands, so that `sosn --help` is fast."""

import os
import re
import signal
import sys
import warnings
from typing import NoReturn

from sosn.errors import DataError, SosnError, SosnWarning, UsageError

INTERRUPTED = 130  # what shells expect after Ctrl-C


def main() -> None:
    """Run a command. Exits with 0 on success, 1 on failure, 2 on wrong usage, 130 on interruption."""
    # Before torch starts its threads: threads that spin while they wait slow each other down on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from sosn.cli.app import app

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM acts like Ctrl-C
    if os.environ.get("LOCAL_RANK", "0") != "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
        for number in (signal.SIGINT, signal.SIGTERM):  # all processes receive it; the first prints and ends the others
            signal.signal(number, signal.SIG_IGN)
    with warnings.catch_warnings():
        plain = warnings.showwarning
        warnings.showwarning = lambda message, category, *rest: (
            _print_once(f"note: {message}") if issubclass(category, SosnWarning) else plain(message, category, *rest)
        )
        try:
            app()
        except (UsageError, DataError) as error:  # in distributed training, every process raises it
            _print_once(f"error: {error}")
            _end(2 if isinstance(error, UsageError) else 1)
        except SosnError as error:
            _end(1, f"error: {error}")
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", str(error)):
                raise
            _end(1, "error: not enough memory: lower episodes_per_step, way, shot, query or the size of the images")
        except OSError as error:  # a disk, folder or file that cannot be read or written
            _end(1, f"error: {error}")
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt) or end.code == INTERRUPTED:
                _end(INTERRUPTED, "stopped")
            try:
                sys.stdout.flush()  # detects a full disk here
            except OSError as error:
                _end(1, f"error: cannot write to standard output ({error.strerror})")
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _print_once(sentence: str) -> None:
    """Print to standard error, only in the first process on a machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(sentence, file=sys.stderr)


def _end(code: int, sentence: str = "") -> NoReturn:
    if sentence:
        print(sentence, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # already reported: without this, Python reports it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
