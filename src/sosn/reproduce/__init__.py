"""The paper's experiments, run whole, with its figures beside ours."""

from sosn.reproduce.open_mic import Table, plan, reproduce

__all__ = ["Table", "plan", "reproduce"]
