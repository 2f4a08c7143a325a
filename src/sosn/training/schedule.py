"""The learning rate as a function of the step."""

import math

from sosn.recipe.sections import TrainingSection


def learning_rate(step: int, training: TrainingSection) -> float:
    """Rate of a step (counted from 0): constant, cut by a factor every so often, or a cosine to 0; with a linear warm-up."""
    rate = training.learning_rate
    if training.schedule == "step":
        rate *= training.decay_factor ** (step // training.decay_every)
    elif training.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / training.steps))
    if step < training.warmup:
        rate *= (step + 1) / training.warmup
    return rate
