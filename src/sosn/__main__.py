"""`python -m sosn` is `sosn`."""

from sosn.cli import main

main()
