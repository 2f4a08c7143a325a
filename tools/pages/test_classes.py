"""docs/reproduction/test-classes.md: classes that two splits of Omniglot share."""

from sosn.reproduce.omniglot import OVERLAP


def figures() -> dict[str, str]:
    return {f"overlap.{name}": str(count) for name, count in OVERLAP.items()}
