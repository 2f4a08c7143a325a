"""Scores of the shipped models on fixed episodes, kept so that no change of the code can move them unseen.

    python -m tests.checkpoint.shipped_scores

writes tests/checkpoint/shipped_scores.safetensors. Write it anew only when shipped weights are meant to change.
"""

import platform
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import sosn
from sosn.errors import SosnWarning
from sosn.method.base import in_order

FILE = Path(__file__).with_suffix(".safetensors")
MODELS = ("glyphs", "omniglot", "omniglot-5shot", "mini-imagenet", "mini-imagenet-5shot")
EPISODES, AT_ONCE, WAY, SHOT = 50, 10, 2, 1


def machine() -> str:
    """What the last bit of a score depends on besides the code."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"


def images(count: int, channels: int, size: int, draw: torch.Generator) -> Tensor:
    """uint8 pictures made of integers alone, the same on every machine: dark bars on white, or coloured blocks with noise."""
    if channels == 1:
        pictures = torch.full((count, 1, size, size), 255)
        for picture in pictures:
            for top, left, length in torch.randint(1, size // 2, (4, 3), generator=draw).tolist():
                picture[:, top : top + 2, left : left + length] = 0
                picture[:, left : left + length, 2 * top : 2 * top + 2] = 30
        return pictures.to(torch.uint8)
    coarse = torch.randint(0, 200, (count, channels, 7, 7), generator=draw)
    blocks = coarse.repeat_interleave(-(-size // 7), -1).repeat_interleave(-(-size // 7), -2)[..., :size, :size]
    return (blocks + torch.randint(0, 56, (count, channels, size, size), generator=draw)).to(torch.uint8)


def measure(name: str, episodes: int = EPISODES) -> dict[str, Tensor]:
    """What a shipped model says of the first episodes, before and after the sigmoid, and a classifier's probabilities."""
    model = sosn.load(name)
    channels, size = model.preprocessing.channels, model.preprocessing.source
    draw = torch.Generator().manual_seed(0)
    logits, scores = [], []
    with torch.inference_mode():
        for part in range(EPISODES // AT_ONCE):
            support = images(AT_ONCE * WAY * SHOT, channels, size, draw).unflatten(0, (AT_ONCE, WAY, SHOT))
            episode = sosn.Episode(support, images(AT_ONCE * WAY, channels, size, draw).unflatten(0, (AT_ONCE, WAY)))
            if part * AT_ONCE >= episodes:
                continue  # drawn all the same, for what is drawn after them
            logits.append(model.logits(episode))
            scores.append(
                in_order(model.score(logits[-1]), logits[-1]) if part else model(episode)
            )  # the same, in half the time
    classifier = sosn.FewShotClassifier(name, polarity="as_is").fit(
        list(images(6, channels, size, draw)), ["a", "a", "b", "c", "c", "c"]
    )
    chances = torch.from_numpy(classifier.predict_proba(list(images(4, channels, size, draw))))
    return {"logits": torch.cat(logits), "scores": torch.cat(scores), "probabilities": chances}


def main() -> None:
    warnings.simplefilter("ignore", SosnWarning)
    torch.set_num_threads(1)
    kept = {f"{name}.{what}": tensor.contiguous() for name in MODELS for what, tensor in measure(name).items()}
    save_file(kept, FILE, {"machine": machine()})


if __name__ == "__main__":
    main()
