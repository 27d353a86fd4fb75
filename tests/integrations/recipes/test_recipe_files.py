"""Recipe files and typed changes: merging, paths, types, and the errors for mistakes."""

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from elastane.common.errors import BadField, BadInput
from elastane.integrations.recipes.optimization import make_warmup_cosine
from elastane.integrations.recipes.recipe import Recipe, count_training_steps
from elastane.integrations.recipes.recipe_checks import check_recipe
from elastane.integrations.recipes.recipe_files import (
    CATALOG,
    find_recipe,
    format_inline,
    format_recipe,
    list_recipes,
    load_document,
    merge_documents,
    read_recipe,
)
from elastane.integrations.recipes.resolution import SCRIPTS, load_recipe, parse_override, resolve_recipe

TINY = [name for name in list_recipes() if "-tiny" in name]


def write(folder: Path, text: str, name: str = "own.yaml") -> str:
    (folder / name).write_text(text)
    return name


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_recipe_needs_no_file_of_the_user(name, tmp_path):
    recipe = load_recipe(name, (), tmp_path)
    assert resolve_recipe(recipe) == recipe


@pytest.mark.parametrize("name", [name for name in list_recipes() if name not in TINY])
def test_a_published_recipe_needs_only_a_tokenizer_or_its_model(name, tmp_path):
    recipe = load_recipe(name, (), tmp_path)
    with pytest.raises(BadField, match=r"data\.tokenizer: is empty"):
        check_recipe(recipe)
    (tmp_path / "tokenizer.json").write_text("{}")
    check_recipe(load_recipe(name, ["data.tokenizer=."], tmp_path))


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_the_same_after_it_was_written_and_read(name, tmp_path):
    recipe = load_recipe(name, (), tmp_path)
    (tmp_path / "copy.yaml").write_text(format_recipe(recipe))
    assert read_recipe(str(tmp_path / "copy.yaml")) == recipe
    assert read_recipe(format_inline(recipe)) == recipe


def test_every_task_has_a_script():
    for module in SCRIPTS.values():
        assert (CATALOG.parent / "scripts" / f"{module.rpartition('.')[2]}.py").is_file()


def test_a_recipe_that_extends_another_changes_only_what_it_names(tmp_path):
    own = write(tmp_path, "extends: llama-tiny\ntraining: {steps: 7}\ndata: {path: text, vocabulary: 500}\n")
    (tmp_path / "text").mkdir()
    recipe, base = load_recipe(own, (), tmp_path), load_recipe("llama-tiny", (), tmp_path)
    assert (recipe.training.steps, recipe.training.learning_rate) == (7, base.training.learning_rate)
    assert recipe.model == base.model
    assert recipe.data.path == str(tmp_path / "text")


def test_another_family_takes_no_sizes_of_the_extended_recipe(tmp_path):
    own = write(tmp_path, "extends: llama-tiny\nmodel: {family: gpt, config: {n_embd: 8}}\n")
    assert load_recipe(own, (), tmp_path).model.config == {"n_embd": 8}


def test_relative_paths_start_where_they_are_written(tmp_path):
    (tmp_path / "recipes").mkdir()
    own = write(tmp_path, "extends: llama-tiny\ndata: {tokenizer: words}\n", "recipes/own.yaml")
    recipe = load_recipe(own, ["data.path=text.txt", "model.from=./model"], tmp_path)
    assert recipe.data.tokenizer == str(tmp_path / "recipes" / "words")
    assert recipe.data.path == str(tmp_path / "text.txt")
    assert recipe.model.source == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: own.yaml\n", "cannot be followed"),
        ("extends: [a]\n", "cannot be followed"),
        ("extends: lama-tiny\n", "there is no recipe lama-tiny"),
        ("- a\n", "is not a recipe: it is a list"),
        ("a: [\n", "is not YAML"),
        ("task: pretrain\ntask: finetune\n", "task"),
        ("trainin: {}\n", r"own\.yaml: trainin: a recipe has no such field"),
        ("task: sleep\n", "'sleep' is not an allowed value"),
        ("training: {steps: many}\n", r"training\.steps: is a text, not a whole number"),
        ("training: {steps: -1}\n", r"training\.steps"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
            f"c{n}: &c{n} [{', '.join([f'*c{n - 1}' if n else '*b'] * 9)}]\n" for n in range(9)
        ), "own.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_names_the_file(tmp_path, text, words):
    with pytest.raises(BadInput, match=words):
        load_recipe(write(tmp_path, text), (), tmp_path)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    write(tmp_path, "#" * (1 << 21))
    with pytest.raises(BadInput, match="cannot read the recipe"):
        load_document(tmp_path / "own.yaml")


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("training.steps=200", {"training": {"steps": 200}}),
        ("training.learning_rate=1e-3", {"training": {"learning_rate": 0.001}}),
        ("data.path=2024", {"data": {"path": "2024"}}),
        ("data.held_out=0.1", {"data": {"held_out": 0.1}}),
        ("data.held_out=other.txt", {"data": {"held_out": "other.txt"}}),
        ("training.autocast=true", {"training": {"autocast": True}}),
        ("workers.sizes=[1, 2]", {"workers": {"sizes": [1, 2]}}),
        ("workers.copies=all", {"workers": {"copies": "all"}}),
        ("evaluation.prompt=a: b = c", {"evaluation": {"prompt": "a: b = c"}}),
        ("lora.rank=4", {"lora": {"rank": 4}}),
        ("lora=null", {"lora": None}),
        ("model.config={n_embd: 8}", {"model": {"config": {"n_embd": 8}}}),
        ("model.config.hidden_size=64", {"model": {"config": {"hidden_size": 64}}}),
    ],
)
def test_a_typed_value_has_the_type_of_its_field(text, document):
    assert parse_override(text) == document


