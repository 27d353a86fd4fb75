"""Tables of the commands for operators."""

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
