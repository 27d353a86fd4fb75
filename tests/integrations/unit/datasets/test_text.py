"""Text files of any kind become the same tokens, once, and again only after a change."""

import gzip
import json
import multiprocessing

import numpy as np
import pytest

from elastane.common.errors import BadInput
from elastane.integrations.datasets import TextFiles, text

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


def build_windows(paths, folder, length=8, tokenizer="bytes", **options):
    return TextFiles(paths, tokenizer, length, separator=END, cache=folder / "cache", **options)


def read_tokens(windows):
    return np.memmap(windows.path, windows._dtype, mode="r").tolist()


EXPECTED = [token for document in DOCUMENTS for token in (*document.encode(), END)]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.parquet"])
def test_documents_are_packed_in_order_each_with_its_separator(folder, name):
    assert read_tokens(build_windows(folder / name, folder)) == EXPECTED


def test_a_plain_text_file_is_one_document_in_pieces(folder, monkeypatch):
    monkeypatch.setattr("elastane.integrations.datasets.documents.PIECE_CHARACTERS", 3)
    content = "żółw\r\nand more\nno end of line"
    (folder / "d.txt").write_bytes(content.encode())
    assert read_tokens(build_windows(folder / "d.txt", folder)) == [*content.encode(), END]


def test_a_pattern_means_its_sorted_matches(folder):
    for name in "21":
        (folder / f"{name}.txt").write_text(name * 10)
    assert read_tokens(build_windows(folder / "?.txt", folder)) == [*b"1" * 10, END, *b"2" * 10, END]


def test_tokens_are_made_once_and_again_after_a_change(folder, monkeypatch):
    written = []
    write = text._write_tokens
    monkeypatch.setattr(
        text,
        "_write_tokens",
        lambda path, *args, **named: written.append(path) or write(path, *args, **named),
    )
    path = folder / "a.jsonl"
    first = build_windows(path, folder)
    assert build_windows(path, folder).path == first.path
    assert len(written) == 1
    path.write_text(json.dumps({"text": "something else"}))
    assert build_windows(path, folder).fingerprint() != first.fingerprint()
    assert len(written) == 2
    moved = folder / "moved.jsonl"
    moved.write_bytes(path.read_bytes())
    build_windows(moved, folder)
    assert len(written) == 2, "the content decides, not the name"


def test_samples_can_have_the_document_number_of_each_position(folder):
    _, _, documents = build_windows(folder / "a.jsonl", folder, length=16, documents=True)[0]
    assert documents.tolist() == [0] * 14 + [1] + [2]


def _build_in_process(folder):
    build_windows(folder / "a.jsonl", folder)


def test_several_processes_make_one_file(folder):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_build_in_process, args=(folder,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert read_tokens(build_windows(folder / "a.jsonl", folder)) == EXPECTED
    assert not list((folder / "cache").glob("*.partial"))


def test_a_tokenizer_of_the_library_tokenizers_encodes_text(folder):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing("one $A", special_tokens=[("one", 1)])
    windows = build_windows(folder / "a.jsonl", folder, length=4, tokenizer=words)
    assert read_tokens(windows)[:5] == [1, 2, 0, END, END]
    bigger = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "one": 2, "two": 1}, "[UNK]"))
    bigger.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert read_tokens(build_windows(folder / "a.jsonl", folder, length=4, tokenizer=bigger))[:3] == [2, 1, 0]


class Own:
    """A tokenizer of the user, with only the method encode."""

    def __init__(self, first):
        self.first = first

    def encode(self, text):
        return [self.first + len(word) for word in text.split()]


def test_a_tokenizer_of_the_user_encodes_text(folder):
    assert read_tokens(build_windows(folder / "a.jsonl", folder, 2, Own(70000)))[:4] == [
        70003,
        70003,
        70005,
        END,
    ]
    assert read_tokens(build_windows(folder / "a.jsonl", folder, 2, Own(3)))[:4] == [6, 6, 8, END]


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
        build_windows(folder / name, folder)
    assert not list((folder / "cache").glob("*.bin")) or words == "has 6 tokens"


def test_the_error_for_a_missing_parquet_column_names_the_columns_of_the_file(folder):
    with pytest.raises(BadInput, match="its columns are text, n"):
        build_windows(folder / "c.parquet", folder, field="body")


def test_tokens_that_do_not_fit_into_the_file_are_refused(folder):
    with pytest.raises(BadInput, match="the tokenizer returned tokens"):
        build_windows(folder / "a.jsonl", folder, 2, Own(-9))
