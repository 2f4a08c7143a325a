"""MAML: learn initial weights from which a few gradient steps solve a new task."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack

from torch import Tensor, nn

from sosn.episode import Episode
from sosn.errors import UsageError
from sosn.method.adaptation import (
    Weights,
    answer_with,
    chain,
    classify_with,
    descend,
    descending,
    side_by_side,
    start,
    support_classes,
    task_losses,
)
from sosn.method.base import Shared
from sosn.method.encoded import SoftmaxMethod
from sosn.util.checks import above_zero, at_least, one_of


class MAML(SoftmaxMethod):
    """Finn, Abbeel & Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.

    Implemented: an encoder and a linear head, gradient descent on the support images of a task, then cross-entropy of the
    queries; gradients through these steps, or not (first_order). The head has one output per class, so an episode must have
    as many classes as the head has outputs, and their order matters. head="shared" starts every class from the same learnt
    row, for any number of classes in any order (Ye & Chao, "How to Train Your MAML to Excel in Few-Shot Classification",
    ICLR 2022). All tasks of a batch are adapted in parallel.

    Batch norm normalises support images by their moments, and queries by the moments of the support images under the same
    weights, in training and in evaluation (MetaBN in Bronskill et al., "TaskNorm", ICML 2020). So predictions do not depend
    on other queries, and running statistics are not used. statistics="batch" normalises queries by their moments, as the
    authors do. Not implemented: their strided encoder for Omniglot, regression, reinforcement learning.
    """

    name: ClassVar[str] = "maml"
    usual_encoder: ClassVar[Mapping[str, Any] | None] = {"name": "conv4_pooled"}
    capturable: ClassVar[bool] = True
    adapts = True

    def __init__(
        self,
        outputs: int = 5,
        head: Literal["learned", "shared"] = "learned",
        inner_steps: int = 5,
        test_steps: int = 10,
        inner_rate: float = 0.01,
        first_order: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        at_least(2, outputs=outputs)
        at_least(0, inner_steps=inner_steps, test_steps=test_steps)
        above_zero(inner_rate=inner_rate)
        one_of(("learned", "shared"), head=head)
        self.shared, self.outputs, self.first_order = head == "shared", outputs, first_order
        self.inner_steps, self.test_steps, self.rate = inner_steps, test_steps, inner_rate
        chain(self.encoder)  # fail before training
        self.head = nn.Linear(self.features, 1 if self.shared else outputs)

    @property
    def describes_images(self) -> bool:
        return False  # features depend on the task

    def _logits(self, episode: Episode, separately: bool) -> Tensor:
        if not self.shared and episode.way != self.outputs:
            raise UsageError(
                f"the episode has {episode.way} classes and MAML's head {self.outputs} outputs: train with "
                f"outputs={episode.way}, or with head=shared for any number"
            )
        blocks = chain(self.encoder)
        weights = start(blocks, "blocks.", len(episode)) | start(self.head, "head.", len(episode))
        if self.shared:
            rows = {name: weights[name] for name in ("head.weight", "head.bias")}  # a single row, the start of every class
            weights |= {name: row.expand(-1, episode.way, *row.shape[2:]) for name, row in rows.items()}
        truth = support_classes(episode, self.device)
        steps = self.inner_steps if self.training else self.test_steps
        images = self._images(episode)
        with descending():
            support, query = (side_by_side(side, len(episode)) for side in images)

            def loss(weights: Weights) -> Tensor:
                return task_losses(classify_with(weights, blocks, support), truth)

            fast: Weights = weights
            for _ in range(steps):
                fast = descend(loss, fast, self.rate, self.first_order)
            return answer_with(fast, blocks, support, query, separately)
