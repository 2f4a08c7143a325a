"""Keys of earlier versions mean what they meant, in recipes, on the command line and in saved models."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from sosn.checkpoint.storage import load_method, save_method, save_tensors
from sosn.errors import CheckpointError, UsageError
from sosn.method import METHODS, NearestPrototype, SoSN
from sosn.recipe import Recipe, load_recipe, override
from sosn.recipe.old_keys import REMOVED, sort_model
from sosn.recipe.recipe import from_table
from tests.method.test_rivals import episode

pytestmark = pytest.mark.usefixtures("one_thread")


def read(text: str) -> Recipe:
    return from_table(tomllib.loads(text), "the recipe")


PAIRS = [  # an old [model], and the same today
    ("conv4_pools = 3", "[encoder]\npools = 3"),
    ("conv4_blocks = 6\nencoder_width = 32", "[encoder]\nblocks = 6\nwidth = 32"),
    ("features = 'linear'", "[encoder]\nfeatures = 'linear'"),
    ("encoder = 'conv4'\nresnet12_pools = 3\nresnet12_drop = 0.0", "[encoder]\nname = 'conv4'"),  # off, so of no account
    (
        "encoder = 'resnet12'\nresnet12_width = 8\nresnet12_pools = 2\nresnet12_drop = 0.1\nconv4_pools = 2",
        "[encoder]\nname = 'resnet12'\nfirst_width = 8\npools = 2\ndrop = 0.1",
    ),
    ("polarity = 'inverted'\nmean_image = true", "[preprocessing]\npolarity = 'inverted'\nmean_image = true"),
    (
        "mean = [0.5]\nstd = [0.25]\nchannels = 1\ninput_size = 56\ndetail = 28",
        "[preprocessing]\nmean = [0.5]\nstd = [0.25]\nchannels = 1\ninput_size = 56\ndetail = 28",
    ),
    ("mirror = true\nscales = 2\nturns = 1", "[test_time]\nmirror = true\nscales = 2\nturns = 1"),
    ("coordinates = 0\ncoordinate_weight = 1.0\nauxiliary = 0.0\nclasses = 9", ""),
]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_an_old_model_table_is_today_s_sections(old: str, new: str) -> None:
    assert read(f"[model]\nmethod = 'sosn'\neta = 20.0\n{old}") == read(f"[model]\nmethod = 'sosn'\neta = 20.0\n{new}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "method = 'baseline'\nfeatures = 'mean'\nencoder = 'conv4'",
            "method = 'baseline'\nfeatures = 'mean'\n[encoder]\nname = 'conv4'",
        ),
        ("method = 'meta_lstm'\nencoder_width = 16", "method = 'meta_lstm'\n[encoder]\nwidth = 16"),
        ("method = 'pixels'\npolarity = 'as_is'", "method = 'pixels'\n[preprocessing]\npolarity = 'as_is'"),
        ("method = 'prototypical'\nresnet12_width = 64", "method = 'prototypical'"),
    ],
)
def test_so_is_that_of_another_method(old: str, new: str) -> None:
    assert read(f"[model]\n{old}") == read(f"[model]\n{new}")


def test_new_sections_take_precedence_over_old_keys() -> None:
    assert read("[model]\nconv4_pools = 3\n[encoder]\npools = 4").encoder.options["pools"] == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("encoder=resnet12", "encoder.name=resnet12"),
        ("encoder_width=32", "encoder.width=32"),
        ("conv4_pools=3", "encoder.pools=3"),
        ("conv4_blocks=5", "encoder.blocks=5"),
        ("features=linear", "encoder.features=linear"),
        ("encoder=resnet12 resnet12_width=8 resnet12_drop=0.1", "encoder.name=resnet12 encoder.first_width=8 encoder.drop=0.1"),
        ("resnet12_pools=4 model.encoder=resnet12", "encoder.name=resnet12 encoder.pools=4"),
        ("polarity=inverted", "preprocessing.polarity=inverted"),
        ("model.mean_image=true", "preprocessing.mean_image=true"),
        ("model.channels=3", "preprocessing.channels=3"),
        ("mirror=true model.scales=2", "test_time.mirror=true test_time.scales=2"),
        ("model.conv4_pools=3", "encoder.pools=3"),
        ("data=omniglot", "data.name=omniglot"),
        ("resnet12_pools=3", "steps=1000"),  # of another encoder, and off: the default recipe
    ],
)
def test_words_of_the_command_line_go_where_their_keys_went(old: str, new: str) -> None:
    assert override(Recipe(), old.split()) == override(Recipe(), new.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[model]\nencoder = 'resnet12'\nconv4_pools = 3",
            "conv4_pools is 3 and the encoder is resnet12",
        ),
        ("[model]\nresnet12_drop = 0.1", "resnet12_drop is 0.1 and the encoder is conv4: this option needs encoder resnet12"),
        ("[model]\nconv4_pool = 3", r"\[model\] has no key 'conv4_pool'"),
    ],
)
def test_old_options_of_another_encoder_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text)


def test_they_are_refused_on_the_command_line_too_wherever_the_encoder_s_word_stands() -> None:
    for words in (["encoder=resnet12", "conv4_pools=3"], ["conv4_pools=3", "encoder=resnet12"]):
        with pytest.raises(UsageError, match="conv4_pools is 3 and the encoder is resnet12"):
            override(Recipe(), words)


ON: dict[str, Any] = {
    "reflections": True, "coordinates": 2, "coordinate_weight": 2.0, "auxiliary": 0.5, "related": 0.3, "erase": 0.5,
}  # fmt: skip
OPTIONS = [(section, key, off) for section, keys in REMOVED.items() for key, off in keys.items()]


@pytest.mark.parametrize(("section", "key", "off"), OPTIONS)
def test_an_option_that_is_gone_is_dropped_where_it_was_off_and_refused_where_it_was_on(
    section: str, key: str, off: Any
) -> None:
    table = Recipe().to_table()
    assert key not in table[section]
    assert from_table(table | {section: table[section] | {key: off}}, "an old recipe") == Recipe()
    with pytest.raises(UsageError, match=rf"{section}\.{key} is {ON[key]}; this version of sosn no longer has {key}"):
        from_table(table | {section: table[section] | {key: ON[key]}}, "an old recipe")


def test_a_whole_recipe_of_the_last_version_is_the_one_of_today() -> None:
    """[model] of mini-imagenet-best-5w1s as ledgers and run folders have it, every default written out."""
    old: dict[str, Any] = {
        "method": "sosn", "relation": "ranked", "power_norm": "sigme", "eta": 100.0, "gamma": None, "rho": 0.5,
        "softness": None, "shift": 1.0, "alpha": 1.0, "trace_normalise": True, "permutations": 1, "streams": 1,
        "permutation_seed": 0, "encoder": "conv4", "encoder_width": 64, "features": "relu", "conv4_pools": 3,
        "conv4_blocks": 4, "resnet12_width": 64, "resnet12_pools": 3, "resnet12_drop": 0.0, "polarity": "as_is",
        "mean_image": False, "coordinates": 0, "coordinate_weight": 1.0, "mirror": True, "scales": 2, "turns": 0,
        "auxiliary": 0.0, "cosine": 10.0,
    }  # fmt: skip
    today = load_recipe("mini-imagenet-best-5w1s")
    rest = {key: value for key, value in today.to_table().items() if key not in ("encoder", "preprocessing", "test_time")}
    assert from_table(rest | {"model": old}, "an old recipe") == today


def test_an_unknown_key_stays_in_model_and_is_refused() -> None:
    assert sort_model({"flavour": 3})["model"] == {"flavour": 3}


# --- saved models -----------------------------------------------------------------------------------------------------


def old_file(path: Path, method: str, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    save_tensors(path, tensors, {"method": method, "config": config})
    return path


def test_a_flat_config_of_a_saved_model_loads_with_its_scores(tmp_path: Path) -> None:
    images = {"mean": [0.4], "std": [0.3], "polarity": "inverted"}
    today = SoSN(
        channels=1, input_size=32, relation="ranked", eta=20.0, encoder={"width": 48, "pools": 3}, preprocessing=images,
        test_time={"mirror": True},
    ).eval()  # fmt: skip
    flat = {
        "channels": 1, "input_size": 32, "relation": "ranked", "eta": 20.0, "encoder": "conv4", "encoder_width": 48,
        "conv4_pools": 3, "resnet12_width": 64, "resnet12_pools": 3, "resnet12_drop": 0.0, "mirror": True, "scales": 0,
        "coordinates": 0, "auxiliary": 0.0, "classes": 0, **images,
    }  # fmt: skip
    again, about = load_method(old_file(tmp_path / "old.safetensors", "sosn", today.state_dict(), flat))
    assert about["config"] == flat
    assert again.config == today.config
    assert again.trained  # files from before this was written down come from training
    with torch.no_grad():
        assert torch.equal(again(episode(2, size=28)), today(episode(2, size=28)))


@pytest.mark.parametrize("name", METHODS)
def test_flat_configs_of_every_method_load(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"outputs": 3} if name in ("maml", "meta_lstm") else {}
    encoder = METHODS[name].usual_encoder
    today = METHODS[name](**options, channels=1, input_size=28).eval()
    flat = options | {"channels": 1, "input_size": 28, "polarity": today.preprocessing.polarity}
    if encoder is not None:
        flat |= {"encoder": encoder["name"], "encoder_width": encoder.get("width", 64)}
    again, _ = load_method(old_file(tmp_path / "old.safetensors", name, today.state_dict(), flat))
    assert again.config == today.config
    with torch.no_grad():
        assert torch.equal(again(episode()), today(episode()))


def test_a_saved_model_that_had_an_option_that_is_gone_is_refused_by_that_option(tmp_path: Path) -> None:
    flat = {"channels": 1, "input_size": 28, "coordinates": 2}
    path = old_file(tmp_path / "old.safetensors", "sosn", SoSN(channels=1, input_size=28).state_dict(), flat)
    with pytest.raises(
        CheckpointError, match=r"cannot build .*model.coordinates is 2; this version of sosn no longer has coordinates"
    ):
        load_method(path)


def test_a_timm_prototype_of_the_last_version_is_a_nearest_prototype_on_a_timm_encoder(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    weights = timm.create_model("test_resnet", pretrained=False, num_classes=0).state_dict()
    images = {"input_size": 64, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    flat = {
        "backbone": "test_resnet", **images, "metric": "cosine", "scale": 10.0, "power_norm": "sigme", "eta": 100.0,
        "shift": 0.0,
    }  # fmt: skip
    tensors = {f"backbone.{name}": tensor for name, tensor in weights.items()}
    again, _ = load_method(old_file(tmp_path / "old.safetensors", "timm_prototype", tensors, flat))
    assert isinstance(again, NearestPrototype)
    today = NearestPrototype(encoder={"name": "timm", "model": "test_resnet"}, preprocessing=images).eval()
    today.encoder.backbone.load_state_dict(weights)  # type: ignore[union-attr]
    pictures = torch.rand(1, 5, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(again.encode(pictures[0]), today.encode(pictures[0]))
    assert again.config["encoder"] == {"name": "timm", "model": "test_resnet"}
    assert (again.config["preprocessing"]["mean"], again.metric, again.scale) == ([0.5, 0.4, 0.3], "cosine", 10.0)
    save_method(tmp_path / "new.safetensors", again)
    assert load_method(tmp_path / "new.safetensors")[1]["method"] == "nearest_prototype"


@pytest.mark.parametrize("word", ["reflections=true", "model.coordinates=3", "erase=0.5", "related=1"])
def test_a_removed_key_on_the_command_line_is_named(word: str) -> None:
    with pytest.raises(UsageError, match="this version of sosn no longer has"):
        override("glyphs-5w1s", [word])


def test_names_may_be_quoted() -> None:
    plain, quoted = (
        override("glyphs-5w1s", [f"method={mark}prototypical{mark}", f"encoder={mark}resnet12{mark}"]) for mark in ("", '"')
    )
    assert plain == quoted
