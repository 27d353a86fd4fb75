"""A text from outside moves no cursor, forges no line and fills no disk."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.api.printable import one_line, paragraphs, storable


@given(st.text(max_size=300), st.integers(1, 200))
def test_one_line_is_printable_and_bounded(text: str, longest: int) -> None:
    shown = one_line(text, longest)
    assert shown.isprintable()
    assert len(shown) <= longest


@given(st.text(max_size=300), st.integers(1, 200))
def test_paragraphs_keep_line_breaks_and_tabs_only(text: str, longest: int) -> None:
    shown = paragraphs(text, longest)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert len(shown) <= longest


def test_a_plain_text_stays_what_it_is() -> None:
    assert one_line("größer als 4 → 8") == "größer als 4 → 8"


def test_an_escape_sequence_and_a_forged_line_can_be_read() -> None:
    assert one_line("\x1b[2Jok\nroot did it\u202e") == "\\x1b[2Jok\\nroot did it\\u202e"


def test_what_is_cut_off_shows() -> None:
    assert one_line("a" * 11, 10) == "a" * 9 + "…"


@given(st.text(st.characters(), max_size=50))
def test_what_is_stored_is_what_was_said_but_for_what_no_database_holds(text):
    kept = storable(text, 1000)
    kept.encode()
    assert "\0" not in kept
    if "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text):
        assert kept == text


def test_what_is_stored_has_a_bound():
    assert len(storable("\0" * 5000, 100)) == 100
    assert storable("x" * 101, 100).endswith("…")
