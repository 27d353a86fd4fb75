"""Rows of files are read with bounded memory, and a bad one is named by its place."""

import gzip
import json

import pytest

from elastane.common.errors import BadInput
from elastane.integrations.datasets import rows
from elastane.integrations.datasets.documents import read_documents
from elastane.integrations.datasets.rows import BadRow, Row, read_rows

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}, {"text": "zażółć", "n": 3}]


@pytest.fixture
def folder(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = "\n\n".join(map(json.dumps, ROWS))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    table = pyarrow.Table.from_pylist(ROWS)
    parquet.write_table(table, tmp_path / "c.parquet")
    for name, open_writer in (("d.arrow", pyarrow.ipc.new_stream), ("e.arrow", pyarrow.ipc.new_file)):
        with pyarrow.OSFile(str(tmp_path / name), "wb") as file, open_writer(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return tmp_path


@pytest.mark.parametrize("name", ["c.parquet", "d.arrow", "e.arrow"])
def test_a_table_gives_its_rows_with_the_wanted_columns(folder, name):
    found = list(read_rows(folder / name, ("text", "other")))
    assert found == [Row(f"row {n}", {"text": row["text"]}) for n, row in enumerate(ROWS, start=1)]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz"])
def test_lines_are_numbered_with_the_empty_ones(folder, name):
    found = list(read_rows(folder / name, ()))
    assert found == [Row(f"line {2 * n + 1}", row) for n, row in enumerate(ROWS)]


@pytest.mark.parametrize("name", ["a.jsonl", "c.parquet", "d.arrow"])
def test_documents_are_the_texts_of_rows(folder, name):
    assert ["".join(document) for document in read_documents(folder / name, "text")] == [
        row["text"] for row in ROWS
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "a"}\n[1]', "line 2: it is not an object"),
        (b"[" * 200_000, "line 1: it is nested too deeply"),
        (b'{"text": "a\xff"}', "line 1: 'utf-8' codec"),
        (b"{}\n" + b"x" * 100, "line 2 has more than 50 bytes"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, monkeypatch, content, words):
    if b"x" in content:
        monkeypatch.setattr(rows, "LARGEST_BYTES", 50)
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(BadRow, match=words):
        list(read_rows(tmp_path / "a.jsonl", ()))
    with pytest.raises(BadInput):
        list(read_documents(tmp_path / "a.jsonl", "text"))


@pytest.mark.parametrize("name", ["c.parquet", "d.arrow"])
def test_a_table_without_the_columns_names_those_that_it_has(folder, name):
    with pytest.raises(BadRow, match="its columns are text, n"):
        list(read_rows(folder / name, ("body",)))


@pytest.mark.parametrize("name", ["b.jsonl.gz", "c.parquet", "d.arrow", "e.arrow"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_refused(folder, name, share):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadInput, match=f"{name} cannot be read"):
        list(read_rows(folder / name, ("text",)))


def test_bytes_of_another_format_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    for name in ("a.parquet", "b.arrow", "c.jsonl.gz"):
        (tmp_path / name).write_bytes(b"\x80\x04\x95 pickle?" * 50)
        with pytest.raises(BadInput, match=f"{name} cannot be read"):
            list(read_rows(tmp_path / name, ("text",)))
