"""Meta-Learner LSTM: an LSTM learns to update the weights of a classifier."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.method.adaptation import (
    Weights,
    answer_with,
    chain,
    classify_with,
    descending,
    side_by_side,
    start,
    support_classes,
    task_losses,
)
from sosn.method.base import Shared
from sosn.method.encoded import SoftmaxMethod
from sosn.util.checks import at_least
from sosn.util.precision import full, full_precision

RANGE = 10.0  # p in the scaling of gradients and losses: exponents down to −p are resolved


class MetaLSTM(SoftmaxMethod):
    """Ravi & Larochelle, "Optimization as a Model for Few-Shot Learning", ICLR 2017.

    Implemented: the weights θ of a classifier are the cell state of an LSTM, θ ← f⊙θ − i⊙∇L on the support images. The gates
    f and i depend on their previous value, on θ, and on an LSTM over (∇L, L) that all weights share. The initial weights are
    learnt, ∇L and L are scaled, gradients are not differentiated through, and there are 32 filters. The head has one output
    per class, so an episode must have as many classes as the head has outputs, and their order matters. All tasks of a batch
    run in parallel.

    Not implemented: mini-batches of support images (every step takes all, as in their release at 5 ways). As in our MAML, batch
    norm normalises queries by the moments of the support images (theirs: the batch in training, running statistics at test).
    """

    name: ClassVar[str] = "meta_lstm"
    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4_pooled", "width": 32}
    capturable: ClassVar[bool] = True
    adapts = True

    def __init__(
        self,
        outputs: int = 5,
        hidden: int = 20,
        inner_steps: int = 5,
        initial_rate: float = 0.01,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        at_least(2, outputs=outputs)
        at_least(1, hidden=hidden)
        at_least(0, inner_steps=inner_steps)
        if not 0 < initial_rate < 1:
            raise UsageError(f"initial_rate is {initial_rate}; it must lie between 0 and 1")
        self.outputs, self.steps = outputs, inner_steps
        chain(self.encoder)  # fail before training
        self.head = nn.Linear(self.features, outputs)
        self.watch = nn.LSTMCell(4, hidden)
        self.keep, self.rate = nn.Linear(hidden + 2, 1), nn.Linear(hidden + 2, 1)  # inputs: h, θ and the gate's last value
        for gate, bias in ((self.keep, 5.0), (self.rate, math.log(initial_rate / (1 - initial_rate)))):
            nn.init.uniform_(gate.weight, -0.01, 0.01)  # almost plain gradient descent at first
            nn.init.constant_(gate.bias, bias)

    @property
    def describes_images(self) -> bool:
        return False  # features depend on the task

    def _logits(self, episode: Episode, separately: bool) -> Tensor:
        if episode.way != self.outputs:
            raise UsageError(
                f"the episode has {episode.way} classes and the classifier {self.outputs} outputs: train with "
                f"outputs={episode.way}"
            )
        blocks = chain(self.encoder)
        first = start(blocks, "blocks.", len(episode)) | start(self.head, "head.", len(episode))
        truth = support_classes(episode, self.device)

        def weights_of(theta: Tensor) -> Weights:
            parts = theta.split([weight[0].numel() for weight in first.values()], 1)
            return {name: part.reshape(weight.shape) for (name, weight), part in zip(first.items(), parts, strict=True)}

        images = self._images(episode)
        with descending():
            support, query = (side_by_side(side, len(episode)) for side in images)
            theta = torch.cat([weight.flatten(1) for weight in first.values()], 1)  # (E, P)
            state: Gates | None = None
            for _ in range(self.steps):
                here = theta.detach().requires_grad_()
                losses = task_losses(classify_with(weights_of(here), blocks, support), truth)
                (gradient,) = torch.autograd.grad(losses.sum(), here)
                theta, state = self.update(theta, gradient, losses.detach(), state)
            return answer_with(weights_of(theta), blocks, support, query, separately)

    def update(self, theta: Tensor, gradient: Tensor, loss: Tensor, state: "Gates | None") -> tuple[Tensor, "Gates"]:
        """Update weights (E, P), given their gradient (E, P), loss (E,) and the state of the LSTM and both gates."""
        inputs = torch.cat((scaled(gradient), scaled(loss).unsqueeze(1).expand(*gradient.shape, 2)), -1)  # (E, P, 4)
        flat = theta.reshape(-1, 1)
        memory, keep, rate = (None, torch.ones_like(flat), torch.zeros_like(flat)) if state is None else state
        hidden, cell = self.watch(inputs.flatten(0, 1), memory)
        keep = torch.sigmoid(full(self.keep(torch.cat((full(hidden), flat, keep), -1))))
        rate = torch.sigmoid(full(self.rate(torch.cat((full(hidden), flat, rate), -1))))
        moved = keep * flat - rate * gradient.reshape(-1, 1)
        return moved.view(theta.shape), ((hidden, cell), keep, rate)


Gates = tuple[tuple[Tensor, Tensor], Tensor, Tensor]  # hidden and cell state, and the last values of both gates


@full_precision
def scaled(values: Tensor) -> Tensor:
    """Scale numbers of any magnitude to two numbers of about 1 (Andrychowicz et al., NeurIPS 2016): (…,) → (…, 2).

    (log|x|/p, sign x) where |x| ≥ e⁻ᵖ, else (−1, eᵖx).
    """
    large = values.abs() >= math.exp(-RANGE)
    logarithm = torch.where(large, values.abs().clamp(min=math.exp(-RANGE)).log() / RANGE, -1.0)
    return torch.stack((logarithm, torch.where(large, values.sign(), math.exp(RANGE) * values)), -1)
