"""The engine beside the layers one by one: gradients tensor by tensor, answers query by query."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from sosn.bench.contenders import Shape
from sosn.evaluation.protocol import Evaluation
from sosn.kernel import Engine, engine
from sosn.method import SoSN

Gradients = Mapping[str, Tensor]
ZERO = 1e-6  # a bias before batch norm has no gradient but for rounding: less than this of that of its weight
WORSE, FLOOR, MOST, ALONG = 1.6, 0.02, 0.8, 0.2  # what astray allows


def gradients(
    shape: Shape, episodes: int, device: torch.device, name: Engine, dtype: torch.dtype = torch.float32, half: bool = False
) -> dict[str, Tensor]:
    """Gradients of a fresh model by name, in double precision; half: computed under autocast to bf16."""
    torch.manual_seed(0)
    model, episode = shape.model(device).to(dtype).train(), shape.episode(episodes, device)
    with engine(name), torch.autocast(device.type, torch.bfloat16, enabled=half):
        loss = model.loss(episode)
    loss.backward()
    found: dict[str, Tensor] = {}
    for weight, parameter in model.named_parameters():
        assert parameter.grad is not None, weight
        found[weight] = parameter.grad.double()
    return found


def astray(ours: Gradients, coarse: Gradients, exact: Gradients) -> dict[str, tuple[float, float, float, float]]:
    """Tensors whose gradient is farther from the exact one than rounding explains: than coarse, the plain layers' own.

    In bf16 the plain layers are 0.2% off in the last layer and 30 to 55% in the first ones, where pooling takes another of
    nearly equal values, so one bound cannot do for all tensors. The engine may be WORSE times as far off as they are (on a CPU
    and in Triton's interpreter it was 1.4 times at most), but never by MOST of the gradient's size, and longer or shorter in
    the gradient's own direction by no more than ALONG (0.1 was seen) beyond theirs. A gradient of 0 is measured by that of
    the weight beside it. Given for each: how far off are ours and theirs, and how far in that direction.
    """
    found = {}
    for name, true in exact.items():
        weight = exact[f"{name.removesuffix('bias')}weight"] if name.endswith("bias") else true
        size = true.norm() if true.norm() > ZERO * weight.norm() else weight.norm()
        errors = [(gradient[name] - true) / size for gradient in (ours, coarse)]
        far, usual = (error.norm().item() for error in errors)
        along, usually = ((error * true).sum().abs().div(size).item() for error in errors)
        if not (far <= min(FLOOR + WORSE * usual, MOST) and along <= ALONG + usually):  # so written, NaN is astray
            found[name] = (far, usual, along, usually)
    return found


def scores(evaluate: Callable[[], Evaluation]) -> Tensor:
    """What SoSN says of each query and class in an evaluation, before it is squashed: episodes × queries × classes."""
    said: list[Tensor] = []
    compare = SoSN.compare

    def watched(method: SoSN, support: Tensor, query: Tensor) -> Tensor:
        said.append(compare(method, support, query))
        return said[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SoSN, "compare", watched)
        result = evaluate()
    found = torch.cat(said).cpu()
    assert rights(found).mean(1).tolist() == pytest.approx(result.per_episode)  # they are what was judged
    return found


def rights(found: Tensor) -> Tensor:
    """1 where the answer is right, 0 elsewhere; queries come class by class."""
    way = found.shape[-1]
    return (found.argmax(-1) == torch.arange(way).repeat_interleave(found.shape[1] // way)).double()


def agreement(ours: Tensor, theirs: Tensor) -> float:
    """Share of queries with the same answer by two ways that have scores of their own."""
    assert not torch.equal(ours, theirs), "the same way twice"
    return (ours.argmax(-1) == theirs.argmax(-1)).double().mean().item()
