"""The source of a pretrained model: a folder, or the hub, and what is said if there is no model."""

import json
import re

import httpx
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from elastane.common.errors import BadField
from elastane.integrations.recipes.model_source import (
    download_config,
    download_model,
    locate_model,
    read_pretrained_config,
)
from elastane.integrations.recipes.recipe_files import find_published_sizes, is_path, list_recipes
from elastane.integrations.recipes.resolution import load_recipe, resolve_recipe, resolve_without_download


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
        (errors.RemoteEntryNotFoundError, "org/model has no config.json", "that transformers can load"),
        (errors.GatedRepoError, "org/model is a gated model", "accept the licence"),
        (errors.RepositoryNotFoundError, "the hub has no model org/model", "correct the name"),
        (errors.LocalEntryNotFoundError, "cannot be downloaded", "check the network"),
        (ConnectionError, "cannot be downloaded", "check the network"),
    ],
)
def test_the_answers_of_the_hub_are_explained(monkeypatch, error, words, do):
    def refuse(*_args, **_options):
        raise make_error(error)

    for function, download in (("snapshot_download", download_model), ("hf_hub_download", download_config)):
        monkeypatch.setattr(f"huggingface_hub.{function}", refuse)
        with pytest.raises(BadField, match=re.escape(words)) as refused:
            download("org/model")
        assert do in refused.value.do


def make_error(kind):
    if issubclass(kind, errors.HfHubHTTPError):
        return kind(
            "refused", response=httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid"))
        )
    return kind("refused")


def test_only_the_weights_and_texts_of_one_format_are_downloaded(monkeypatch, folder):
    wanted = [
        "config.json", "generation_config.json", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer.json", "tokenizer.model", "merges.txt",
        "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
    ]  # fmt: skip
    others = [
        "original/model.safetensors", "original/config.json", "original/consolidated.00.pth",
        "original/tokenizer.model", "metal/model.bin", "onnx/a/vocab.txt", "consolidated.safetensors",
        "consolidated-00001-of-00002.safetensors", "modeling_own.py", "README.md",
    ]  # fmt: skip
    fetched = []

    def download(name, **patterns):
        assert name == "org/model"
        fetched.extend(filter_repo_objects(sorted(wanted + others), **patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: str(folder / "config.json"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert locate_model("org/model") == folder
    assert fetched == sorted(wanted)


def test_a_download_is_of_one_revision(monkeypatch, tmp_path, folder):
    """The weights and the checked configuration are of one commit."""
    snapshot = tmp_path / ("0123456789" * 4)
    folder.rename(snapshot)
    asked = []

    def download(name, *_, **options):
        asked.append((name, options.get("revision")))
        return str(snapshot / "config.json") if "allow_patterns" not in options else str(snapshot)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    for source, revision in (("org/model", None), ("org/model@v2", "v2")):
        asked.clear()
        assert locate_model(source) == snapshot
        assert asked == [("org/model", revision), ("org/model", snapshot.name)]


def test_weights_of_the_hub_that_cannot_be_trained_are_not_downloaded(monkeypatch, folder):
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: str(folder / "config.json"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("downloaded"))
    with pytest.raises(BadField, match="quantized weights: gptq"):
        locate_model("org/model")


def test_a_recipe_that_was_not_downloaded_names_its_model_as_before(monkeypatch, tmp_path):
    refuse_downloads(monkeypatch)
    recipe = load_recipe("llama-3.1-8b-lora", (), tmp_path)
    settled = resolve_without_download(recipe)
    assert (settled.model.source, settled.model.config) == ("meta-llama/Llama-3.1-8B", {})
    assert settled.data == recipe.data
    # Its sizes are in the catalog, so its context is checked without a download.
    with pytest.raises(BadField, match="200000 is longer than the 131072 positions"):
        resolve_without_download(load_recipe("llama-3.1-8b-lora", ["batch.context=200000"], tmp_path))
    # Those of another model are not, and llama-tiny has the shorter context of its own sizes.
    other = load_recipe("llama-tiny", ["model.from=org/model", "batch.context=1000"], tmp_path)
    assert resolve_without_download(other).model.source == "org/model"


def test_a_recipe_of_a_folder_is_resolved_without_a_download(monkeypatch, folder):
    refuse_downloads(monkeypatch)
    recipe = load_recipe("llama-tiny", ["model.from=./model", "batch.context=64"], folder.parent)
    assert resolve_without_download(recipe) == resolve_recipe(recipe)


def refuse_downloads(monkeypatch):
    for function in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(f"huggingface_hub.{function}", lambda *_, **__: pytest.fail("downloaded"))


@pytest.mark.parametrize("name", [name for name in list_recipes() if "-tiny" not in name])
def test_the_sizes_of_each_model_that_the_catalog_names_are_in_it(name, tmp_path):
    recipe = load_recipe(name, (), tmp_path)
    if recipe.model.source:
        found = find_published_sizes(recipe.model.source)
        assert (found.family, found.config) == (recipe.model.family, recipe.model.config)


def test_the_catalog_has_no_sizes_of_other_models():
    assert find_published_sizes("org/model") is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [("./a", True), ("/a", True), ("~/a", True), ("a", True), ("a/b/c", True), ("org/model", False)],
)
def test_a_name_with_one_slash_is_one_of_the_hub_unless_it_is_a_folder(tmp_path, source, expected):
    assert is_path(source, tmp_path) is expected
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert is_path("org/model", tmp_path)
