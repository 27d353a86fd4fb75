"""Tokenizers of recipes: trained alike in every process, or read from a folder without running its code."""

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from elastane.common.errors import BadInput
from elastane.integrations.recipes.data.open_data import load_tokenizer
from elastane.integrations.recipes.data.spec import DataSpec
from elastane.integrations.recipes.data.tokenizer import MOST_CHARACTERS, train_tokenizer

TEXT = "the quick brown fox, zażółć gęślą jaźń 😀\n\tand so on. " * 50


def test_a_trained_tokenizer_returns_every_text(tokenizer):
    trained = train_tokenizer([TEXT], 400)
    for each in (tokenizer, trained):
        assert each.decode(each(TEXT)["input_ids"]) == TEXT
    assert len(trained(TEXT)["input_ids"]) < len(tokenizer(TEXT)["input_ids"])
    assert (trained.eos_token, trained.pad_token) == ("<|endoftext|>", "<|pad|>")


def test_the_same_text_gives_the_same_bytes_in_every_process(tmp_path):
    program = (
        "import hashlib, sys;"
        "from elastane.integrations.recipes.data.standard_library import write_standard_library as w;"
        "from elastane.integrations.recipes.data.tokenizer import train_tokenizer as t;"
        "text = w('pretrain').read_text();"
        "t([text[:200_000]], 1000).save_pretrained(sys.argv[1]);"
    )
    digests = set()
    for number in ("1", "2"):
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / number), "PYTHONHASHSEED": number}
        folder = tmp_path / f"tokenizer-{number}"
        subprocess.run([sys.executable, "-c", program, folder], env=environment, check=True)
        digests.add(hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_only_the_beginning_of_long_data_is_read():
    def texts():
        yield TEXT
        yield "x" * MOST_CHARACTERS
        pytest.fail("the tokenizer had enough text")

    assert len(train_tokenizer(texts(), 300)) == 300


@pytest.mark.parametrize("texts", [[], [""], ["  ", "\n"]])
def test_data_without_text_trains_no_tokenizer(texts):
    with pytest.raises(BadInput, match="the data has no text to train a tokenizer on"):
        train_tokenizer(texts, 300)


def test_training_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    train_tokenizer(["another text"], 300)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    train_tokenizer(["yet another text"], 300)
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.fixture
def folder(tmp_path):
    train_tokenizer([TEXT], 400).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def load(folder, task="finetune", **options):
    return load_tokenizer(DataSpec(tokenizer=str(folder), **options), task)


def test_a_tokenizer_comes_from_its_folder_with_its_template(folder):
    loaded = load(folder)
    assert loaded(TEXT)["input_ids"] == train_tokenizer([TEXT], 400)(TEXT)["input_ids"]
    assert "im_start" in loaded.chat_template


def test_a_tokenizer_without_template_and_padding_gets_them_for_conversations_only(folder):
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", pad_token=None)
    assert load(folder, "pretrain").chat_template is None
    loaded = load(folder)
    assert "im_start" in loaded.chat_template
    assert loaded.pad_token == loaded.eos_token


def test_a_tokenizer_that_ends_no_text_is_refused(folder):
    change(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(BadInput, match="has no token that ends a text"):
        load(folder, "pretrain")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"has no tokenizer.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\x80\x04pickle", b"[" * 100_000, b'{"model": {"type": "BPE"}}']
)
def test_a_damaged_tokenizer_is_refused_in_one_sentence(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"data.tokenizer: .*tokenizer cannot be read"):
        load(folder)


def test_code_in_the_folder_does_not_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('the code ran')\n")
    change(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["evil.T", "evil.T"]},
        tokenizer_class="T",
    )
    with suppress(BadInput):
        load(folder)


def test_a_template_that_is_not_text_is_refused(tmp_path, folder):
    (tmp_path / "t.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"data.chat_template: .* cannot be read"):
        load(folder, chat_template=str(tmp_path / "t.jinja"))
