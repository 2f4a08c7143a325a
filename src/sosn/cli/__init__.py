"""The command line. Nothing heavy is imported here: `sosn --help` answers at once."""

import os
import re
import signal
import sys
import warnings
from typing import NoReturn

from sosn.errors import DataError, SosnError, SosnWarning, UsageError

INTERRUPTED = 130  # what shells expect after Ctrl-C


def main() -> None:
    """Run a command; exit with 0 when done, 1 when it failed, 2 when it was called wrongly, 130 when it was interrupted."""
    # Before torch loads its threads: those that spin while they wait starve one another on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from sosn.cli.app import app

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends as Ctrl-C does
    if os.environ.get("LOCAL_RANK", "0") != "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
        for number in (signal.SIGINT, signal.SIGTERM):  # all are told; the first speaks and ends the others
            signal.signal(number, signal.SIG_IGN)
    with warnings.catch_warnings():
        plain = warnings.showwarning
        warnings.showwarning = lambda message, kind, *rest: (
            _say(f"note: {message}") if issubclass(kind, SosnWarning) else plain(message, kind, *rest)
        )
        try:
            app()
        except (UsageError, DataError) as error:  # of several processes all find it
            _say(f"error: {error}")
            _end(2 if isinstance(error, UsageError) else 1)
        except SosnError as error:
            _end(1, f"error: {error}")
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", str(error)):
                raise
            _end(1, "error: there is not enough memory: lower episodes_per_step, way, shot, query or the size of the images")
        except OSError as error:  # a disk, folder or file that does not do what it should
            _end(1, f"error: {error}")
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt) or end.code == INTERRUPTED:
                _end(INTERRUPTED, "stopped")
            try:
                sys.stdout.flush()  # so that a full disk is noticed here
            except OSError as error:
                _end(1, f"error: cannot write to standard output ({error.strerror})")
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _say(sentence: str) -> None:
    """Tell the user; of several processes on a machine the first does."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(sentence, file=sys.stderr)


def _end(code: int, sentence: str = "") -> NoReturn:
    if sentence:
        print(sentence, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # said already: without this it would be said once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
