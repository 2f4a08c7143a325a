"""Imported models: the 2018 release of Relation Net, and frozen encoders."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sosn
from sosn.checkpoint.importing import import_relation_net
from sosn.checkpoint.registry import load_with_recipe
from sosn.checkpoint.storage import read_about, write_model
from sosn.episode import Episode
from sosn.errors import CheckpointError, UsageError
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Sequential):
    """Convolution, batch norm, ReLU and maybe pooling, in the release's order."""

    def __init__(self, inputs: int, padding: int, pool: bool) -> None:
        layers: list[nn.Module] = [nn.Conv2d(inputs, 64, 3, padding=padding), nn.BatchNorm2d(64, momentum=1.0), nn.ReLU()]
        super().__init__(*layers, *([nn.MaxPool2d(2)] if pool else []))


class Encoder(nn.Module):
    """The release's feature encoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = Block(channels, 0, True), Block(64, 0, True)
        self.layer3, self.layer4 = Block(64, 1, False), Block(64, 1, False)

    def forward(self, images: Tensor) -> Any:
        return self.layer4(self.layer3(self.layer2(self.layer1(images))))


class Relation(nn.Module):
    """The release's relation network: padded for characters, not for photos."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        padding, inputs = (0, 576) if channels == 3 else (1, 64)
        self.layer1, self.layer2 = Block(128, padding, True), Block(64, padding, True)
        self.fc1, self.fc2 = nn.Linear(inputs, 8), nn.Linear(8, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        return torch.sigmoid(self.fc2(F.relu(self.fc1(self.layer2(self.layer1(pairs)).flatten(1)))))


def release(folder: Path, channels: int, old: bool = True) -> tuple[Encoder, Relation]:
    """Two networks as the release builds them, with running statistics, saved as it saves them."""
    torch.manual_seed(1)
    networks = Encoder(channels), Relation(channels)
    for network, name in zip(networks, ("encoder", "relation"), strict=True):
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None
                assert layer.running_var is not None
                layer.running_mean.uniform_(-0.5, 0.5)
                layer.running_var.uniform_(0.5, 2.0)
                layer.weight.data.uniform_(0.5, 1.5)
                layer.bias.data.uniform_(-0.5, 0.5)
            if isinstance(layer, nn.Linear):
                layer.weight.data.normal_(0, 0.3)
        state = network.state_dict()
        if old:  # PyTorch of early 2018 counted no batches and wrote no zip
            state = {key: value for key, value in state.items() if "num_batches" not in key}
        torch.save(state, folder / f"{name}.pkl", _use_new_zipfile_serialization=not old)
        network.eval()
    return networks


def scores(networks: tuple[Encoder, Relation], episode: Episode) -> Tensor:
    """The release's way through an episode: shots summed, class before query, a query after the other."""
    encoder, relation = networks
    mean, std = 0.92206, 0.08426
    answers = []
    for e in range(len(episode)):
        maps = torch.stack([encoder((images.float() - mean) / std).sum(0) for images in episode.support[e]])
        queries = encoder((episode.query[e].float() - mean) / std)
        for query in queries:
            pairs = torch.stack([torch.cat((own, query)) for own in maps])
            answers.append(relation(pairs).flatten())
    return torch.stack(answers).view(len(episode), episode.queries, episode.way)


@pytest.mark.parametrize("old", [True, False], ids=["2018", "today"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 84)])
def test_an_imported_relation_net_scores_as_the_release_does(
    cli: Cli, tmp_path: Path, channels: int, size: int, old: bool
) -> None:
    networks = release(tmp_path, channels, old)
    code, out, err = cli("import", "relation-net", "encoder.pkl", "relation.pkl", "--out", "imported", "--json")
    assert code == 0, err
    assert json.loads(out)["method"] == "relation_net"
    model = sosn.load(tmp_path / "imported")
    assert (model.preprocessing.channels, model.preprocessing.size) == (channels, size)
    generator = torch.Generator().manual_seed(0)
    shape = (channels, size, size)
    episode = Episode(torch.rand(2, 3, 2, *shape, generator=generator), torch.rand(2, 2, *shape, generator=generator))
    with torch.no_grad():
        expected = scores(networks, episode)
        torch.testing.assert_close(model(episode), expected, rtol=0, atol=2e-5)
    assert expected.std() > 1e-3
    assert model.trained
    assert model.predict(episode).equal(expected.argmax(-1))


def test_an_imported_model_is_evaluated_on_any_data_and_never_overwritten(cli: Cli, tmp_path: Path) -> None:
    release(tmp_path, 1)
    assert cli("import", "relation-net", "encoder.pkl", "relation.pkl", "--out", "imported")[0] == 0
    words = "data=glyphs data.alphabets=10 data.characters=6 data.drawings=8 query=2 episodes=3 statistics=batch device=cpu"
    code, out, err = cli("eval", "imported", *words.split(), "--json")
    assert code == 0, err
    assert json.loads(out)["way"] == 5
    code, _, err = cli("import", "relation-net", "encoder.pkl", "relation.pkl", "--out", "imported")
    assert code == 2
    assert "'imported' already holds a model" in err


