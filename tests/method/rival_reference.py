"""The rivals written out plainly, one task, query, class, shot and entry at a time, straight from their papers' formulas.

Nothing here calls the mathematics of the package; of a model only the parameters are read. Everything is differentiable.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sosn.encoder import Conv4Pooled
from sosn.episode import Episode
from tests import reference

Task = Callable[[Any, Sequence[Sequence[Tensor]], Tensor], Tensor]  # model, shots by class (K, N), query (K, N) → (L,)


def encode(model: Any, images: Tensor, running: bool = False) -> Tensor:
    """Images (B, C, H, W) → maps (B, K, N), normalised by the batch or by running statistics."""
    if not isinstance(model.encoder, Conv4Pooled):
        return reference.encode(model.encoder, images, running)
    x = images
    for conv, norm in reference._blocks(model.encoder):
        x = F.max_pool2d(F.relu(reference._conv_block(x, conv, norm, 1, running)), 2)
    return x.reshape(*x.shape[:2], -1)


def logits(model: Any, episode: Episode, task: Task, running: bool = False) -> Tensor:
    """E×Q×L, all images of the step encoded as one batch, each query by itself after that."""
    episodes, way, shot = episode.support.shape[:3]
    maps = encode(model, torch.cat((episode.support.flatten(0, 2), episode.query.flatten(0, 1))), running)
    rows = []
    for e in range(episodes):
        shots = [[maps[(e * way + c) * shot + z] for z in range(shot)] for c in range(way)]
        for q in range(episode.queries):
            rows.append(task(model, shots, maps[episodes * way * shot + e * episode.queries + q]))
    return torch.stack(rows).reshape(episodes, episode.queries, way)


def agree(method: Any, episode: Episode, expected: Tensor, wanted: Tensor, loss: str) -> None:
    """Scores, loss and the gradient of every parameter are those of the expected logits."""
    torch.testing.assert_close(method(episode), method.score(expected), rtol=0, atol=1e-8)
    result = method.loss(episode, loss)
    torch.testing.assert_close(result, wanted, rtol=1e-8, atol=0)
    parameters = list(method.parameters())
    theirs = torch.autograd.grad(wanted, parameters)
    largest = max(gradient.abs().max().item() for gradient in theirs)
    assert largest > 1e-4  # the test is not empty
    for mine, gradient in zip(torch.autograd.grad(result, parameters), theirs, strict=True):
        torch.testing.assert_close(mine, gradient, rtol=1e-6, atol=1e-8 * largest)


def mean(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0]) / len(tensors)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return sum(((x - y) ** 2 for x, y in zip(a.flatten(), b.flatten(), strict=True)), torch.zeros((), dtype=a.dtype))


def prototypical(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    return torch.stack([-squared_distance(query, mean(images)) for images in shots])


def prototypical_cosine(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    return torch.stack([7.0 * cosine(query, mean(images)) for images in shots])


def matching(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    """log of the attention that each class gets, Σ over its shots of softmax over all shots."""
    attention = [[torch.exp(model.scale * cosine(query, image)) for image in images] for images in shots]
    total = sum((value for weights in attention for value in weights), torch.zeros((), dtype=query.dtype))
    return torch.stack([torch.log(sum(weights[1:], weights[0]) / total) for weights in attention])


def _gates(cell: nn.Module, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an LSTM."""
    part = {key: getattr(cell, f"{key}{suffix}") for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    i, f, g, o = (part["weight_ih"] @ x + part["bias_ih"] + part["weight_hh"] @ h + part["bias_hh"]).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def matching_full_context(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    around, read = model.context.around, model.context.read
    sequence = [image.flatten() for images in shots for image in images]
    f = query.flatten()
    nothing = torch.zeros_like(f)
    outputs = []
    for suffix, order in (("_l0", range(len(sequence))), ("_l0_reverse", range(len(sequence) - 1, -1, -1))):
        h, c, states = nothing, nothing, {}
        for n in order:
            h, c = _gates(around, suffix, sequence[n], h, c)
            states[n] = h
        outputs.append(states)
    g = [sequence[n] + outputs[0][n] + outputs[1][n] for n in range(len(sequence))]
    h, c = nothing, nothing
    for _ in range(model.context.steps):
        weights = torch.stack([torch.exp((h * one).sum()) for one in g])
        r = sum((w / weights.sum() * one for w, one in zip(weights, g, strict=True)), nothing)
        h, c = _gates(read, "", torch.cat((f, r)), h, c)
        h = h + f
    shot = len(shots[0])
    return matching(model, [g[n * shot : (n + 1) * shot] for n in range(len(shots))], h)


def siamese(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    layer, out = model.embed[0], model.weigh

    def embed(image: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-(layer.weight @ image.flatten() + layer.bias)))

    return torch.stack(
        [
            mean([(out.weight[0] * (embed(query) - embed(image)).abs()).sum() + out.bias[0] for image in images])
            for images in shots
        ]
    )


def deep_bdc(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    scale = torch.exp(model.log_scale)

    def describe(image: Tensor) -> Tensor:
        channels = len(image)
        roots = torch.stack(
            [
                torch.stack([torch.sqrt(scale * ((image[k] - image[m]) ** 2).sum() + 1e-5) for m in range(channels)])
                for k in range(channels)
            ]
        )
        centring = torch.eye(channels, dtype=image.dtype) - 1 / channels
        centred = centring @ roots @ centring
        return torch.cat([centred[k, k:] for k in range(channels)])

    described = describe(query)
    classes = [mean([describe(image) for image in images]) for images in shots]
    if len(shots[0]) == 1:
        return torch.stack([(described * one).sum() for one in classes])
    return torch.stack([-((described - one) ** 2).sum() for one in classes])


def covamnet(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    scores = []
    centred = query - query.mean(1, keepdim=True)
    for images in shots:
        matrix = torch.cov(torch.cat(list(images), 1))
        terms = [model.positions.weight[0, n] * (centred[:, n] @ matrix @ centred[:, n]) for n in range(query.shape[1])]
        scores.append(sum(terms[1:], terms[0]))
    return torch.stack(scores)


def second_order(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    def describe(image: Tensor) -> Tensor:
        matrix = reference.autocorrelation(image, 0.0)
        return 2 / (1 + torch.exp(-100.0 * matrix / (reference.trace(matrix) + 1e-6))) - 1

    return torch.stack([-((describe(query) - describe(mean(images))) ** 2).sum() for images in shots])


def mean_features(model: Any, shots: Sequence[Sequence[Tensor]], query: Tensor) -> Tensor:
    return torch.stack([cosine(query.mean(1), mean(images).mean(1)) for images in shots])


def relation_net(model: Any, episode: Episode, running: bool = False) -> Tensor:
    """Whole batch at once, as batch norm of the relation module sees all pairs of a step."""
    episodes, way, shot = episode.support.shape[:3]
    maps = encode(model, torch.cat((episode.support.flatten(0, 2), episode.query.flatten(0, 1))), running)
    side = math.isqrt(maps.shape[2])
    pairs = []
    for e in range(episodes):
        for q in range(episode.queries):
            for c in range(way):
                images = [maps[(e * way + c) * shot + z] for z in range(shot)]
                query = maps[episodes * way * shot + e * episode.queries + q]
                pairs.append(torch.cat((sum(images[1:], images[0]), query)).reshape(-1, side, side))
    x = torch.stack(pairs)
    for conv, norm in reference._blocks(model.relation):
        x = F.max_pool2d(F.relu(reference._conv_block(x, conv, norm, 0 if side == 19 else 1, running)), 2)
    first, last = [layer for layer in model.relation.modules() if isinstance(layer, nn.Linear)]
    x = F.relu(x.reshape(len(x), -1) @ first.weight.T + first.bias)
    return (x @ last.weight.T + last.bias).reshape(episodes, episode.queries, way)
