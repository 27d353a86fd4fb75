"""Tables without lines, of which nothing is cut: names are typed again, and numbers are read.

On a terminal that is too narrow the lines go on below, as those of other programs do.
"""

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from elastane.api.safe_text import fold_text

UNBOUNDED = 10_000
BETWEEN = 2
"""Columns of the terminal between two of the table."""
SHORTEST = 8
"""So much is left of a text that gives way."""
NARROWEST = 24
"""A text is folded into no less."""


def build_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Text | str]],
    *,
    numbers: Collection[str] = (),
    folds: str = "",
    width: int | None = None,
    giving: Sequence[str] = (),
) -> Table:
    """Rows below their titles; a column with nothing in it is left out.

    Args:
        titles: of the columns.
        rows: a text for each column.
        numbers: titles of the columns that are set to the right.
        folds: title of one whose texts may go on in the next line, at a space.
        width: of a screen that shows no more; None: as wide as it must be.
        giving: titles of the columns that are cut to that width, in this order.
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
    """One line, whatever is in it: a row that has two could pass for another row."""
    if isinstance(cell, str):
        return Text(fold_text(cell, UNBOUNDED))
    return Text(fold_text(cell.plain, UNBOUNDED), style=cell.style) if "\n" in cell.plain else cell


def print_wide(console: Console, what: RenderableType) -> None:
    """As wide as it must be; what may be folded, in the width of the terminal."""
    if console.is_terminal:
        wide = console.options.update(width=UNBOUNDED)
        console.width = max(console.width, Measurement.get(console, wide, what).minimum)
    else:
        console.width = UNBOUNDED
    console.print(what)
