"""SoSN(⊗)+SigmE, the paper's main model, in 100 lines of plain PyTorch: learns to recognise classes it never saw.

H. Zhang and P. Koniusz, "Power Normalizing Second-order Similarity Network for Few-shot Learning", WACV 2019. Equation
numbers are the paper's. Shapes: L classes (way), Z support images each (shot), Q queries in all, K features, N positions.

    python examples/sosn_in_100_lines.py       # a few minutes on two CPU cores; downloads nothing
"""

import torch
from torch import Tensor, nn

import sosn

WAY, SHOT, QUERY = 5, 1, 2  # of a training episode: classes, support images of each, query images of each
STEPS, LEARNING_RATE = 300, 0.001
ETA, LAMBDA = 100.0, 1e-6  # η′ and λ of Eq. 4


def block(inputs: int, padding: int = 0, pool: bool = True) -> nn.Sequential:
    """3×3 convolution with 64 filters, batch norm, ReLU and, if asked for, 2×2 max-pooling (Fig. 2)."""
    convolution = nn.Conv2d(inputs, 64, 3, padding=padding)
    return nn.Sequential(convolution, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2) if pool else nn.Identity())


def second_order(maps: Tensor) -> Tensor:
    """Feature maps Φ (B, K, N) → matrices (B, K, K) that say which features occur together."""
    m = maps @ maps.mT / maps.shape[-1]  # autocorrelation M = ΦΦᵀ/N, Eq. 2
    trace = m.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    return 2 / (1 + torch.exp(-ETA * m / (trace + LAMBDA))) - 1  # power normalisation: SigmE of M/(Tr M + λ), Eq. 4


def stack_pairs(support: Tensor, query: Tensor) -> Tensor:
    """Every class matrix stacked on every query matrix: (L, K, K) and (Q, K, K) → descriptors ψ (Q, L, 2, K, K)."""
    shape = (len(query), len(support), *query.shape[1:])
    return torch.stack((support.expand(shape), query.unsqueeze(1).expand(shape)), 2)


class SoSN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # The encoder f: images (1, 28, 28) → 13² → 5² → 5² → feature maps (64, 5, 5), so K = 64 and N = 25.
        self.encoder = nn.Sequential(block(1), block(64), block(64, padding=1, pool=False), block(64, padding=1, pool=False))
        # The similarity net s: descriptors (2, 64, 64) → 31² → 14² → 6² → (64, 2, 2) = 256 → 8 → 1.
        blocks = (block(2), block(64), block(64), block(64))
        self.similarity = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, support: Tensor, query: Tensor) -> Tensor:
        """Support images (L, Z, 1, 28, 28) and query images (Q, 1, 28, 28) → similarities (Q, L), Eq. 5, 6."""
        way, shot = support.shape[:2]
        maps = self.encoder(torch.cat((support.flatten(0, 1), query))).flatten(2)  # Φ = f(X): (L·Z + Q, K, N)
        support_maps = maps[: way * shot].unflatten(0, (way, shot)).mean(1)  # Φ̄, the average over shots: (L, K, N)
        psi = stack_pairs(second_order(support_maps), second_order(maps[way * shot :]))  # ⊗, Eq. 10
        return torch.sigmoid(self.similarity(psi.flatten(0, 1))).view(len(query), way)  # between 0 and 1


def objective(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error to 1 for the class of the query and 0 for the others (Eq. 7, as a mean)."""
    return nn.functional.mse_loss(scores, nn.functional.one_hot(labels, scores.shape[1]).to(scores.dtype))


def draw_episode(images: Tensor, way: int, shot: int, query: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of (classes, drawings, 1, 28, 28): support (L, Z, …), queries (Q, …), and labels (Q,), their class in 0…L−1."""
    classes = torch.randperm(len(images))[:way]
    drawn = torch.stack([images[one, torch.randperm(images.shape[1])[: shot + query]] for one in classes])
    return drawn[:, :shot], drawn[:, shot:].flatten(0, 1), torch.arange(way).repeat_interleave(query)


def train(model: SoSN, images: Tensor, steps: int) -> list[float]:
    """Adam, one episode a step. Returns the loss of each step."""
    optimiser, losses = torch.optim.Adam(model.train().parameters(), LEARNING_RATE), list[float]()
    for step in range(steps):
        support, query, labels = draw_episode(images, WAY, SHOT, QUERY)
        loss = objective(model(support, query), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}: loss {sum(losses[-50:]) / 50:.3f}", flush=True)
    return losses


@torch.no_grad()
def evaluate(model: SoSN, images: Tensor, episodes: int) -> tuple[float, float]:
    """Mean accuracy and its 95% interval; batch norm uses the statistics of training, so no query helps another."""
    model.eval()
    drawn = (draw_episode(images, WAY, SHOT, query=3) for _ in range(episodes))
    right = torch.stack([(model(support, query).argmax(1) == labels).double().mean() for support, query, labels in drawn])
    return right.mean().item(), 1.96 * right.std().item() / episodes**0.5


if __name__ == "__main__":
    torch.manual_seed(0)
    banks = [sosn.open_bank("glyphs", split) for split in ("train", "test")]  # no class is in both
    seen, unseen = (bank.images.unflatten(0, (len(bank.names), -1)) / 255 for bank in banks)  # (classes, 20, 1, 28, 28)
    model = SoSN().to(memory_format=torch.channels_last)  # the same, faster on a CPU
    train(model, seen, STEPS)
    accuracy, interval = evaluate(model, unseen, episodes=100)
    print(f"{WAY}-way {SHOT}-shot accuracy on classes never seen: {100 * accuracy:.1f} ± {100 * interval:.1f}%")
