"""Tables, as all of these verbs print them."""

from collections.abc import Collection, Iterable, Sequence

from elastane.cli.command import open_console


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    empty: str = "there is none",
    total: Sequence[str] | None = None,
) -> None:
    """Prints rows below their titles; without any, says so. A column with nothing in it is left out.

    Args:
        titles: of the columns.
        rows: a text for each column.
        numbers: titles of the columns that are set to the right.
        empty: what is said if there is no row.
        total: a last row below a line.
    """
    from rich.text import Text  # noqa: PLC0415 - a program that asks for JSON needs no tables

    from elastane.cli.tables import build_table, print_wide  # noqa: PLC0415

    found = list(rows)
    console = open_console()
    if not found:
        console.print(empty, markup=False)
        return
    last = max((place for place in range(len(titles)) if any(row[place] for row in found)), default=0)
    folds = "" if titles[last] in numbers else titles[last]
    sums = [] if total is None else [[Text(cell, style="bold") for cell in total]]
    print_wide(console, build_table(titles, [*found, *sums], numbers=numbers, folds=folds))
