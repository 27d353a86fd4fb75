"""Errors of mistyped commands: exit code 2, a message on stderr, and with ``--json`` the error on stdout.

Click parses options and arguments before a command begins, so `elastane.cli.command` never sees these errors.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from elastane.cli.command import print_json

TYPED = "elastane.typed"
MISTYPED: type[Exception] = typer.BadParameter.__bases__[0]
"""Base class of the usage errors of click, taken from the copy of click that typer uses."""


class CommandGroup(TyperGroup):
    """The ``elastane`` command: reports usage errors of all commands and groups as JSON too."""

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **more: Any) -> Any:
        typed = tuple(args)
        with report_usage_error(typed):
            context = super().make_context(info_name, args, *rest, **more)
        context.meta[TYPED] = typed
        return context

    def invoke(self, ctx: Any) -> Any:
        with report_usage_error(ctx.meta[TYPED]):
            return super().invoke(ctx)


@contextmanager
def report_usage_error(typed: Sequence[str]) -> Iterator[None]:
    """Print a usage error as JSON if ``--json`` was typed, and raise it again for the message on stderr."""
    try:
        yield
    except MISTYPED as error:
        # All arguments after -- belong to the script.
        ours = typed[: typed.index("--")] if "--" in typed else typed
        if "--json" in ours:
            print_json(describe_error(error))
        raise


def describe_error(error: Any) -> dict[str, object]:
    """Return a usage error in the format that `elastane.cli.command` prints for all other errors."""
    help_ = f"{error.ctx.command_path} --help" if error.ctx is not None else "elastane --help"
    words = {"what": error.format_message(), "means": "nothing was done", "do": f"see {help_}"}
    return {"error": words, "exit_code": error.exit_code}
