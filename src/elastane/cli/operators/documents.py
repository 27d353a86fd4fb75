"""What the groups of verbs about declared documents have in common: set, list, show, remove."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
import typer

from elastane.api.differences import field_changes, flat, lean
from elastane.api.pools import Pool
from elastane.api.priorities import PriorityClass
from elastane.api.quotas import Cohort, Team
from elastane.api.reading import finite_fields
from elastane.api.reservations import Reservation
from elastane.api.rest import Trigger
from elastane.cli.operators.config_file import text_of
from elastane.cli.operators.tables import print_table
from elastane.cli.verb import AsJson, print_json, talk, verb
from elastane.client.context import connect

D = TypeVar("D", Cohort, Team, PriorityClass, Pool, Reservation, Trigger)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]


def group(name: str, help_: str) -> typer.Typer:
    """Verbs that belong together: ``elastane team set``."""
    return typer.Typer(
        name=name, help=help_, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
    )


def amend(noun: str, kind: type[D], name: str, changed: Callable[[D | None], D], *, as_json: bool) -> None:
    """Declares what ``changed`` makes of a document, and says what is different now."""

    def checked(before: D | None) -> D:
        after = changed(before)
        finite_fields(after)
        return after

    with connect() as cluster:
        before, after = cluster.amend(kind, name, checked)
    if as_json:
        print_json(after)
        return
    talk().print(said(noun, name, before, after), markup=False)


def said(noun: str, name: str, before: msgspec.Struct | None, after: msgspec.Struct) -> str:
    """What became of a document, in a line."""
    if before == after:
        return f"{noun} {name} is so already"
    if before is None:
        fields = ", ".join(f"{field} {value}" for field, value in flat(lean(after)).items())
        return f"{noun} {name} added: {fields}" if fields else f"{noun} {name} added"
    words = field_changes(flat(msgspec.to_builtins(before)), flat(msgspec.to_builtins(after)))
    return f"{noun} {name} changed: {', '.join(words)}"


def declare_verbs(  # noqa: PLR0917 - a table's columns
    app: typer.Typer,
    noun: str,
    kind: type[D],
    titles: Sequence[str],
    row: Callable[[D], Sequence[str]],
    numbers: Sequence[str] = (),
    order: Callable[[D], float] | None = None,
) -> None:
    """Gives a group ``list``, ``show`` and ``remove``.

    Args:
        app: the group.
        noun: what one of the documents is called.
        kind: of the documents.
        titles: columns of the list.
        row: a document's cells.
        numbers: columns that are set to the right.
        order: what the list is sorted by; None: names.
    """

    def listing(as_json: AsJson = False) -> None:
        with connect() as cluster:
            found = cluster.declared(kind)
        if as_json:
            print_json(found)
            return
        shown = found if order is None else sorted(found, key=order)
        print_table(titles, map(row, shown), numbers=numbers, empty=f"no {noun} is declared")

    listing.__doc__ = f"Show every {noun}."
    app.command("list")(verb(listing))
    declare_show_and_remove(app, noun, kind)


def declare_show_and_remove(app: typer.Typer, noun: str, kind: type[D]) -> None:
    """Gives a group ``show`` and ``remove``.

    Args:
        app: the group.
        noun: what one of the documents is called.
        kind: of the documents.
    """

    def show(name: Name, as_json: AsJson = False) -> None:
        with connect() as cluster:
            found = cluster.document(kind, name)
        if as_json:
            print_json(found)
            return
        talk().print_document(text_of(lean(found)))

    def remove(name: Name, as_json: AsJson = False) -> None:
        with connect() as cluster:
            cluster.undeclare(kind, name)
        if as_json:
            print_json({"removed": name})
            return
        talk().print(f"{noun} {name} removed", markup=False)

    show.__doc__ = f"Show one {noun}, as a configuration file has it."
    remove.__doc__ = f"Remove a {noun} that nothing else stands on."
    app.command("show")(verb(show))
    app.command("remove")(verb(remove))
