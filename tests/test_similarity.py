"""The similarity network and its streams."""

import pytest
import torch
from torch import Tensor, nn

from sosn.errors import UsageError
from sosn.similarity import SimilarityNet, SimilarityStreams
from tests import reference

pytestmark = pytest.mark.usefixtures("one_thread")


def descriptors(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_published_net_has_114_577_parameters() -> None:
    assert count(SimilarityNet(channels=2, rows=64)) == 114_577


@pytest.mark.parametrize(("rows", "side"), [(46, 1), (64, 2), (128, 6)])
def test_the_first_linear_layer_fits_the_rows_of_the_matrices(rows: int, side: int) -> None:
    net = SimilarityNet(channels=1, rows=rows)
    linear = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(64 * side * side, 8), (8, 1)]
    assert net(torch.rand(2, 1, rows, rows)).shape == (2,)


def test_matrices_too_small_for_four_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match="46 rows or more, not 45"):
        SimilarityNet(channels=2, rows=45)


def test_sides_halve_as_published() -> None:
    sides = []
    net = SimilarityNet(channels=2)
    for layer in net.modules():
        if isinstance(layer, nn.MaxPool2d):
            layer.register_forward_hook(lambda _module, _inputs, output: sides.append(output.shape[-1]))
    net(torch.rand(2, 2, 64, 64))
    assert sides == [31, 14, 6, 2]


@pytest.mark.parametrize("running", [False, True], ids=["batch statistics", "running statistics"])
def test_the_net_follows_its_layers(running: bool) -> None:
    net = SimilarityNet(channels=2, rows=48).double()
    psi = descriptors(5, 2, 48, 48)
    net(psi)  # so that running statistics are not those of a new net
    net.train(not running)
    torch.testing.assert_close(net(psi), reference.similarity(net, psi, running), rtol=1e-9, atol=1e-11)


def test_the_output_is_a_logit_of_either_sign() -> None:
    net = SimilarityNet(channels=2, rows=48).double()
    last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
    before = net(descriptors(3, 2, 48, 48))
    with torch.no_grad():
        last.bias.sub_(50)
    torch.testing.assert_close(net(descriptors(3, 2, 48, 48)), before - 50)


def test_one_stream_sees_the_channels_of_all_permutations() -> None:
    streams = SimilarityStreams(permutations=3, streams=1, channels=2, rows=48).double()
    assert len(streams.nets) == 1
    psi = descriptors(4, 3, 2, 48, 48)
    stacked = torch.stack([torch.cat([pair[0], pair[1], pair[2]]) for pair in psi])
    assert stacked.shape == (4, 6, 48, 48)
    torch.testing.assert_close(streams(psi), reference.similarity(streams.nets[0], stacked, False), rtol=1e-9, atol=1e-11)


def test_a_stream_for_each_permutation_averages_logits() -> None:
    streams = SimilarityStreams(permutations=3, streams=3, channels=2, rows=48).double()
    assert [count(net) for net in streams.nets] == [count(SimilarityNet(2, 48))] * 3
    psi = descriptors(4, 3, 2, 48, 48)
    each = [reference.similarity(net, psi[:, p], False) for p, net in enumerate(streams.nets)]
    torch.testing.assert_close(streams(psi), (each[0] + each[1] + each[2]) / 3, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(each[0], each[1])


@pytest.mark.parametrize(("permutations", "streams"), [(3, 2), (1, 2), (3, 0)])
def test_other_numbers_of_streams_are_refused(permutations: int, streams: int) -> None:
    with pytest.raises(
        UsageError, match=f"streams is {streams}; with {permutations} permutations it must be 1 or {permutations}"
    ):
        SimilarityStreams(permutations, streams, channels=2, rows=48)
