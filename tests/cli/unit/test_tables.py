"""Tables on terminals of any width."""

import io

import pytest
from rich.console import Console

from elastane.cli.tables import build_table, print_wide

TITLES = ("token", "user", "made", "cost", "note")
ROWS = [
    ("tok-70590364936b", "root", "2026-11-22 11:59", "1,344.53", "made at the first start"),
    ("tok-604417924586", "ada", "2026-11-22 12:02", "0.00", "of nobody who is here any more"),
]


def render_lines(columns: int, *, terminal: bool = True, **how) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, force_terminal=terminal, color_system=None)
    print_wide(console, build_table(TITLES, ROWS, numbers=("cost",), **how))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("folds", ["", "note"])
def test_no_cell_is_cut_on_any_width(width, folds) -> None:
    page = "\n".join(render_lines(width, folds=folds))
    for row in ROWS:
        for cell in row[:4]:
            assert cell in page
    assert "…" not in page
    assert all(word in page for row in ROWS for word in row[4].split())


def test_a_file_has_a_line_per_row_without_trailing_blanks() -> None:
    lines = render_lines(40, terminal=False)
    assert len(lines) == 1 + len(ROWS)
    assert lines[2].endswith("any more")


def test_on_a_screen_only_the_given_columns_are_shortened_in_their_order() -> None:
    lines = render_lines(70, width=70, giving=("note", "token"))
    assert max(map(len, lines)) <= 70
    assert "tok-70590364936b" in lines[1]
    assert lines[1].endswith("made at the first…")
    assert "1,344.53" in render_lines(60, width=60, giving=("note", "token"))[1]


def test_a_text_is_not_folded_into_a_column_of_single_words() -> None:
    assert "made at the first start" in render_lines(60, folds="note")[1]
    assert any(line.strip() == "any more" for line in render_lines(76, folds="note"))


def test_an_empty_column_is_left_out() -> None:
    console = Console(file=io.StringIO(), width=80)
    print_wide(console, build_table(("a", "b"), [("1", ""), ("2", "")]))
    assert console.file.getvalue().split() == ["a", "1", "2"]
