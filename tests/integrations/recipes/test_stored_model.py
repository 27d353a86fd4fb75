"""A model at a URL: copied once for each machine, and known by the digest of its files."""

import json
from pathlib import Path

import pytest

from elastane.common.errors import BadField, BadInput
from elastane.common.user_cache import find_cache
from elastane.integrations.recipes.resolution import (
    load_recipe,
    pin_model,
    resolve_recipe,
    resolve_without_download,
)
from elastane.integrations.recipes.stored_model import fetch_model, fetch_model_config

WEIGHTS = b"weights"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    """The cache of a machine that has no model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return find_cache("models")


@pytest.fixture
def store(tmp_path) -> Path:
    """A store with a model, and files that no run needs."""
    place = tmp_path / "store"
    (place / "original").mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64}))
    (place / "tokenizer.json").write_text("{}")
    for name in ("model.safetensors", "consolidated.safetensors", "own.py", "original/model.safetensors"):
        (place / name).write_bytes(WEIGHTS)
    return place


@pytest.fixture
def written(store, tmp_path):
    changes = [f"model.from={store.as_uri()}", "batch.context=64"]
    return load_recipe("llama-tiny", changes, tmp_path)


def list_models(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def test_a_model_is_copied_and_brings_its_tokenizer(written, cache, store):
    resolved = resolve_recipe(written)
    (folder,) = list_models(cache)
    assert resolved.model.source == resolved.data.tokenizer == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert resolve_without_download(written).model.source == store.as_uri()


def test_another_machine_gets_the_same_files_or_none(written, cache, store, monkeypatch, tmp_path):
    pinned = pin_model(resolve_recipe(written), written)
    assert (pinned.model.source, pinned.data.tokenizer) == (store.as_uri(), "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    resolved = resolve_recipe(pinned)
    assert Path(resolved.model.source).parent == find_cache("models")
    assert pin_model(resolved, pinned) == pinned

    (store / "model.safetensors").write_bytes(WEIGHTS[::-1])
    assert resolve_recipe(pinned) == resolved, "a machine that has them asks no store"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    with pytest.raises(BadField, match="has other files than those with which this recipe was submitted"):
        resolve_recipe(pinned)
    assert list_models(find_cache("models")) == []
    # Without a digest it is the model that is there now.
    newer = resolve_recipe(written)
    assert Path(newer.model.source, "model.safetensors").read_bytes() == WEIGHTS[::-1]


def test_two_urls_with_the_same_files_are_one_model(written, cache, store, tmp_path):
    first = fetch_model(store.as_uri(), "")
    store.rename(tmp_path / "moved")
    assert fetch_model((tmp_path / "moved").as_uri(), "") == first
    assert list_models(cache) == [first]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config.json": None}, "has no config.json"),
        ({"config.json": b"["}, "config.json cannot be read"),
        ({"config.json": b'{"quantization_config": {"quant_method": "gptq"}}'}, "quantized weights: gptq"),
        ({"model.safetensors": None}, "has a config.json and no weights"),
    ],
)
def test_a_store_without_a_model_is_refused_by_its_url(store, cache, change, words):
    for name, content in change.items():
        (store / name).unlink()
        if content is not None:
            (store / name).write_bytes(content)
    with pytest.raises(BadField, match=words) as refused:
        fetch_model(store.as_uri(), "")
    assert str(store) in refused.value.what
    assert list_models(cache) == []


def test_a_place_without_files_is_refused(tmp_path):
    with pytest.raises(BadField, match="gone has no files"):
        fetch_model((tmp_path / "gone").as_uri(), "")


def test_a_cache_that_cannot_be_written_is_named(store, cache):
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"")
    with pytest.raises(BadInput, match="cannot copy the model") as refused:
        fetch_model(store.as_uri(), "")
    assert "XDG_CACHE_HOME" in refused.value.do


def test_a_plan_copies_the_configuration_only(store):
    (store / "model.safetensors").unlink()
    assert [path.name for path in fetch_model_config(store.as_uri()).iterdir()] == ["config.json"]
    (store / "config.json").unlink()
    with pytest.raises(BadField, match=r"has no config\.json"):
        fetch_model_config(store.as_uri())


def test_a_digest_is_one(written):
    with pytest.raises(BadInput, match="digest"):
        load_recipe("llama-tiny", [f"model.from={written.model.source}", "model.digest=../x"], Path.cwd())
