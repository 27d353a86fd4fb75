"""A command that was mistyped: exit code 2 and words for people; for programs the error where the answer is.

Options and arguments are read before any verb begins, so `elastane.cli.command` never hears of these.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from elastane.cli.command import print_json

TYPED = "elastane.typed"
MISTYPED: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all that click finds wrong with what was typed, of whichever click typer has."""


class CommandGroup(TyperGroup):
    """All verbs, and the groups of verbs."""

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **more: Any) -> Any:  # noqa: ANN401
        typed = tuple(args)
        with report_usage_error(typed):
            context = super().make_context(info_name, args, *rest, **more)
        context.meta[TYPED] = typed
        return context

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        with report_usage_error(ctx.meta[TYPED]):
            return super().invoke(ctx)


@contextmanager
def report_usage_error(typed: Sequence[str]) -> Iterator[None]:
    """Prints what was wrong as JSON if JSON was asked for; the words go to stderr as without."""
    try:
        yield
    except MISTYPED as error:
        # After -- all is the script's own.
        ours = typed[: typed.index("--")] if "--" in typed else typed
        if "--json" in ours:
            print_json(describe_error(error))
        raise


def describe_error(error: Any) -> dict[str, object]:  # noqa: ANN401
    """As `elastane.cli.command` writes the others."""
    help_ = f"{error.ctx.command_path} --help" if error.ctx is not None else "elastane --help"
    words = {"what": error.format_message(), "means": "nothing was done", "do": f"see {help_}"}
    return {"error": words, "exit_code": error.exit_code}
