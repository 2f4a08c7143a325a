"""Learning rate schedules."""

import math

from sosn.recipe.sections import TrainingSection


def learning_rate(step: int, training: TrainingSection) -> float:
    """Return the rate of a step, counted from 0: constant, step decay or cosine decay to 0, after a linear warm-up."""
    rate = training.learning_rate
    if training.schedule == "step":
        rate *= training.decay_factor ** (step // training.decay_every)
    elif training.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / training.steps))
    if step < training.warmup:
        rate *= (step + 1) / training.warmup
    return rate
