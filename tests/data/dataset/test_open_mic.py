"""Open MIC in all its layouts: exhibitions, unions, domains, groups, validation classes, centre crop, mean image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sosn
from sosn.cli.app import app
from sosn.data.dataset.open_mic import EXHIBITIONS, UNIONS, scan_open_mic
from sosn.data.prepare.catalog import prepare_dataset
from sosn.data.prepare.check import check
from sosn.data.sampler import EpisodeSampler, leave_out_small
from sosn.errors import DataError, MissingSplitError, UsageError
from sosn.recipe.library import load_recipe
from sosn.recipe.override import override
from sosn.training.setup import build
from tests.data.dataset import open_mic_trees as trees

PROTOCOL_2: dict[str, Any] = {"train_domain": "source", "test_domain": "target", "size": 8}


@pytest.fixture(autouse=True)
def _temporary_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOSN_HOME", str(tmp_path / "home"))


def places(bank: sosn.Bank) -> set[str]:
    return {name.split("/")[0] for name in bank.names}


def test_the_unions_of_the_paper_hold_every_exhibition_once() -> None:
    assert sorted(exhibition for members in UNIONS.values() for exhibition in members) == sorted(EXHIBITIONS)


def test_crops_are_found_by_exhibition_and_domain_and_those_of_one_photo_are_one_group(tmp_path: Path) -> None:
    done = prepare_dataset("open-mic", trees.crops(tmp_path / "crops"), 8)
    assert done["splits"] == {domain: {"classes": 60, "images": 10 * 33} for domain in ("source", "target")}
    assert done["missing"] == []
    bank = sosn.open_bank("open-mic", "test", train="p1", test="p2", size=8)
    assert places(bank) == {"clk", "gls", "scl"}
    assert len(bank.names) == 18
    assert bank.groups is not None
    assert bank.groups[:9].unique().tolist() == sorted(set(bank.groups[:9].tolist()))
    assert [len(set(bank.groups[n : n + 3].tolist())) for n in range(0, len(bank), 3)] == [1] * (len(bank) // 3)
    assert len(bank.groups.unique()) == len(bank) // 3
    assert bank.images[0, :, 4, 4].tolist() == list(trees.colour(3, 0, 0, 1, 1))  # clk is the fourth; target


def test_rel_and_rlc_are_one_exhibition(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.crops(tmp_path / "crops", exhibitions=("shx", "rel")), 8)
    banks = [sosn.open_bank("open-mic", "test", train="p1", test=name, size=8) for name in ("rel", "rlc", "shx+rel", "p4")]
    assert [places(bank) for bank in banks] == [{"rlc"}, {"rlc"}, {"rlc", "shx"}, {"rlc", "shx"}]


def test_classes_with_one_photo_are_skipped_and_counted(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.crops(tmp_path / "crops", exhibitions=("clk", "gls", "scl")), 8)
    bank = sosn.open_bank("open-mic", "test", train="p1", test="p2", size=8)
    with pytest.raises(DataError, match=r"clk/0005.*1 groups"):
        EpisodeSampler(bank, 5, 1, 2)
    messages: list[str] = []
    bank = leave_out_small(bank, "test", 1, 2, messages.append)
    assert messages == ["skipped 3 of 18 test classes with too few images for 1-shot with 2 queries"]
    episode = EpisodeSampler(bank, 5, 1, 2).draw(50, sosn.generator("test"))
    crop = (episode.support[:, :, 0, 2, 4, 4] // 20).flatten()  # the photo's number
    assert bool((crop.repeat_interleave(2) != (episode.query[:, :, 2, 4, 4] // 20).flatten()).all())
    with pytest.raises(DataError, match="none of 15 test classes"):
        leave_out_small(bank, "test", 1, 4)


def test_the_centre_crop_keeps_seven_eighths_and_leaves_finished_images_alone(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.crops(tmp_path / "crops", 2, 2, ("shn", "hon", "clv")), 8)
    cropped = sosn.open_bank("open-mic", "test", train="p2", test="p1", size=8)
    assert int(cropped.images[0].amax((1, 2)).sum()) == sum(trees.colour(2, 0, 0, 1, 1))  # no white frame
    prepare_dataset("open-mic", trees.parts(tmp_path / "parts", 2, 1), 84)
    finished = sosn.open_bank("open-mic", "test", train="p2", test="p1")
    assert finished.images[0, :, 0, 0].tolist() == [255, 255, 255]


def test_part_trees_serve_protocol_one_and_no_single_exhibition(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.parts(tmp_path / "parts"), 8)
    banks = {split: sosn.open_bank("open-mic", split, train="p1", test="p3", size=8) for split in ("train", "val", "test")}
    assert [len(bank.names) for bank in banks.values()] == [5, 1, 6]
    assert places(banks["test"]) == {"p3"}
    assert not set(banks["train"].names) & set(banks["val"].names)
    assert places(sosn.open_bank("open-mic", "test", train="p4", test="p1+p2", size=8)) == {"p1", "p2"}
    with pytest.raises(MissingSplitError, match="without shn"):
        sosn.open_bank("open-mic", "train", train="shn", size=8)
    with pytest.raises(MissingSplitError, match="without p1 \\(train, source\\) images"):
        sosn.open_bank("open-mic", "train", train="p1", test="p2", train_domain="source", size=8)


def test_hdf5_files_are_joined_with_their_labels_renumbered(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    prepare_dataset("open-mic", trees.hdf5(tmp_path / "arrays"), 8)
    bank = sosn.open_bank("open-mic", "test", train="p1", test="p4", size=8)
    assert bank.names == tuple(f"{place}/{label:04}" for place in ("rlc", "shx") for label in range(3))
    assert bank.images[0, :, 4, 4].tolist() == list(trees.colour(9, 0, 0, 0))
    assert bank.images[-1, :, 4, 4].tolist() == list(trees.colour(8, 2, 3, 0))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "crops_shn.hd5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match=r"crops_shn.hd5.* cannot be read as HDF5"):
        scan_open_mic(tmp_path / "bad")


@pytest.mark.parametrize("layout", ["crops", "museums"])
def test_protocol_two_trains_on_source_and_tests_on_target_photos(tmp_path: Path, layout: str) -> None:
    tree = trees.crops(tmp_path / "tree") if layout == "crops" else trees.museums(tmp_path / "tree", 6)
    prepare_dataset("open-mic", tree, 8)
    banks = {s: sosn.open_bank("open-mic", s, train="clv", test="clv", **PROTOCOL_2) for s in ("train", "val", "test")}
    assert [len(bank.names) for bank in banks.values()] == [5, 1, 6]
    assert {split: set((bank.images[:, 0, 4, 4] % 20).tolist()) for split, bank in banks.items()} == {
        "train": {0}, "val": {0}, "test": {10},
    }  # fmt: skip
    both = sosn.open_bank("open-mic", "test", train="p1", test="nat", test_domain="any", size=8)
    assert len(both.names) == 6
    assert set((both.class_images("nat/" + both.names[0].split("/")[1])[:, 0, 4, 4] % 20).tolist()) == {0, 10}


def test_a_fifth_of_the_training_classes_are_validation_classes_by_the_seed(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.parts(tmp_path / "parts", 10), 8)
    drawn = [sosn.open_bank("open-mic", "val", size=8, split_seed=seed).names for seed in (0, 0, 1, 2, 3)]
    assert all(len(names) == 2 for names in drawn)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    train = sosn.open_bank("open-mic", "train", size=8).names
    assert sorted((*train, *drawn[0])) == [f"p1/{label:03}" for label in range(10)]


def test_testing_on_what_was_trained_is_refused(tmp_path: Path) -> None:
    for train, test in (("p1", "p1"), ("p1", "shn"), ("rel", "p4")):
        with pytest.raises(UsageError, match="share photos of"):
            sosn.open_bank("open-mic", "test", train=train, test=test)
    with pytest.raises(UsageError, match="share photos of clv"):
        sosn.open_bank("open-mic", "test", train="clv", test="clv", train_domain="any")
    with pytest.raises(UsageError, match="there is no exhibition 'shm'"):
        sosn.open_bank("open-mic", "test", train="shm")


def test_lists_that_do_not_fit_the_crops_are_refused(tmp_path: Path) -> None:
    root = trees.crops(tmp_path / "crops", 2, 2, ("shn",))
    listed = root / "crops_shn" / "source.txt"
    good = listed.read_text()
    listed.write_text(good + "crops_shn/crops_source/absent_crop1.png 1\n")
    with pytest.raises(DataError, match=r"source.txt.* lists .*absent_crop1"):
        scan_open_mic(root)
    listed.write_text(good + good.splitlines()[0][:-1] + "7\n")
    with pytest.raises(DataError, match="has two labels, shn/0000 and shn/0007"):
        scan_open_mic(root)
    listed.write_text(good)
    photo = root / good.split()[0]
    whole = photo.read_bytes()
    photo.write_bytes(b"no image")
    with pytest.raises(DataError, match=f"{photo.name}.* cannot be read"):
        scan_open_mic(root)
    photo.write_bytes(whole)
    for path in root.rglob("*.txt"):
        path.unlink()
    with pytest.raises(DataError, match="without list files"):
        scan_open_mic(root)


@pytest.mark.parametrize("written", ["/home/them/data/{path}", "{name}", "crops_source/{name}"])
def test_list_files_may_name_photos_in_several_ways(tmp_path: Path, written: str) -> None:
    root = trees.crops(tmp_path / "crops", 2, 2, ("shn", "rel"))
    expected = scan_open_mic(root)
    for listed in root.rglob("source.txt"):
        lines = [line.split() for line in listed.read_text().splitlines()]
        listed.write_text("photos\n" + "\n".join(f"{written.format(path=p, name=Path(p).name)}\t{label}" for p, label in lines))
    assert sorted(scan_open_mic(root)) == sorted(expected)


def test_a_check_names_open_mics_tiny_classes(tmp_path: Path) -> None:
    root = trees.parts(tmp_path / "parts", 2, 3)
    trees.picture(root / "openmic" / "part1" / "lonely" / "0.png", (9, 9, 9), (84, 84))
    prepare_dataset("open-mic", root, 8)
    findings, images = check("open-mic")
    assert images == 25
    assert [finding.where for finding in findings if finding.kind == "tiny class"] == [("p1/lonely",)]


def test_the_mean_image_of_a_bank_is_that_of_its_pixels() -> None:
    images = torch.randint(0, 256, (9, 3, 5, 4), dtype=torch.uint8)
    bank = sosn.Bank(images, torch.zeros(9, dtype=torch.int64), ("a",))
    np.testing.assert_allclose(bank.mean_image().numpy(), images.numpy().mean(0) / 255, rtol=1e-12)


def test_a_model_carries_the_mean_image_of_its_training_photos(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.parts(tmp_path / "parts"), 28)
    words = "size=28 steps=1 every=1 val_way=2 val_query=1 val_episodes=2 report_episodes=2 val_share=0.4 device=cpu".split()
    recipe = override(load_recipe("open-mic-1"), ["way=2", "recalibrate=1", *words])
    result = sosn.train(recipe, tmp_path / "run")
    bank = sosn.open_bank("open-mic", "train", size=28, val_share=0.4)
    turns = torch.stack([bank.mean_image().rot90(turn, (-2, -1)) for turn in range(4)])  # the recipe turns episodes
    torch.testing.assert_close(result.method.preprocessing.mean_image, turns.mean(0).float())
    loaded = sosn.load(tmp_path / "run")
    assert torch.equal(loaded.preprocessing.mean_image, result.method.preprocessing.mean_image)
    assert loaded.config["preprocessing"]["mean_image"] is True
    assert loaded.config["preprocessing"]["std"] is None
    channel = build(override(recipe, ["mean_image=false", "standardise=true"]), bank)
    assert channel.preprocessing.mean.flatten().tolist() == pytest.approx(bank.mean_std()[0])


def test_open_mic_skips_classes_that_are_too_small(tmp_path: Path) -> None:
    prepare_dataset("open-mic", trees.crops(tmp_path / "crops", exhibitions=("shn", "hon", "clv")), 84)
    done = CliRunner().invoke(app, ["data", "show", "open-mic", "--out", str(tmp_path / "sheets")])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "sheets").iterdir()) == [
        "open-mic-train-classes.png", "open-mic-train-episode.png",
    ]  # fmt: skip
