"""The source of a pretrained model: a folder, or the hub, and what is said if there is no model."""

import json
import re

import httpx
import pytest
from huggingface_hub import errors

from elastane.api.errors import BadField
from elastane.recipes import model_source
from elastane.recipes.model_source import download_model, locate_model, read_pretrained_config
from elastane.recipes.recipe_files import is_path
from elastane.recipes.resolution import load_recipe, resolve_recipe


@pytest.fixture
def folder(tmp_path):
    """Return a folder that looks like a pretrained model with its tokenizer."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64}))
    (place / "model.safetensors").touch()
    (place / "tokenizer.json").write_text("{}")
    return place


def test_a_pretrained_model_brings_its_tokenizer_and_no_configuration(folder):
    recipe = load_recipe("llama-tiny", ["model.from=./model", "batch.context=64"], folder.parent)
    resolved = resolve_recipe(recipe)
    assert resolved.model.source == resolved.data.tokenizer == str(folder)
    assert resolved.model.config == {}


def test_a_context_longer_than_that_of_the_pretrained_model_is_refused(folder):
    recipe = load_recipe("llama-tiny", ["model.from=./model", "batch.context=65"], folder.parent)
    with pytest.raises(BadField, match="65 is longer than the 64 positions"):
        resolve_recipe(recipe)


@pytest.mark.parametrize(
    ("removed", "added", "words"),
    [
        ("model.safetensors", "", "has a config.json and no weights"),
        ("config.json", "", "has no config.json"),
        ("config.json", "adapter_config.json", "holds an adapter, not a model"),
    ],
)
def test_a_folder_without_a_model_is_refused(folder, removed, added, words):
    (folder / removed).unlink()
    if added:
        (folder / added).touch()
    with pytest.raises(BadField, match=words):
        read_pretrained_config(folder)


@pytest.mark.parametrize("content", ["[]", "{", "\x00", '{"a": ' + "[" * 100_000])
def test_a_damaged_configuration_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(BadField, match=r"config\.json cannot be read"):
        read_pretrained_config(folder)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(BadField, match="no such folder"):
        read_pretrained_config(locate_model(str(tmp_path / "gone")))


@pytest.mark.parametrize(
    ("error", "words", "do"),
    [
        (errors.GatedRepoError, "org/model is a gated model", "accept the licence"),
        (errors.RepositoryNotFoundError, "the hub has no model org/model", "correct the name"),
        (errors.LocalEntryNotFoundError, "cannot be downloaded", "check the network"),
        (ConnectionError, "cannot be downloaded", "check the network"),
    ],
)
def test_the_answers_of_the_hub_are_explained(monkeypatch, error, words, do):
    def refuse(*_args, **_options):
        raise make_error(error)

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(BadField, match=re.escape(words)) as refused:
        download_model("org/model")
    assert do in refused.value.do


def make_error(kind):
    if issubclass(kind, errors.HfHubHTTPError):
        return kind(
            "refused", response=httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid"))
        )
    return kind("refused")


def test_only_weights_and_texts_are_downloaded(monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **options: asked.update(options) or str(tmp_path)
    )
    assert locate_model("org/model") == tmp_path
    assert asked == {"allow_patterns": list(model_source.DOWNLOADED)}
    assert not any(pattern.endswith(".py") for pattern in model_source.DOWNLOADED)


@pytest.mark.parametrize(
    ("source", "expected"),
    [("./a", True), ("/a", True), ("~/a", True), ("a", True), ("a/b/c", True), ("org/model", False)],
)
def test_a_name_with_one_slash_is_one_of_the_hub_unless_it_is_a_folder(tmp_path, source, expected):
    assert is_path(source, tmp_path) is expected
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert is_path("org/model", tmp_path)
