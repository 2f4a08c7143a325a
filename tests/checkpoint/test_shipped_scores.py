"""Every shipped model scores as it did when it was shipped."""

import pytest
import torch
from safetensors import safe_open

from tests.checkpoint.shipped_scores import FILE, MODELS, machine, measure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sosn.errors.SosnWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_scores_as_when_it_was_shipped(name: str, one_thread: None) -> None:
    """To the last bit on the kind of machine that the file was written on, to rounding on others."""
    found = measure(name, 20)
    with safe_open(FILE, "pt") as kept:
        same_machine = kept.metadata()["machine"] == machine()
        for what, ours in found.items():
            theirs = kept.get_tensor(f"{name}.{what}")[: len(ours)]
            assert ours.shape == theirs.shape
            if same_machine:
                assert torch.equal(ours, theirs), f"{what} differ by {(ours - theirs).abs().max():.3g}"
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
