"""Bytes from outside become a value, or raise one error."""

import contextlib
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.common.untrusted_data import DEEPEST, Decoder, Malformed, decode_object, read_bytes
from tests.hostile import replace_with_stand_in


class Known(msgspec.Struct):
    name: str = ""
    data: dict[str, object] = {}


def make_nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("levels", [DEEPEST, 1_000, 100_000])
def test_a_deeply_nested_document_is_refused_whether_its_field_is_known_or_not(levels: int) -> None:
    for field in (b"data", b"unknown"):
        with pytest.raises(Malformed, match="nested"):
            Decoder(Known)(b'{"%s":{"x":%s}}' % (field, make_nested(levels)))


def test_a_deeply_nested_message_is_refused() -> None:
    deep = b"\x81\xa7unknown" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(Malformed, match="nested"):
        Decoder(Known, format="msgpack")(deep)


def test_a_wide_document_is_not_a_deep_one() -> None:
    many = b",".join([make_nested(3)] * 1_000)
    assert Decoder(Known)(b'{"data":{"x":[%s]}}' % many).data


def test_brackets_inside_a_text_do_not_count_as_nesting() -> None:
    name = '["\\' * 1_000
    assert Decoder(Known)(msgspec.json.encode(Known(name=name))).name == name


@given(st.lists(st.text(alphabet='[]{}"\\a', max_size=8), min_size=1, max_size=4), st.integers(-2, 2))
def test_depth_is_counted_exactly_beside_any_texts(texts: list[str], more: int) -> None:
    value: object = texts
    # The innermost list, the document and its field are three levels more.
    for _ in range(DEEPEST + more - 3):
        value = [*texts, value, {}]
    document = msgspec.json.encode({"data": {"x": value}})
    if more > 0:
        with pytest.raises(Malformed, match="nested"):
            Decoder(Known)(document)
    else:
        assert Decoder(Known)(document).data["x"] == value


def test_a_document_that_is_too_large_is_refused() -> None:
    with pytest.raises(Malformed, match="more than 10"):
        Decoder(Known, at_most_bytes=10)(b'{"name":"12345"}')


def test_a_file_that_is_too_large_is_refused(tmp_path) -> None:
    (tmp_path / "large").write_bytes(bytes(100))
    assert len(read_bytes(tmp_path / "large", 100)) == 100
    with pytest.raises(Malformed, match="more than 99"):
        read_bytes(tmp_path / "large", 99)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_a_value_or_malformed(document) -> None:
    for format_ in ("json", "msgpack"):
        with contextlib.suppress(Malformed):
            assert isinstance(Decoder(Known, format=format_)(document), Known)


@pytest.mark.parametrize("stand_in", ["a pipe", "a directory", "an endless device", "a terminal"])
def test_other_than_regular_files_are_refused_without_waiting(tmp_path, stand_in) -> None:
    replace_with_stand_in(tmp_path / "file", stand_in)
    with pytest.raises(Malformed, match="not a regular file"):
        read_bytes(tmp_path / "file")


def test_a_link_that_the_user_names_is_followed(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"1"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "1", "", "{", b"\xff", '{"a": 1}x'])
def test_a_document_that_is_not_an_object_is_malformed(text) -> None:
    with pytest.raises(Malformed):
        decode_object(text)


def test_an_object_may_contain_infinity_and_large_integers() -> None:
    assert decode_object('{"a": Infinity, "b": 340282366920938463463374607431768211456}') == {
        "a": float("inf"),
        "b": 1 << 128,
    }


def test_a_small_file_takes_little_memory_under_a_large_limit(tmp_path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        content = read_bytes(small, 1 << 30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert content == b"x" * 100
    assert peak < 8 << 20


def test_a_file_of_many_chunks_is_read_whole_up_to_its_limit(tmp_path) -> None:
    large, content = tmp_path / "large", bytes(range(256)) * 10_001
    large.write_bytes(content)
    assert read_bytes(large, len(content)) == content
    with pytest.raises(Malformed, match="more than"):
        read_bytes(large, len(content) - 1)
