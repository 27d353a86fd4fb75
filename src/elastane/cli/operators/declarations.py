"""Commands that all kinds of declared documents share: set, list, show, remove."""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, TypeVar

import msgspec
import typer

from elastane.cli.command import AsJson, open_console, print_json, print_outcome, wrap_command
from elastane.cli.operators.tables import print_rows
from elastane.cli.options import argument
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import Cohort, DeclaredEngine, PriorityClass, Reservation, Team, Trigger
from elastane.cluster.nouns.differences import (
    add_article,
    build_lean_document,
    describe_field_changes,
    flatten_fields,
)
from elastane.cluster.nouns.pools import Pool
from elastane.common.documents import format_yaml
from elastane.common.field_checks import check_finite_fields

D = TypeVar("D", Cohort, Team, PriorityClass, DeclaredEngine, Pool, Reservation, Trigger)

Name = Annotated[str, argument("NAME", "A unique name.")]


def change_document(
    noun: str, kind: type[D], name: str, change: Callable[[D | None], D], *, as_json: bool
) -> D:
    """Apply ``change`` to a document, declare the result, print the difference, and return the result."""

    def change_and_check(before: D | None) -> D:
        after = change(before)
        check_finite_fields(after)
        return after

    with connect() as cluster:
        before, after = cluster.documents.amend(kind, name, change_and_check)
    print_outcome(after, format_change(noun, name, before, after), as_json=as_json)
    return after


def format_change(noun: str, name: str, before: msgspec.Struct | None, after: msgspec.Struct) -> str:
    """Return the change of a document as one line."""
    if before == after:
        return f"{noun} {name} is unchanged"
    if before is None:
        fields = ", ".join(
            f"{field} {value}" for field, value in flatten_fields(build_lean_document(after)).items()
        )
        return f"{noun} {name} added: {fields}" if fields else f"{noun} {name} added"
    words = describe_field_changes(
        flatten_fields(msgspec.to_builtins(before)), flatten_fields(msgspec.to_builtins(after))
    )
    return f"{noun} {name} changed: {', '.join(words)}"


def add_document_commands(
    app: typer.Typer,
    noun: str,
    kind: type[D],
    columns: Mapping[str, Callable[[D], str]],
    numbers: Collection[str] = (),
    order: Callable[[D], float] | None = None,
) -> None:
    """Add the commands ``list``, ``show`` and ``remove`` to a group.

    ``columns`` have the cell of a document by their titles; ``numbers`` are the right-aligned ones. Without
    the sort key ``order`` the list is as the controller sorts it, by name.
    """

    def list_documents(as_json: AsJson = False) -> None:
        with connect() as cluster:
            found = cluster.documents.list(kind)
        if order is not None and not as_json:
            found = tuple(sorted(found, key=order))
        print_rows(found, columns, as_json=as_json, numbers=numbers, empty=f"no {noun} is declared")

    list_documents.__doc__ = f"List every {noun}."
    app.command("list")(wrap_command(list_documents))
    add_show_and_remove(app, noun, kind)


def add_show_and_remove(app: typer.Typer, noun: str, kind: type[D]) -> None:
    """Add the commands ``show`` and ``remove`` to a group."""

    def show_document(name: Name, as_json: AsJson = False) -> None:
        with connect() as cluster:
            found = cluster.documents.get(kind, name)
        if as_json:
            print_json(found)
            return
        open_console().print_document(format_yaml(build_lean_document(found)))

    def remove_document(name: Name, as_json: AsJson = False) -> None:
        with connect() as cluster:
            cluster.documents.remove(kind, name)
        print_outcome({"removed": name}, f"{noun} {name} removed", as_json=as_json)

    show_document.__doc__ = f"Show one {noun} in the format of a configuration file."
    remove_document.__doc__ = f"Remove {add_article(noun)}; refused while something else depends on it."
    app.command("show")(wrap_command(show_document))
    app.command("remove")(wrap_command(remove_document))
