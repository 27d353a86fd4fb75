"""Tables of the commands for operators."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from elastane.cli.command import open_console, print_json

T = TypeVar("T")


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    empty: str = "there is none",
    total: Sequence[str] | None = None,
) -> None:
    """Print rows below their titles, without the empty columns; ``empty`` if there are no rows.

    ``numbers`` are the titles of the right-aligned columns, and ``total`` is a last row in bold.
    """
    from rich.text import Text

    from elastane.cli.tables import build_table, print_wide

    found = list(rows)
    console = open_console()
    if not found:
        console.print(empty, markup=False)
        return
    last = max((place for place in range(len(titles)) if any(row[place] for row in found)), default=0)
    folds = "" if titles[last] in numbers else titles[last]
    sums = [] if total is None else [[Text(cell, style="bold") for cell in total]]
    print_wide(console, build_table(titles, [*found, *sums], numbers=numbers, folds=folds))


def print_rows(
    rows: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    *,
    as_json: bool,
    numbers: Collection[str] = (),
    empty: str = "there is none",
) -> None:
    """Print values: with ``--json`` as they are, otherwise as a table.

    ``columns`` have the cell of a value by their titles; for the others see `print_table`.
    """
    if as_json:
        print_json(rows)
        return
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    print_table(tuple(columns), cells, numbers=numbers, empty=empty)
