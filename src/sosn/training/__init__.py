"""Training: one readable loop, its schedule, its run folder."""

from sosn.training.loop import Progress, TrainingResult, train

__all__ = ["Progress", "TrainingResult", "train"]
