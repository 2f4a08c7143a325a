"""SoSN written out plainly, one episode, query, class, shot and position at a time, straight from the paper's formulas.

Only the layers of the two networks come from torch.nn.functional. Everything is differentiable, so that gradients can be
compared too. Nothing here calls the mathematics of the package; of a model only the parameters are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAMBDA = 1e-6

SIGNED_NORMS = ("sigme", "asinhe", "maxexp_pm", "none")
NORMS = (*SIGNED_NORMS, "maxexp", "gamma")
RELATIONS = ("average", "ranked", "full", "or_like", "difference", "hadamard", "subtract")
ALLOWED = [(r, n) for r in RELATIONS for n in NORMS if n in SIGNED_NORMS or r not in ("difference", "subtract")]


@dataclass(frozen=True)
class Options:
    """What a model computes between its two networks."""

    relation: str = "average"
    power_norm: str = "sigme"
    eta: float | None = 100.0
    gamma: float = 0.5
    rho: float = 0.5
    softness: float | None = None
    shift: float = 0.0
    alpha: float = 1.0
    trace_normalise: bool = True


def autocorrelation(phi: Tensor, shift: float) -> Tensor:
    """(1/N) Σₙ (φₙ−βμ)(φₙ−βμ)ᵀ of one map (K, N), a position at a time."""
    vectors = columns(phi, shift)
    return sum((torch.outer(v, v) for v in vectors), torch.zeros(len(phi), len(phi), dtype=phi.dtype)) / len(vectors)


def columns(phi: Tensor, shift: float) -> list[Tensor]:
    """The vectors φₙ − βμ."""
    count = phi.shape[1]
    mu = sum((phi[:, n] for n in range(count)), torch.zeros(len(phi), dtype=phi.dtype)) / count
    return [phi[:, n] - shift * mu for n in range(count)]


def outer_sum(phi: Tensor, shift: float, sign: int) -> Tensor:
    """(1/N) Σₙ (Φ_in ± Φ_jn) of one map, a position at a time."""
    vectors = columns(phi, shift)
    total = torch.zeros(len(phi), len(phi), dtype=phi.dtype)
    for v in vectors:
        total = total + v[:, None] + sign * v[None, :]
    return total / len(vectors)


def trace(matrix: Tensor) -> Tensor:
    return torch.stack([matrix[k, k] for k in range(len(matrix))]).sum()


def power_norm(m: Tensor, options: Options, vectors: int) -> Tensor:
    """The formulas as printed: Remarks 2 and 3, Eq. 3, 4 and 15."""
    eta = float(vectors) if options.eta is None else options.eta
    match options.power_norm:
        case "sigme":
            return 2 / (1 + torch.exp(-eta * m)) - 1
        case "asinhe":
            return torch.log(options.gamma * m + torch.sqrt(1 + options.gamma**2 * m**2))
        case "maxexp":
            return 1 - positive_part(1 - m) ** eta
        case "gamma":
            return torch.where(m == 0, torch.zeros_like(m), torch.where(m == 0, torch.ones_like(m), m) ** options.gamma)
        case "maxexp_pm":
            up, down = maximum(m, options.softness), maximum(-m, options.softness)
            return positive_part(1 - (1 - options.rho) * down) ** eta - positive_part(1 - options.rho * up) ** eta
    return m


def positive_part(x: Tensor) -> Tensor:
    return (x + x.abs()) / 2


def maximum(x: Tensor, softness: float | None) -> Tensor:
    """max(0, x), hard or soft."""
    return positive_part(x) if softness is None else torch.log(1 + torch.exp(softness * x)) / softness


def descriptor(shots: Sequence[Tensor], query: Tensor, options: Options) -> Tensor:
    """ψ of one class, Z maps (K, N), and one query map: (channels, rows, rows), the class's matrices first."""
    vectors = query.shape[1]

    def scale(matrix: Tensor) -> Tensor:
        return trace(matrix) + LAMBDA if options.trace_normalise else torch.ones((), dtype=matrix.dtype)

    def norm(matrix: Tensor) -> Tensor:
        return power_norm(matrix, options, vectors)

    mean_map = sum(shots[1:], shots[0]) / len(shots)
    if options.relation == "full":
        stacked = torch.cat([torch.cat((phi, query), 0) for phi in shots], 1)  # [[Φ₁; Φ*], …, [Φ_Z; Φ*]]
        matrix = autocorrelation(stacked, options.shift) * stacked.shape[1] / vectors  # Eq. 8 divides by N, not by Z·N
        return norm(matrix / scale(matrix))[None]
    if options.relation in ("hadamard", "subtract"):
        left, right = autocorrelation(mean_map, options.shift), autocorrelation(query, options.shift)
        left, right = left / scale(left), right / scale(right)
        return norm(left * right if options.relation == "hadamard" else left - right)[None]
    channels = []
    for phi in (torch.cat(list(shots), 1) if options.relation == "ranked" else mean_map, query):
        matrix = autocorrelation(phi, options.shift)
        channels.append(norm(matrix / scale(matrix)))
        if options.relation in ("or_like", "difference"):
            other = outer_sum(phi, options.shift, 1 if options.relation == "or_like" else -1)
            channels.append(options.alpha * norm(other / scale(matrix)))
    return torch.stack(channels)


