"""Tables, as all of these verbs print them."""

from collections.abc import Collection, Iterable, Sequence

from elastane.cli.verb import talk


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    empty: str = "there is none",
    total: Sequence[str] | None = None,
) -> None:
    """Prints rows below their titles; without any, says so.

    Args:
        titles: of the columns.
        rows: a text for each column.
        numbers: titles of the columns that are set to the right.
        empty: what is said if there is no row.
        total: a last row below a line.
    """
    from rich.table import Table  # noqa: PLC0415 - a program that asks for JSON needs no tables
    from rich.text import Text  # noqa: PLC0415

    found = list(rows)
    console = talk()
    if not found:
        console.print(empty, markup=False)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, title in enumerate(titles):
        last = place == len(titles) - 1 and title not in numbers
        table.add_column(
            title,
            justify="right" if title in numbers else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for row in found:
        table.add_row(*(Text(cell) for cell in row))
    if total is not None:
        table.add_row(*(Text(cell, style="bold") for cell in total))
    console.print(table)
