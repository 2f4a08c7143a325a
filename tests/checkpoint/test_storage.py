"""Weights are loaded as saved, and a failed write keeps the old file."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import sosn
from sosn.checkpoint.registry import model_path, pack
from sosn.checkpoint.storage import WEIGHTS_FILE, load_method, load_tensors, restore, save_method, save_tensors
from sosn.episode import Episode
from sosn.errors import CheckpointError, SosnError, UsageError
from sosn.method import Method, NearestPixels, SoSN
from sosn.recipe.library import RECIPE_FILE, load_recipe
from sosn.recipe.override import override
from sosn.util.files import digest, write_atomically


def network() -> SoSN:
    """A network that differs from a fresh one in everything that is saved: weights, statistics, permutations."""
    torch.manual_seed(3)
    images = {"mean": [0.9], "std": [0.25]}
    method = SoSN(channels=1, input_size=28, permutations=2, permutation_seed=5, preprocessing=images)
    with torch.no_grad():
        method.train()(episode())  # moves batch norm's running statistics
    return method.eval()


def episode() -> Episode:
    draw = torch.Generator().manual_seed(0)
    support = torch.randint(0, 256, (2, 3, 1, 1, 28, 28), generator=draw, dtype=torch.uint8)
    return Episode(support, torch.randint(0, 256, (2, 4, 1, 28, 28), generator=draw, dtype=torch.uint8))


def scores(method: Method) -> torch.Tensor:
    with torch.inference_mode():
        answer: torch.Tensor = method(episode())
    return answer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_method(tmp_path / "model.safetensors", network())
    return tmp_path / "model.safetensors"


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        load_method(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


# Round trips


def test_a_network_loaded_again_gives_the_same_scores_to_the_bit(saved: Path) -> None:
    loaded, _ = load_method(saved)
    assert scores(loaded).equal(scores(network()))


def test_a_network_loaded_again_has_the_same_tensors_and_settings_and_is_ready_to_use(saved: Path) -> None:
    method, (loaded, _) = network(), load_method(saved)
    assert loaded.config == method.config
    assert loaded.state_dict().keys() == method.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.equal(method.state_dict()[name])
        assert tensor.dtype == method.state_dict()[name].dtype
    assert not any(module.training for module in loaded.modules())


def test_another_seed_of_the_global_generator_makes_no_difference_to_a_loaded_network(saved: Path) -> None:
    torch.manual_seed(99)
    assert scores(load_method(saved)[0]).equal(scores(network()))


def test_a_method_without_weights_comes_back_too(tmp_path: Path) -> None:
    save_method(tmp_path / "pixels.safetensors", NearestPixels(preprocessing={"polarity": "as_is"}))
    loaded, _ = load_method(tmp_path / "pixels.safetensors")
    assert isinstance(loaded, NearestPixels)
    assert scores(loaded).equal(scores(NearestPixels(preprocessing={"polarity": "as_is"})))


def test_half_precision_halves_the_file_and_moves_the_scores_little(tmp_path: Path, saved: Path) -> None:
    half = tmp_path / "half.safetensors"
    save_method(half, network(), dtype=torch.float16)
    assert half.stat().st_size < 0.55 * saved.stat().st_size
    loaded, _ = load_method(half)
    assert loaded.dtype == torch.float32
    assert load_tensors(half)[0]["permutations"].dtype == network().permutations.dtype
    assert loaded.get_buffer("permutations").equal(network().permutations)
    torch.testing.assert_close(scores(loaded), scores(network()), rtol=0, atol=1e-2)
    assert not scores(loaded).equal(scores(network()))


def test_the_document_about_a_method_is_loaded_with_it(tmp_path: Path) -> None:
    about = {"recipe": {"title": "é ⊗", "seed": 3}, "accuracy": 0.5, "none": None}
    save_method(tmp_path / "a.safetensors", NearestPixels(), about)
    _, found = load_method(tmp_path / "a.safetensors")
    assert found == about | {"method": "pixels", "config": NearestPixels().config, "trained": False}


def test_tensors_of_every_type_are_loaded_as_saved(tmp_path: Path) -> None:
    tensors = {
        "strided": torch.arange(6.0).view(2, 3).mT,
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "half": torch.ones(2, dtype=torch.float16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "channels_last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    }
    save_tensors(tmp_path / "t.safetensors", tensors, {"step": 4})
    loaded, about = load_tensors(tmp_path / "t.safetensors")
    assert about == {"step": 4}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].equal(tensor)


def test_a_model_is_found_by_file_and_by_run_folder(saved: Path) -> None:
    assert saved.name == WEIGHTS_FILE
    for place in (saved, saved.parent, str(saved)):
        assert scores(sosn.load(place)).equal(scores(network()))


def test_packing_a_model_keeps_what_is_known_of_it_in_half_the_space(tmp_path: Path) -> None:
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    recipe = override(load_recipe("glyphs-5w1s"), ["seed=3"])
    save_method(source, network(), {"recipe": recipe.to_table(), "step": 7})
    pack(source, target)
    assert target.stat().st_size < 0.55 * source.stat().st_size
    assert load_method(target)[1] == load_method(source)[1]
    torch.testing.assert_close(scores(sosn.load(target)), scores(network()), rtol=0, atol=1e-2)


def test_packing_can_change_what_the_weights_serve_as_well_and_forgets_where_training_started(tmp_path: Path) -> None:
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    recipe = override(load_recipe("glyphs-5w1s"), [f"start={tmp_path}"])
    save_method(source, network(), {"recipe": recipe.to_table()})
    pack(source, target, ["relation=ranked", "title=Another"])
    method, about = load_method(target)
    assert isinstance(method, sosn.SoSN)
    assert (method.relation.name, method.config["relation"]) == ("ranked", "ranked")
    assert (about["recipe"]["model"]["relation"], about["recipe"]["title"]) == ("ranked", "Another")
    assert about["recipe"]["training"]["start"] == ""
    torch.testing.assert_close(scores(method), scores(network()), rtol=0, atol=1e-2)  # of one shot


def test_packing_drops_the_machine_and_keeps_the_training_classes(tmp_path: Path) -> None:
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    recipe = override(load_recipe("glyphs-5w1s"), ["device=cpu"])
    seen = [{"name": "omniglot", "options": {}, "classes": ["a"]}]
    save_method(source, network(), {"recipe": recipe.to_table(), "seen": seen})
    pack(source, target)
    _, about = load_tensors(target)
    assert about["seen"] == seen
    assert about["recipe"]["training"]["device"] == "auto"


def test_packing_refuses_what_weights_depend_on(tmp_path: Path) -> None:
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    save_method(source, network(), {"recipe": load_recipe("glyphs-5w1s").to_table()})
    for word in ("steps=5", "data.seed=4"):
        with pytest.raises(UsageError, match="cannot be changed in a trained model"):
            pack(source, target, [word])
    save_method(source, network(), {})
    with pytest.raises(CheckpointError, match="has no recipe"):
        pack(source, target)


# Refusals


def test_weights_of_another_architecture_are_refused_naming_the_tensor_and_both_shapes(saved: Path) -> None:
    tensors, _ = load_tensors(saved)
    wider = SoSN(channels=1, input_size=28, permutations=2, encoder={"width": 80})
    before = {name: tensor.clone() for name, tensor in wider.state_dict().items()}
    with pytest.raises(CheckpointError) as refused:
        restore(wider, tensors, saved)
    for part in (str(saved), "another architecture", "'encoder.blocks.", "(64", "(80", "the recipe it was trained with"):
        assert part in str(refused.value)
    assert all(tensor.equal(before[name]) for name, tensor in wider.state_dict().items())


def test_a_tensor_too_many_or_too_few_is_named(saved: Path) -> None:
    tensors, _ = load_tensors(saved)
    with pytest.raises(CheckpointError, match=r"'novel' is \(1,\) there and absent here"):
        restore(network(), tensors | {"novel": torch.zeros(1)}, saved)
    del tensors["permutations"]
    with pytest.raises(CheckpointError, match=r"'permutations' is absent there and \(2, 64\) here"):
        restore(network(), tensors, saved)


def test_weights_that_do_not_fit_the_settings_beside_them_are_refused(tmp_path: Path) -> None:
    config = network().config | {"encoder": {"name": "conv4", "width": 80}}
    save_tensors(tmp_path / "odd.safetensors", network().state_dict(), {"method": "sosn", "config": config})
    assert "has another architecture" in refusal(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_file_cut_short_is_refused_as_damaged(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    assert "is damaged or was not written by sosn" in refusal(saved)


@pytest.mark.parametrize("content", [b"no weights at all, only words", b"\xff" * 100, (2).to_bytes(8, "little") + b"{}"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.safetensors").write_bytes(content)
    assert "is damaged or was not written by sosn" in refusal(tmp_path / "other.safetensors")


def test_a_header_with_a_spoilt_byte_is_refused_as_damaged(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[20] = 0xFF
    saved.write_bytes(bytes(content))
    assert "is damaged" in refusal(saved)


def test_a_missing_file_is_refused_by_path(tmp_path: Path) -> None:
    assert "there is no weights file" in refusal(tmp_path / "nothing.safetensors")


def test_a_file_without_a_method_is_refused(tmp_path: Path) -> None:
    save_tensors(tmp_path / "state.safetensors", {"step": torch.tensor(3)}, {"step": 3})
    assert "is a checkpoint for resuming a run, not a model" in refusal(tmp_path / "state.safetensors")


def test_a_run_folder_without_weights_is_refused_saying_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / RECIPE_FILE).write_text("")
    with pytest.raises(CheckpointError, match=f"has no {WEIGHTS_FILE}"):
        model_path(str(tmp_path))


def test_a_model_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="there is no model 'no-such-model'"):
        sosn.load("no-such-model")


# Writing


def test_writing_replaces_what_was_there_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"new content"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_written_can_be_read_by_others(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
import torch
from sosn.errors import SosnError
from sosn.checkpoint.storage import save_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_tensors(Path(sys.argv[1]), {"large": torch.ones(100_000)}, {})
except SosnError as error:
    print(type(error).__name__, error)
else:
    print("it was written")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits on file size are Unix's")
def test_when_the_disk_is_full_the_old_file_is_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"small": torch.ones(3)}, {"version": 1})
    before = path.read_bytes()
    command = [sys.executable, "-c", FILL_THE_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert f"SosnError cannot write {str(path)!r}" in done.stdout
    assert "the old file, if any, is unchanged" in done.stdout
    assert path.read_bytes() == before
    assert load_tensors(path)[1] == {"version": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_onto_a_folder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(SosnError, match="cannot write"):
        write_atomically(tmp_path / "taken", b"content")
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SosnError, match="cannot write"):
        save_method(tmp_path / "missing" / "model.safetensors", network())


@pytest.mark.parametrize(
    "about", [{"method": "sosn"}, {"method": "sosn", "config": {"flavour": 3}}, {"method": "x", "config": {}}]
)
def test_a_description_that_cannot_be_built_is_refused(tmp_path: Path, about: dict[str, object]) -> None:
    save_tensors(tmp_path / "odd.safetensors", {"a": torch.zeros(1)}, about)
    with pytest.raises(CheckpointError, match="cannot build"):
        load_method(tmp_path / "odd.safetensors")


def test_a_digest_tells_other_contents_names_and_places_apart(tmp_path: Path) -> None:
    def of(files: dict[str, str]) -> str:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, content in (files | {"notes.txt": str(folder)}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        return digest(folder, "*.py")

    seen = [of({"a.py": one, name: other}) for name in ("b.py", "c.py", "sub/b.py") for one, other in (("1", "2"), ("12", ""))]
    assert len(set(seen)) == len(seen)
    assert of({"b.py": "2", "a.py": "1"}) == seen[0]
    assert len(seen[0]) == 16
