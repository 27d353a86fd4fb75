"""A text from outside cannot move the cursor, forge a line or fill the disk."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.common.safe_text import escape_line, escape_text, make_storable


@given(st.text(max_size=300), st.integers(1, 200))
def test_one_line_is_printable_and_bounded(text: str, longest: int) -> None:
    shown = escape_line(text, longest)
    assert shown.isprintable()
    assert len(shown) <= longest


@given(st.text(max_size=300), st.integers(1, 200))
def test_paragraphs_keep_line_breaks_and_tabs_only(text: str, longest: int) -> None:
    shown = escape_text(text, longest)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert len(shown) <= longest


def test_a_printable_text_stays_unchanged() -> None:
    assert escape_line("größer als 4 → 8") == "größer als 4 → 8"


def test_escape_sequences_and_line_breaks_become_readable() -> None:
    assert escape_line("\x1b[2Jok\nroot did it\u202e") == "\\x1b[2Jok\\nroot did it\\u202e"


def test_an_ellipsis_marks_a_cut_text() -> None:
    assert escape_line("a" * 11, 10) == "a" * 9 + "…"


@given(st.text(st.characters(), max_size=50))
def test_a_stored_text_lacks_only_characters_that_databases_refuse(text):
    kept = make_storable(text, 1000)
    kept.encode()
    assert "\0" not in kept
    if "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text):
        assert kept == text


def test_the_length_of_a_stored_text_is_bounded():
    assert len(make_storable("\0" * 5000, 100)) == 100
    assert make_storable("x" * 101, 100).endswith("…")
