"""`python -m sosn` is `sosn`."""

from sosn.cli import main

if __name__ == "__main__":  # processes that decode images import this module too
    main()
