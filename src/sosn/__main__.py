"""Run the command line as `python -m sosn`."""

from sosn.cli import main

if __name__ == "__main__":  # processes that decode images import this module too
    main()
