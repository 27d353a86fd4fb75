"""Tables, as all of these verbs print them."""

from collections.abc import Collection, Iterable, Sequence

from elastane.cli.jobs.words import print_whole
from elastane.cli.verb import talk


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
    from rich.table import Table  # noqa: PLC0415 - a program that asks for JSON needs no tables
    from rich.text import Text  # noqa: PLC0415

    found = list(rows)
    console = talk()
    if not found:
        console.print(empty, markup=False)
        return
    filled = [place for place in range(len(titles)) if any(row[place] for row in found)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place in filled:
        last = place == filled[-1] and titles[place] not in numbers
        table.add_column(
            titles[place],
            justify="right" if titles[place] in numbers else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for row in found:
        table.add_row(*(Text(row[place]) for place in filled))
    if total is not None:
        table.add_row(*(Text(total[place], style="bold") for place in filled))
    print_whole(console, table)
