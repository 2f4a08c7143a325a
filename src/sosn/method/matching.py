"""Matching Net: predict by attention over the labels of the support images."""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.method.adaptation import (
    Weights,
    chain,
    descend,
    descending,
    run_with,
    running_moments,
    side_by_side,
    start,
    support_classes,
    task_losses,
    vectors,
)
from sosn.method.base import Shared
from sosn.method.distance import nearness
from sosn.method.encoded import SoftmaxMethod
from sosn.util.checks import above_zero, at_least
from sosn.util.precision import full


class MatchingNet(SoftmaxMethod):
    """Vinyals et al., "Matching Networks for One Shot Learning", NeurIPS 2016.

    Implemented: attention as softmax over the cosines to all support images; the probability of a class is the attention of
    its images, and the loss is its −log (cross-entropy of these logits). full_context: support vectors pass a bidirectional
    LSTM, and query vectors an LSTM that attends to them for context_steps steps; the order of the support images then matters.
    fine_tune_steps: gradient steps of the encoder at test time, matching support images with the support set (the paper gives
    few details). scale: factor of the cosines, 1 in the paper. Not implemented: language. Refuses full_context together with
    fine_tune_steps.
    """

    name: ClassVar[str] = "matching"
    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4_pooled"}
    capturable: ClassVar[bool] = True

    def __init__(
        self,
        scale: float = 1.0,
        full_context: bool = False,
        context_steps: int = 5,
        fine_tune_steps: int = 0,
        fine_tune_rate: float = 0.01,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        if full_context and fine_tune_steps:
            raise UsageError("full_context and fine_tune_steps cannot be combined: set fine_tune_steps=0")
        at_least(1, context_steps=context_steps)
        at_least(0, fine_tune_steps=fine_tune_steps)
        above_zero(scale=scale, fine_tune_rate=fine_tune_rate)
        if fine_tune_steps:
            chain(self.encoder)  # fail before training
        self.scale, self.fine_tune_steps, self.fine_tune_rate = scale, fine_tune_steps, fine_tune_rate
        self.context = FullContext(self.features, context_steps) if full_context else None
        self.adapts = fine_tune_steps > 0

    @property
    def describes_images(self) -> bool:
        return not self.fine_tune_steps

    def _logits(self, episode: Episode, separately: bool) -> Tensor:
        if self.fine_tune_steps and not self.training:
            return self._fine_tuned(episode)
        return super()._logits(episode, separately)

    def describe(self, shots: Tensor) -> Tensor:
        """Flatten each shot to a vector: (…, Z, K, h, w) → (…, Z, D)."""
        return shots.flatten(-3)

    def compare(self, classes: Tensor, queries: Tensor) -> Tensor:
        queries = queries.squeeze(2)
        if self.context is not None:
            classes, queries = self.context(classes, queries)
        return self.attend(full(classes), full(queries))

    def attend(self, support: Tensor, query: Tensor) -> Tensor:
        """log Σ exp(scale·cosine) over the shots of each class: (E, L, Z, D) and (E, Q, D) → (E, Q, L).

        Its softmax over classes is the attention to each class.
        """
        cosines = nearness(query, support.flatten(-3, -2), "cosine")  # (E, Q, L·Z)
        by_shot: Tensor = (self.scale * cosines).unflatten(-1, support.shape[-3:-1])
        return by_shot.logsumexp(-1)

    def _fine_tuned(self, episode: Episode) -> Tensor:
        """Logits after gradient descent on −log P of each support image given the support set, for each task separately."""
        blocks = chain(self.encoder)
        weights = start(blocks, "", len(episode))
        way, shot = episode.way, episode.shot
        truth = support_classes(episode, self.device)

        def embed(weights: Weights, maps: Tensor) -> Tensor:
            return full(vectors(run_with(weights, "", blocks, maps, moments)[0], len(episode)))

        def loss(weights: Weights) -> Tensor:
            embedded = embed(weights, support)
            return task_losses(self.attend(embedded.unflatten(1, (way, shot)), embedded), truth)

        images = self._images(episode)
        with descending():
            moments = running_moments(blocks, len(episode))
            support, query = (side_by_side(side, len(episode)) for side in images)
            tuned: Weights = weights
            for _ in range(self.fine_tune_steps):
                tuned = descend(loss, tuned, self.fine_tune_rate, first_order=True)
            return self.attend(embed(tuned, support).unflatten(1, (way, shot)), embed(tuned, query))


class FullContext(nn.Module):
    """Embeddings that depend on the whole support set (the paper's appendix). Shapes (E, L, Z, D) and (E, Q, D) are kept."""

    def __init__(self, features: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.around = nn.LSTM(features, features, batch_first=True, bidirectional=True)
        self.read = nn.LSTMCell(2 * features, features)

    def forward(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        sequence = support.flatten(1, 2)  # (E, L·Z, D)
        forth, back = self.around(sequence)[0].chunk(2, -1)
        context = full(sequence) + full(forth) + full(back)
        flat = query.flatten(0, 1)
        hidden, cell = torch.zeros_like(full(flat)), torch.zeros_like(full(flat))
        for _ in range(self.steps):
            attention = (hidden.view(query.shape) @ context.mT).softmax(-1)  # (E, Q, L·Z)
            found = (attention @ context).flatten(0, 1)
            hidden, cell = self.read(torch.cat((flat, found.to(flat.dtype)), -1), (hidden, cell))
            hidden = full(hidden) + full(flat)
        return context.view(support.shape), hidden.view(query.shape)
