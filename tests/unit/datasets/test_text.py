"""Text becomes tokens once, the same ones whatever the file's kind, and again only when something changed."""

import gzip
import json
import multiprocessing

import numpy as np
import pytest

from elastane.api.errors import BadInput
from elastane.datasets import TextFiles, text

DOCUMENTS = ["one two three", "", "żółw 😀\nlast line", "x" * 40]
END = 256


@pytest.fixture
def folder(tmp_path):
    lines = "".join(json.dumps({"text": document, "n": 1}) + "\n\n" for document in DOCUMENTS)
    (tmp_path / "a.jsonl").write_text(lines)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(lines)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": DOCUMENTS, "n": [1] * 4}), tmp_path / "c.parquet")
    return tmp_path


def made(paths, folder, length=8, tokenizer="bytes", **options):
    return TextFiles(paths, tokenizer, length, separator=END, cache=folder / "cache", **options)


def tokens_of(windows):
    return np.memmap(windows.path, windows._dtype, mode="r").tolist()


EXPECTED = [token for document in DOCUMENTS for token in (*document.encode(), END)]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.parquet"])
def test_documents_are_packed_in_order_each_with_its_separator(folder, name):
    assert tokens_of(made(folder / name, folder)) == EXPECTED


def test_a_plain_file_is_one_document_in_pieces(folder, monkeypatch):
    monkeypatch.setattr("elastane.datasets.documents.PIECE_CHARACTERS", 3)
    content = "żółw\r\nand more\nno end of line"
    (folder / "d.txt").write_bytes(content.encode())
    assert tokens_of(made(folder / "d.txt", folder)) == [*content.encode(), END]


def test_a_pattern_means_its_sorted_matches(folder):
    for name in "21":
        (folder / f"{name}.txt").write_text(name * 10)
    assert tokens_of(made(folder / "?.txt", folder)) == [*b"1" * 10, END, *b"2" * 10, END]


def test_tokens_are_made_once_and_again_after_a_change(folder, monkeypatch):
    written = []
    write = text._write_tokens
    monkeypatch.setattr(
        text,
        "_write_tokens",
        lambda path, *args, **named: written.append(path) or write(path, *args, **named),
    )
    path = folder / "a.jsonl"
    first = made(path, folder)
    assert made(path, folder).path == first.path
    assert len(written) == 1
    path.write_text(json.dumps({"text": "something else"}))
    assert made(path, folder).fingerprint() != first.fingerprint()
    assert len(written) == 2
    moved = folder / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    made(moved, folder)
    assert len(written) == 2, "the content decides, not the name"


def test_samples_can_have_the_document_number_of_each_position(folder):
    _, _, documents = made(folder / "a.jsonl", folder, length=16, documents=True)[0]
    assert documents.tolist() == [0] * 14 + [1] + [2]


def _make(folder):
    made(folder / "a.jsonl", folder)


def test_several_processes_make_one_file(folder):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_make, args=(folder,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert tokens_of(made(folder / "a.jsonl", folder)) == EXPECTED
    assert not list((folder / "cache").glob("*.partial"))


def test_a_tokenizer_of_tokenizers(folder):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing("one $A", special_tokens=[("one", 1)])
    windows = made(folder / "a.jsonl", folder, length=4, tokenizer=words)
    assert tokens_of(windows)[:5] == [1, 2, 0, END, END]
    bigger = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "one": 2, "two": 1}, "[UNK]"))
    bigger.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert tokens_of(made(folder / "a.jsonl", folder, length=4, tokenizer=bigger))[:3] == [2, 1, 0]


class Own:
    """One's own tokenizer, of which nothing is known but what it gives."""

    def __init__(self, first):
        self.first = first

    def encode(self, text):
        return [self.first + len(word) for word in text.split()]


def test_a_user_defined_tokenizer(folder):
    assert tokens_of(made(folder / "a.jsonl", folder, 2, Own(70000)))[:4] == [70003, 70003, 70005, END]
    assert tokens_of(made(folder / "a.jsonl", folder, 2, Own(3)))[:4] == [6, 6, 8, END]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", '{"text": "a"}\n{"body": "b"}', "no text under 'text': line 2"),
        ("x.jsonl", "no json", "no text under 'text': line 1"),
        ("x.jsonl", '{"text": 3}', "has a value of type int"),
        ("x.txt", b"\xff\xfe\xfd", "cannot be read"),
        ("y.txt", None, "no such file"),
        ("x.txt", "short", "has 6 tokens"),
    ],
)
def test_the_error_names_a_file_that_cannot_be_read(folder, name, content, words):
    if content is not None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=words):
        made(folder / name, folder)
    assert not list((folder / "cache").glob("*.bin")) or words == "has 6 tokens"


def test_a_parquet_file_without_the_column_names_those_it_has(folder):
    with pytest.raises(BadInput, match="its columns are text, n"):
        made(folder / "c.parquet", folder, field="body")


def test_numbers_that_do_not_fit_are_refused(folder):
    with pytest.raises(BadInput, match="the tokenizer returned tokens"):
        made(folder / "a.jsonl", folder, 2, Own(-9))