def permutation_matrix(order: Sequence[int]) -> Tensor:
    """Π with Π[order[j], j] = 1."""
    matrix = torch.zeros(len(order), len(order), dtype=torch.float64)
    for j, i in enumerate(order):
        matrix[i, j] = 1.0
    return matrix


def permuted(psi: Tensor, orders: Sequence[Sequence[int]]) -> list[Tensor]:
    """ΠₚᵀψΠₚ for each permutation, by matrix products."""
    return [torch.stack([p.T @ channel @ p for channel in psi]) for p in map(permutation_matrix, orders)]


def _conv_block(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, padding: int, running: bool) -> Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    x = F.conv2d(x, conv.weight, conv.bias, padding=padding)
    if running:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return F.batch_norm(x, None, None, norm.weight, norm.bias, training=True)


def _blocks(module: nn.Module) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    return list(zip(convs, norms, strict=True))


def encode(encoder: nn.Module, images: Tensor, running: bool, linear: bool = False) -> Tensor:
    """Images (B, C, H, W) → maps (B, K, N)."""
    x = images
    for index, (conv, norm) in enumerate(_blocks(encoder)):
        x = _conv_block(x, conv, norm, 0 if index < 2 else 1, running)
        x = x if linear and index == 3 else F.relu(x)
        x = F.max_pool2d(x, 2) if index < 2 else x
    return x.reshape(*x.shape[:2], -1)


def similarity(net: nn.Module, psi: Tensor, running: bool) -> Tensor:
    """Descriptors (B, channels, rows, rows) → logits (B,)."""
    x = psi
    for conv, norm in _blocks(net):
        x = F.max_pool2d(F.relu(_conv_block(x, conv, norm, 0, running)), 2)
    first, last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    hidden = F.relu(x.reshape(len(x), -1) @ first.weight.T + first.bias)
    return (hidden @ last.weight.T + last.bias)[:, 0]


def logits(
    encoder: nn.Module,
    nets: Sequence[nn.Module],
    support: Tensor,
    query: Tensor,
    options: Options,
    orders: Sequence[Sequence[int]],
    statistics: Literal["step", "running", "episode"],
    linear: bool = False,
) -> Tensor:
    """Similarity before the sigmoid, E×Q×L, of float images E×L×Z×C×H×W and E×Q×C×H×W of the model's own size.

    statistics: batch norm over all images and all pairs of the step; by running statistics, an image and a pair at a time;
    or over the support images, the query images and the pairs of each episode.
    """
    if statistics == "episode" and len(support) > 1:
        each = [(support[e : e + 1], query[e : e + 1]) for e in range(len(support))]
        return torch.cat([logits(encoder, nets, s, q, options, orders, statistics, linear) for s, q in each])
    episodes, way, shot = support.shape[:3]
    queries = query.shape[1]
    flat_support, flat_query = support.flatten(0, 2), query.flatten(0, 1)
    if statistics == "running":
        maps = torch.cat([encode(encoder, image[None], True, linear) for image in torch.cat((flat_support, flat_query))])
    elif statistics == "step":
        maps = encode(encoder, torch.cat((flat_support, flat_query)), False, linear)
    else:
        maps = torch.cat([encode(encoder, images, False, linear) for images in (flat_support, flat_query)])
    pairs = []  # each a list of P permuted descriptors
    for e in range(episodes):
        for q in range(queries):
            for c in range(way):
                shots = [maps[(e * way + c) * shot + z] for z in range(shot)]
                query_map = maps[episodes * way * shot + e * queries + q]
                pairs.append(permuted(descriptor(shots, query_map, options), orders))
    if len(nets) == 1:
        streams = [torch.stack([torch.cat(parts) for parts in pairs])]
    else:
        streams = [torch.stack([parts[p] for parts in pairs]) for p in range(len(orders))]
    total = torch.zeros(len(pairs), dtype=maps.dtype)
    for net, psi in zip(nets, streams, strict=True):
        batches = psi.split(1) if statistics == "running" else (psi,)
        total = total + torch.cat([similarity(net, batch, statistics == "running") for batch in batches])
    return (total / len(nets)).reshape(episodes, queries, way)


def mean_squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over episodes, queries and classes of (sigmoid similarity − δ(class = label))² (Eq. 7)."""
    errors = []
    for e, q, c in ((e, q, c) for e in range(logits.shape[0]) for q in range(logits.shape[1]) for c in range(logits.shape[2])):
        score = 1 / (1 + torch.exp(-logits[e, q, c]))
        errors.append((score - float(labels[e, q] == c)) ** 2)
    return torch.stack(errors).mean()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over episodes and queries of −log softmax(logits)[label]."""
    terms = []
    for e, q in ((e, q) for e in range(logits.shape[0]) for q in range(logits.shape[1])):
        row = logits[e, q]
        terms.append(torch.log(torch.exp(row).sum()) - row[int(labels[e, q])])
    return torch.stack(terms).mean()
