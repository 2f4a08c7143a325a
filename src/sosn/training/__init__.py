"""Training: the loop, its schedule, its run folder."""

from sosn.training.loop import TrainingResult, train
from sosn.training.progress import Progress, Silent

__all__ = ["Progress", "Silent", "TrainingResult", "train"]
