"""The command line. Nothing heavy is imported here: `sosn --help` answers at once."""

import os
import sys

from sosn.errors import SosnError, UsageError


def main() -> None:
    """Run a command; exit with 0 when done, 1 when it failed, 2 when it was called wrongly."""
    # Before torch loads its threads: waiting ones that spin cost 4% less time alone, and many times more on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from sosn.cli.app import app

    try:
        app()
    except SosnError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:  # a disk, folder or file that does not do what it should
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
