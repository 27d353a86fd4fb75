"""Tables without rules, with every cell in full, so that users can copy names from them.

On a terminal that is too narrow, long lines wrap.
"""

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from elastane.common.safe_text import fold_text

UNBOUNDED = 10_000
BETWEEN = 2
"""Terminal columns between two columns of a table."""
SHORTEST = 8
"""Terminal columns that remain of a cell that is cut."""
NARROWEST = 24
"""Terminal columns that a folded cell has at least."""


def build_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Text | str]],
    *,
    numbers: Collection[str] = (),
    folds: str = "",
    width: int | None = None,
    giving: Sequence[str] = (),
) -> Table:
    """Return a table of rows below their titles, without its empty columns.

    Args:
        rows: each with a text for every column.
        numbers: titles of the right-aligned columns.
        folds: title of the column that may wrap its texts at spaces; empty: none.
        width: of the screen, in columns; None: as wide as the texts need.
        giving: titles of the columns that are cut to fit the width, in this order.
    """
    texts = [[_cell(cell) for cell in row] for row in rows]
    filled = [place for place in range(len(titles)) if any(row[place].plain for row in texts)]
    widths = {
        titles[place]: max(cell_len(words) for words in (titles[place], *(row[place].plain for row in texts)))
        for place in filled
    }
    if width is not None:
        excess = sum(widths.values()) + BETWEEN * (len(widths) - 1) - width
        for title in giving:
            taken = max(0, min(excess, widths.get(title, 0) - SHORTEST))
            excess -= taken
            widths |= {title: widths[title] - taken} if taken else {}
    table = Table(box=None, padding=(0, BETWEEN, 0, 0), pad_edge=False, header_style="dim")
    for title in widths:
        table.add_column(
            title,
            justify="right" if title in numbers else "left",
            width=None if title == folds else widths[title],
            min_width=min(NARROWEST, widths[title]),
            no_wrap=title != folds,
            overflow="fold" if title == folds else "ellipsis",
        )
    for row in texts:
        table.add_row(*(row[place] for place in filled))
    return table


def _cell(cell: Text | str) -> Text:
    """Return a cell as one line of text, so that no line break in it can imitate another row."""
    if isinstance(cell, str):
        return Text(fold_text(cell, UNBOUNDED))
    return Text(fold_text(cell.plain, UNBOUNDED), style=cell.style) if "\n" in cell.plain else cell


def print_wide(console: Console, what: RenderableType) -> None:
    """Print a table in its full width; columns that may fold are fitted to the terminal."""
    if console.is_terminal:
        wide = console.options.update(width=UNBOUNDED)
        console.width = max(console.width, Measurement.get(console, wide, what).minimum)
    else:
        console.width = UNBOUNDED
    console.print(what)
