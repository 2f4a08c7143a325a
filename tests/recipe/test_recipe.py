"""A recipe reads, writes and overrides without loss, and every wrong key is refused with the right one."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sosn.data.dataset import dataset_options, open_bank
from sosn.errors import UsageError
from sosn.method import method_class
from sosn.recipe.library import RECIPE_FILE, load_recipe, recipe_text, shipped
from sosn.recipe.override import override
from sosn.recipe.recipe import Recipe, from_table, without_place
from sosn.recipe.sections import SECTIONS, EncoderSection


def read(text: str) -> Recipe:
    return from_table(tomllib.loads(text), "the recipe")


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as refused:
        override(Recipe(), words)
    return str(refused.value)


# Shipped recipes


def test_the_default_recipe_is_shipped() -> None:
    assert "glyphs-5w1s" in shipped()


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_loads_and_names_a_method_and_a_dataset_that_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.title
    assert method_class(recipe.model.method).name == recipe.model.method
    assert dataset_options(recipe.data.name)


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_opens_with_the_command_that_runs_it_and_explains_its_keys(name: str) -> None:
    lines = recipe_text(name).splitlines()
    opening = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    assert any(f"sosn train {name}" in line for line in opening)
    assert sum("=" in line and "#" in line for line in lines) >= 5


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_survives_being_written_and_read(name: str) -> None:
    recipe = load_recipe(name)
    assert read(recipe.to_toml()) == recipe


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_has_the_values_of_its_file(name: str) -> None:
    table = load_recipe(name).to_table()
    for key, value in tomllib.loads(recipe_text(name)).items():
        assert table[key] == (table[key] | value if isinstance(value, dict) else value)


# Reading and writing


def test_an_empty_recipe_is_the_defaults() -> None:
    assert read("") == Recipe()


@pytest.mark.parametrize(
    "words",
    [
        ['title="quotes \\" backslash \\\\ newline \\n é ⊗"'],
        ["eta=none", "mean=[0.5]", "std=[0.25]", "polarity=inverted"],
        ["data=folder:C:\\my photos", "size=28", "data.channels=1", "val_share=0.1"],
        ["learning_rate=1e-5", "weight_decay=1e20", "clip=1"],
        ["method=pixels", "input_size=20"],
        ["alphabets=12", "data.seed=3", "seed=-4", "standardise=false"],
    ],
)
def test_a_recipe_survives_being_written_and_read(words: list[str]) -> None:
    recipe = override(Recipe(), words)
    assert recipe != Recipe()
    assert read(recipe.to_toml()) == recipe


def test_a_recipe_survives_being_made_a_table_and_back() -> None:
    recipe = load_recipe("glyphs-5w1s")
    assert from_table(recipe.to_table(), "the table") == recipe


def test_a_recipe_is_found_by_file_and_by_run_folder(tmp_path: Path) -> None:
    recipe = override(Recipe(), ["steps=7"])
    (tmp_path / RECIPE_FILE).write_text(recipe.to_toml(), "utf-8")
    assert load_recipe(str(tmp_path / RECIPE_FILE)) == recipe
    assert load_recipe(str(tmp_path)) == recipe


def test_a_recipe_that_is_not_there_is_refused_with_the_nearest_and_all() -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe("glyph-5w1s")
    assert "there is no recipe 'glyph-5w1s' (did you mean 'glyphs-5w1s'?)" in str(refused.value)
    assert all(name in str(refused.value) for name in shipped())


@pytest.mark.parametrize("content", [b"title = ", b"[data\n", b"steps == 3", b"\xff\xfe\x00", b"seed = 1\nseed = 2"])
def test_what_is_not_toml_is_refused_by_path(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        load_recipe(str(file))
    assert str(file) in str(refused.value)
    assert "TOML" in str(refused.value)


@pytest.mark.parametrize("text", ["data = 3", "training = 'fast'", "[[model]]\nmethod = 'sosn'"])
def test_a_value_instead_of_a_section_is_refused_with_the_syntax(text: str) -> None:
    with pytest.raises(UsageError, match=r"is a section, written \[\w+\]"):
        read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sede = 3", "the recipe has no key 'sede' (did you mean 'seed'?)"),
        ("[trainig]\nsteps = 3", "the recipe has no key 'trainig' (did you mean 'training'?)"),
        ("[training]\nstps = 3", "[training] has no key 'stps' (did you mean 'steps'?)"),
        ("[data]\nalphabet = 3", "[data] has no key 'alphabet' (did you mean 'alphabets'?)"),
        ("[model]\nrelaton = 'average'", "[model] has no key 'relaton' (did you mean 'relation'?)"),
        ("[model]\nmethod = 'sosm'", "there is no method 'sosm' (did you mean 'sosn'?)"),
        ("[data]\nname = 'glyps'", "there is no dataset 'glyps' (did you mean 'glyphs'?)"),
        ("[training]\nloss = 'mze'", "[training].loss is 'mze' (did you mean 'mse'?)"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_right_one(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 'one'", "seed is 'one'; it must be a whole number"),
        ("title = 3", "title is 3; it must be text"),
        ("[training]\nsteps = 2.5", "[training].steps is 2.5; it must be a whole number"),
        ("[training]\nlearning_rate = 'fast'", "[training].learning_rate is 'fast'; it must be a number"),
        ("[data]\nstandardise = 1", "[data].standardise is 1; it must be true or false"),
        ("[data]\nalphabets = true", "[data].alphabets is True; it must be a whole number"),
        ("[model]\neta = 'big'", "[model].eta is 'big'; it must be a number"),
        ("[preprocessing]\nmean = 0.5", "[preprocessing].mean is 0.5; it must be a list of numbers"),
        ("[model]\nshift = 'none'", "[model].shift is 'none'; it must be a number"),
    ],
)
def test_an_ill_typed_value_is_refused_with_its_key_and_the_type_it_needs(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert message in str(refused.value)


def test_none_in_words_makes_an_optional_value_none() -> None:
    assert read("[model]\neta = 'none'").model.options["eta"] is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[model]\nmethod = 'pixels'\nrelation = 'average'", "relation"),
        ("[data]\nname = 'folder:photos'\nalphabets = 50", "alphabets"),
        ("[data]\nname = 'glyphs'\nval_share = 0.2", "val_share"),
    ],
)
def test_a_key_of_another_method_or_dataset_is_refused(text: str, key: str) -> None:
    with pytest.raises(UsageError, match=f"has no key '{key}'"):
        read(text)


# Overrides


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("steps=42", ("training", "steps")),
        ("training.steps=42", ("training", "steps")),
        ("query=42", ("episodes", "query")),
        ("episodes.query=42", ("episodes", "query")),
        ("val_seed=42", ("validation", "val_seed")),
        ("alphabets=42", ("data", "alphabets")),
        ("data.seed=42", ("data", "seed")),
        ("permutations=42", ("model", "permutations")),
        ("model.permutations=42", ("model", "permutations")),
    ],
)
def test_an_override_bare_or_dotted_changes_that_key_and_nothing_else(word: str, place: tuple[str, str]) -> None:
    expected = Recipe().to_table()
    expected[place[0]][place[1]] = 42
    assert override(Recipe(), [word]).to_table() == expected


def test_title_and_seed_stand_outside_the_sections() -> None:
    recipe = override(Recipe(), ["title=a new run", "seed=9"])
    assert (recipe.title, recipe.seed) == ("a new run", 9)
    assert recipe.data == Recipe().data


def test_the_last_of_two_overrides_of_a_key_holds() -> None:
    assert override(Recipe(), ["steps=3", "training.steps=4"]).training.steps == 4


def test_no_override_leaves_the_recipe_as_it_is() -> None:
    recipe = load_recipe("glyphs-5w1s")
    assert override(recipe, []) == recipe


def test_the_recipe_overridden_is_left_as_it_was() -> None:
    recipe = load_recipe("glyphs-5w1s")
    override(recipe, ["eta=5", "alphabets=20", "steps=1"])
    assert recipe == load_recipe("glyphs-5w1s")


def test_a_value_may_hold_an_equals_sign() -> None:
    assert override(Recipe(), ["data=folder:/photos/a=b"]).data.name == "folder:/photos/a=b"


def test_another_method_keeps_what_was_set_and_it_has_too_wherever_its_word_stands() -> None:
    recipe = override(load_recipe("open-mic-1"), ["method=relation_net"])
    assert recipe.preprocessing.options["mean_image"] is True
    assert "eta" not in recipe.model.options
    for words in (["method=prototypical", "width=32"], ["encoder.width=32", "method=prototypical"]):
        assert override(Recipe(), words).encoder == EncoderSection("conv4_pooled", {"width": 32})  # its default, not SoSN's


def test_another_encoder_keeps_what_was_set_and_it_has_too_wherever_its_word_stands() -> None:
    usual = {"features": "relu", "first_width": 64, "pools": 3, "drop": 0.0}
    for words in (["encoder=resnet12", "encoder.width=32"], ["encoder.width=32", "encoder.name=resnet12"]):
        assert override(Recipe(), words).encoder == EncoderSection("resnet12", usual | {"width": 32})
    assert "blocks" not in override(override(Recipe(), ["blocks=5"]), ["encoder=resnet12"]).encoder.options


def test_another_dataset_drops_the_options_of_the_old_one_and_keeps_the_common_ones() -> None:
    recipe = override(Recipe(), ["alphabets=20", "min_images=5", "data=folder:photos", "split_seed=2"])
    assert recipe.data.name == f"folder:{Path.cwd() / 'photos'}"
    assert recipe.data.min_images == 5
    expected = {"size": 84, "channels": 3, "split_seed": 2, "val_share": 0.2, "test_share": 0.2, "max_pixels": 50_000_000}
    assert recipe.data.options == expected


def test_an_override_gives_options_that_the_dataset_takes() -> None:
    words = ["alphabets=10", "characters=2", "drawings=3", "size=12"]
    data = override(Recipe(), words).data
    assert open_bank(data.name, "val", data.min_images, **data.options).images.shape == (6, 1, 12, 12)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("stps=3", "there is no key 'stps' (did you mean 'steps'?)"),
        ("training.stps=3", "there is no key 'training.stps' (did you mean 'training.steps'?)"),
        ("trainin.steps=3", "there is no key 'trainin.steps' (did you mean 'training.steps'?)"),
        ("data.steps=3", "there is no key 'data.steps'"),
        ("options={}", "there is no key 'options'"),
        ("steps", "'steps' is not key=value"),
        ("steps=many", "[training].steps is 'many'; it must be a whole number"),
        ("steps=none", "[training].steps is 'none'; it must be a whole number"),
        ("eta=big", "[model].eta is 'big'; it must be a number"),
        ("power_norm=sigm", "power_norm is 'sigm' (did you mean 'sigme'?); choose one of sigme"),
        ("seed=x", "seed is 'x'; it must be a whole number"),
        ("method=pixel", "there is no method 'pixel' (did you mean 'pixels'?)"),
    ],
)
def test_a_wrong_override_is_refused_with_advice(word: str, message: str) -> None:
    assert message in refusal(word)


def test_a_bare_key_of_two_sections_is_the_dataset_s_or_the_method_s_and_not_the_encoder_s() -> None:
    recipe = override(Recipe(), ["data=folder:photos", "channels=1"])
    assert recipe.data.options["channels"] == 1
    assert "channels" not in recipe.preprocessing.options
    recipe = override(Recipe(), ["method=baseline", "encoder=conv4", "features=mean", "encoder.features=linear"])
    assert (recipe.model.options["features"], recipe.encoder.options["features"]) == ("mean", "linear")


def test_a_key_of_another_method_is_refused_on_the_command_line() -> None:
    assert "there is no key 'relation'" in refusal("method=pixels", "relation=average")


# What makes no sense


@pytest.mark.parametrize("words", [["val_seed=0"], ["report_seed=1"], ["val_seed=5", "report_seed=5"]])
def test_selecting_and_reporting_on_the_same_episodes_is_refused(words: list[str]) -> None:
    assert "val_seed and report_seed are equal" in refusal(*words)


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [
        ("episodes_per_step", 0, 1),
        ("steps", 0, 1),
        ("every", 0, 1),
        ("val_episodes", 1, 2),
        ("report_episodes", 1, 2),
        ("warmup", -1, 0),
        ("recalibrate", -1, 0),
        ("decay_every", 0, 1),
        ("clip", -0.5, 0),
        ("weight_decay", -0.5, 0),
    ],
)
def test_a_number_too_small_is_refused_by_name_with_the_least_allowed(key: str, value: float, least: int) -> None:
    assert refusal(f"{key}={value}").endswith(f"{key} is {value}; it must be {least} or more")


def test_numbers_without_end_are_refused_as_such() -> None:
    assert refusal("clip=inf").endswith("clip is inf; it must be 0 or more, and finite")
    assert refusal("learning_rate=inf").endswith("learning_rate is inf; it must be above 0, and finite")


@pytest.mark.parametrize("value", ["0", "-0.1", "nan"])
def test_a_learning_rate_that_is_not_above_zero_is_refused(value: str) -> None:
    assert "learning_rate is" in refusal(f"learning_rate={value}")


@pytest.mark.parametrize("value", ["1", "-0.1", "nan"])
def test_a_decay_of_the_average_outside_zero_and_one_is_refused(value: str) -> None:
    assert "the decay must lie between 0 and 1" in refusal(f"average={value}")


def test_validation_uses_the_episodes_of_training_by_default() -> None:
    recipe = override(Recipe(), ["way=7", "shot=3"])
    assert (recipe.val_way, recipe.val_shot) == (7, 3)
    recipe = override(recipe, ["val_way=5", "val_shot=1"])
    assert (recipe.val_way, recipe.val_shot) == (5, 1)


@pytest.mark.parametrize(("word", "same"), [("title=x", True), ("device=cpu", True), ("seed=1", False), ("steps=1", False)])
def test_two_recipes_are_compared_without_title_and_device(word: str, same: bool) -> None:
    assert (without_place(override(Recipe(), [word])) == without_place(Recipe())) is same


def test_every_default_is_in_the_table_with_its_type() -> None:
    table: dict[str, Any] = Recipe().to_table()
    assert set(table) == {"title", "seed", *SECTIONS}
    assert from_table(table, "the defaults") == Recipe()


def test_spaces_around_a_key_do_not_change_which_key_it_is() -> None:
    assert override(Recipe(), ["seed = 3"]).seed == 3


def test_another_method_drops_the_options_of_the_old_one() -> None:
    changed = override(load_recipe("glyphs-5w1s"), ["method=pixels"])
    assert changed.model.method == "pixels"
    assert changed.model.options == {}
    assert changed.encoder == EncoderSection()
    assert changed.preprocessing.options == {"polarity": "inverted", "mean_image": False, "pen": 0.0, "centre_crop": 0.0}


@pytest.mark.parametrize("word", ["clip=inf", "clip=nan", "weight_decay=inf", "learning_rate=inf", "learning_rate=nan"])
def test_numbers_that_are_not_finite_are_refused(word: str) -> None:
    assert word.split("=")[0] in refusal(word)


def test_a_title_with_any_character_reads_back() -> None:
    recipe = Recipe(title='a "quoted" \x7f \\ title\n')
    assert read(recipe.to_toml()) == recipe


def test_another_method_uses_its_loss_unless_one_is_given() -> None:
    recipe = load_recipe("glyphs-5w1s")
    assert override(recipe, ["method=prototypical"]).training.loss == "cross_entropy"
    assert override(recipe, ["method=siamese"]).training.loss == "binary_cross_entropy"
    assert override(recipe, ["method=relation_net"]).training.loss == "mse"
    for words in (["method=prototypical", "loss=mse"], ["training.loss=mse", "method=prototypical"]):
        assert override(recipe, words).training.loss == "mse"
    assert override(recipe, ["loss=cross_entropy", "method=sosn"]).training.loss == "cross_entropy"


@pytest.mark.parametrize(
    ("name", "way", "shot", "train_query", "test_query"),
    [("5w1s", 5, 1, 19, 1), ("5w5s", 5, 5, 10, 5), ("20w1s", 20, 1, 10, 1), ("20w5s", 20, 5, 5, 2)],
)
def test_omniglot_recipes_have_the_sizes_of_the_paper(
    name: str, way: int, shot: int, train_query: int, test_query: int
) -> None:
    recipe = load_recipe(f"omniglot-{name}")
    episodes, training = recipe.episodes, recipe.training
    assert (episodes.way, episodes.shot, episodes.query, recipe.validation.val_query) == (way, shot, train_query, test_query)
    assert (training.learning_rate, training.schedule, training.decay_every, training.decay_factor) == (
        1e-3,
        "step",
        50_000,
        0.1,
    )
    assert (training.loss, training.optimiser, episodes.episodes_per_step) == ("mse", "adam", 1)