@pytest.mark.parametrize("text", ["", "=", "a", "=1", "a..b=1", ".a=1", "a.=1", ".".join("a" * 9) + "=1"])
def test_a_typed_change_without_a_name_or_value_is_refused(text):
    with pytest.raises(BadInput, match="is not KEY=VALUE"):
        parse_override(text)


def test_a_typed_value_that_is_not_yaml_is_refused():
    with pytest.raises(BadInput, match=r"--set training\.steps: the value '\[' is not YAML"):
        parse_override("training.steps=[")


def test_later_changes_win():
    recipe = load_recipe("llama-tiny", ["training.steps=5", "training.steps=6"], Path.cwd())
    assert recipe.training.steps == 6


def test_merging_leaves_both_documents_as_they_were():
    below, above = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merge_documents(below, above) == {"a": {"b": 3, "c": 2}}
    assert (below, above) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch.microbatch=5", "5 does not divide batch.size, which is 16"),
        ("workers.min=9", r"workers\.min: 9 is more than the 8 microbatches"),
        ("workers.sizes=[2, 1]", "does not ascend"),
        ("workers.sizes=[1, 16]", "is not within 1 and 8"),
        ("training.warmup_steps=200", "is not less than training.steps"),
        ("checkpoints.keep_best=accuracy:max", "names no metric of a recipe"),
        ("model.config={}", "has neither from nor config|model"),
        ("model.config.num_attention_heads=5", "5 does not divide hidden_size, which is 96"),
        ("model.config.num_attention_heads=0", "0 is not a size"),
        ("model.config.num_key_value_heads=3", "3 does not divide num_attention_heads, which is 4"),
        ("model.config.vocab_size=500", "is empty, and the model has a vocabulary of a fixed size"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path, change, words):
    recipe = load_recipe("llama-tiny", [change], tmp_path)
    if change == "model.config={}":
        recipe = Recipe()
    with pytest.raises(BadField, match=words):
        check_recipe(recipe)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((), ""),
        (["workers.max=4"], ""),
        (["workers.processes=3"], r"workers\.processes: 3 is not a power of two"),
        (["batch.size=10"], "2 processes cannot share the 5 microbatches of a step equally"),
        (["workers.max=5"], r"workers\.max: 5 is more than the 4 groups of 2 microbatches of a step"),
        (["workers.copies=2"], r"workers\.copies: 2 cannot be combined with workers\.processes: 2"),
        (
            ["task=preference"],
            r"workers\.processes: 2 cannot be combined with the task preference without lora",
        ),
    ],
)
def test_what_the_processes_of_a_worker_cannot_share_is_refused(tmp_path, changes, words):
    recipe = load_recipe("llama-tiny", ["workers.processes=2", *changes], tmp_path)
    with pytest.raises(BadField, match=words) if words else nullcontext():
        check_recipe(recipe)


def test_an_epoch_of_divided_workers_has_whole_steps():
    whole, divided = (
        load_recipe("llama-tiny", ["training.steps=0", f"workers.processes={count}"], Path.cwd())
        for count in (1, 2)
    )
    assert [count_training_steps(whole, samples) for samples in (15, 40)] == [1, 3]
    assert [count_training_steps(divided, samples) for samples in (15, 40)] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "warmup"),
    [
        ([], 20),
        (["training.steps=100"], 20),
        (["training.steps=20"], 2),
        (["training.steps=5"], 0),
        (["training.steps=50", "training.warmup_steps=4"], 4),
    ],
)
def test_a_warmup_follows_from_fewer_steps_unless_it_is_typed(tmp_path, changes, warmup):
    recipe = load_recipe("llama-tiny", changes, tmp_path)
    assert recipe.training.warmup_steps == warmup
    check_recipe(recipe)


@pytest.mark.parametrize("place", ["training.lr", "lr"])
def test_an_abbreviated_field_suggests_its_name(tmp_path, place):
    with pytest.raises(BadInput) as refused:
        load_recipe("llama-tiny", [f"{place}=0.1"], tmp_path)
    assert refused.value.do == "write it as training.learning_rate"
    with pytest.raises(BadInput) as refused:
        load_recipe("llama-tiny", ["nothing=0.1"], tmp_path)
    assert "elastane recipe show" in refused.value.do


def test_an_unknown_recipe_suggests_the_nearest_name(tmp_path):
    with pytest.raises(BadInput) as refused:
        find_recipe("gpt-os-20b", tmp_path)
    assert refused.value.do == "did you mean gpt-oss-20b?"


def test_the_learning_rate_rises_then_falls_along_a_cosine():
    factor = make_warmup_cosine(4, 20, 0.1)
    values = [factor(step) for step in range(21)]
    assert values[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(high > low for high, low in pairwise(values[4:]))
    assert values[20] == pytest.approx(0.1)


def test_epochs_count_the_last_step_that_is_not_full():
    recipe = load_recipe("llama-tiny", ["training.steps=0", "training.epochs=2"], Path.cwd())
    assert count_training_steps(recipe, 33) == 6