def changed(folder: Path, name: str, **changes: Tensor | None) -> None:
    """Save one of the files anew with tensors replaced or left out."""
    state = torch.load(folder / f"{name}.pkl", weights_only=True)
    for key, value in changes.items():
        state.pop(key.replace("__", "."))
        if value is not None:
            state[key.replace("__", ".")] = value
    torch.save(state, folder / f"{name}.pkl")


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("encoder", {"layer3__0__weight": None}, "is not a feature encoder of the release: it lacks 'layer3.0.weight'"),
        ("relation", {"fc2__bias": None}, "is not a relation network of the release: it lacks 'fc2.bias'"),
        ("relation", {"fc1__weight": torch.zeros(8, 100)}, "has 100 inputs to fc1; with 64 filters the release has 64"),
        ("relation", {"fc1__weight": torch.zeros(9, 64)}, r"fc1.weight of shape \(9, 64\); Relation Net needs \(8, 64\)"),
        ("encoder", {"layer1__0__weight": torch.zeros(64, 2, 3, 3)}, "takes images with 2 channels; the release has 1 or 3"),
        ("encoder", {"layer2__0__weight": torch.zeros(64, 64, 5, 5)}, "layer2.0.weight of shape"),
    ],
)
def test_files_of_another_shape_are_refused_naming_the_difference(
    tmp_path: Path, name: str, changes: dict[str, Tensor | None], sentence: str
) -> None:
    release(tmp_path, 1)
    changed(tmp_path, name, **changes)
    with pytest.raises(CheckpointError, match=sentence):
        import_relation_net(tmp_path / "encoder.pkl", tmp_path / "relation.pkl")


def test_swapped_and_missing_files_are_reported(tmp_path: Path) -> None:
    release(tmp_path, 1)
    with pytest.raises(UsageError, match="swapped: give the feature encoder first"):
        import_relation_net(tmp_path / "relation.pkl", tmp_path / "encoder.pkl")
    with pytest.raises(UsageError, match="there is no file"):
        import_relation_net(tmp_path / "nothing.pkl", tmp_path / "relation.pkl")


class Harm:
    """A pickle that would make a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_ever_run(tmp_path: Path) -> None:
    release(tmp_path, 1)
    torch.save({"layer1.0.weight": Harm(tmp_path / "harm")}, tmp_path / "encoder.pkl")
    for content in (None, pickle.dumps(Harm(tmp_path / "harm"), protocol=2), b"", b"no pickle at all"):
        if content is not None:
            (tmp_path / "encoder.pkl").write_bytes(content)
        with pytest.raises(CheckpointError, match="is not a PyTorch state dict, or reading it would run code"):
            import_relation_net(tmp_path / "encoder.pkl", tmp_path / "relation.pkl")
    assert not (tmp_path / "harm").exists()
    torch.save([torch.zeros(2)], tmp_path / "encoder.pkl")
    with pytest.raises(CheckpointError, match="contains something other than tensors by name"):
        import_relation_net(tmp_path / "encoder.pkl", tmp_path / "relation.pkl")


@pytest.mark.slow
def test_the_encoder_of_a_model_is_frozen_under_a_nearest_prototype(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("import", "frozen", "glyphs", "--out", "frozen", "metric=cosine", "eta=20")
    assert code == 0, err
    model = sosn.load(tmp_path / "frozen")
    assert (model.name, model.config["metric"], model.config["eta"]) == ("nearest_prototype", "cosine", 20.0)
    recipe = load_with_recipe(str(tmp_path / "frozen"))[1]
    assert (recipe.model.method, recipe.model.options["eta"]) == ("nearest_prototype", 20.0)
    words = "data.seed=5 data.alphabets=10 data.characters=6 data.drawings=8 query=2 episodes=20 device=cpu --json".split()
    code, out, err = cli("compare", "frozen", "glyphs", *words)
    assert code == 0, err
    assert json.loads(out)["rows"][0]["accuracy"] > 0.7
    for words, sentence in (
        (["metric=near"], "metric is 'near'"),
        (["steps=3"], "has no key 'steps'"),
        (["metric"], "'metric' is not key=value"),
        (["--metric=cosine"], "write settings without dashes"),
    ):
        code, _, err = cli("import", "frozen", "glyphs", "--out", "other", *words)
        assert code == 2
        assert sentence in err


def test_a_frozen_encoder_keeps_the_training_classes_of_its_weights(cli: Cli, tmp_path: Path) -> None:
    seen = [{"name": "omniglot", "options": {}, "classes": ["images_evaluation/Atlantean/character01"]}]
    method, recipe = load_with_recipe("glyphs")
    write_model(tmp_path / "started", method, recipe.to_table(), seen)
    code, _, err = cli("import", "frozen", "started", "--out", "frozen")
    assert code == 0, err
    assert read_about(tmp_path / "frozen" / "model.safetensors")["seen"] == seen


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    release(tmp_path, 1)
    method, recipe = import_relation_net(tmp_path / "encoder.pkl", tmp_path / "relation.pkl")
    with pytest.raises(sosn.SosnError, match="cannot create the folder"):
        write_model(tmp_path / "encoder.pkl" / "inside", method, recipe.to_table())


@pytest.mark.parametrize(("channels", "data"), [(1, "omniglot"), (3, "mini-imagenet")])
def test_published_weights_come_with_the_recipe_they_were_trained_by(tmp_path: Path, channels: int, data: str) -> None:
    release(tmp_path, channels)
    _, recipe = import_relation_net(tmp_path / "encoder.pkl", tmp_path / "relation.pkl")
    assert (recipe.data.name, recipe.model.method, recipe.training.clip) == (data, "relation_net", 0.5)
