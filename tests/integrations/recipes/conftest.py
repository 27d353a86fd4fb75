"""Data and tiny models for tests of recipes; the cache of each test session is its own."""

import json
import logging

import pytest


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("recipe-cache")


@pytest.fixture(autouse=True)
def recipe_cache(monkeypatch, session_cache):
    """Keep the cache of the user out of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(session_cache))
    pytest.importorskip("transformers")  # sets the level itself
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return session_cache / "elastane" / "recipes"


@pytest.fixture
def write_rows(tmp_path):
    """Write rows to a jsonl file and return its path."""

    def write(*rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture(scope="session")
def tokenizer(session_cache):
    """A byte-level tokenizer with few merges: nearly every byte is a token."""
    from elastane.integrations.recipes.data.tokenizer import train_tokenizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(session_cache))
        return train_tokenizer(["abc", "xyz"], 259)
