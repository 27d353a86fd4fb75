"""Parts that all commands share: exit codes, output, common arguments, and errors of mistyped commands."""

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeAlias, cast

import msgspec
import typer
from typer.core import TyperGroup

from elastane.cli.completion import complete_jobs, complete_runs, complete_runs_and_jobs
from elastane.cli.options import argument, flag
from elastane.cli.terminal import Terminal, escape_json
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.exit_codes import ExitCode

P = ParamSpec("P")

AsJson: TypeAlias = Annotated[
    bool, flag("Print the result as JSON on stdout; messages go to stderr.", "--json")
]
RunName: TypeAlias = Annotated[
    str, argument("RUN", "A run's name, directory or ticket.", autocompletion=complete_runs)
]
NAME = typer.Argument(
    metavar="NAME",
    help="A run's name, directory or ticket, or a job's name.",
    autocompletion=complete_runs_and_jobs,
)
Name: TypeAlias = Annotated[str, NAME]
JobName: TypeAlias = Annotated[
    str, argument("JOB", "The name of a job of the cluster.", autocompletion=complete_jobs)
]
JobNames: TypeAlias = Annotated[
    list[str], argument("JOB", "The names of one or more jobs of the cluster.", autocompletion=complete_jobs)
]
AsJob: TypeAlias = Annotated[
    bool, flag("Use the cluster's job, even if a run here has the same name.", "--job")
]
TYPED = "elastane.typed"
MISTYPED: type[Exception] = typer.BadParameter.__bases__[0]
"""Base class of the usage errors of click, taken from the copy of click that typer uses."""


def wrap_command(function: Callable[P, None]) -> Callable[P, None]:
    """Return the command with its failures turned into messages and exit codes."""

    @functools.wraps(function)
    def shell(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            check_working_directory()
            function(*args, **kwargs)
        except ElastaneError as error:
            typed = [kwargs.get("job"), kwargs.get("name"), *cast("list[str]", kwargs.get("jobs") or [])]
            print_error(add_suggestion(error, typed), error.exit_code, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.STOPPED_BY_USER) from None

    return shell


def check_working_directory() -> None:
    """Check that the working directory exists, because names of scripts and of runs are looked up in it."""
    try:
        Path.cwd()
    except OSError as error:
        raise BadInput(
            f"the working directory cannot be found: {error.strerror}",
            means="it has been removed, perhaps made anew since; nothing was done",
            do="change to a directory that exists, or again to this one: cd .",
        ) from error


def print_error(error: ElastaneError, exit_code: int, *, as_json: bool) -> None:
    """Print an error on stderr, and with ``--json`` on stdout too."""
    # A program reads the reason from stdout, where the result would be; a person reads it on stderr.
    if as_json:
        parts = {"what": error.what, "means": error.means, "do": error.do}
        print_json({"error": parts, "exit_code": exit_code})
    print(f"error: {error}", file=sys.stderr)


def add_suggestion(error: ElastaneError, typed: Collection[object]) -> ElastaneError:
    """Return the error; if it is about an unknown job, suggest the job with the closest name."""
    unknown = [name for name in typed if error.what == f"there is no job {name}"]
    near = get_close_matches(str(unknown[0]), complete_jobs(""), n=1) if unknown else []
    return ElastaneError(error.what, means=error.means, do=f"did you mean {near[0]}?") if near else error


def print_json(value: object) -> None:
    """Print a value as one line of JSON on stdout."""
    # A closed stdout is None, and a stream in memory has no encoding.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(escape_json(msgspec.json.encode(value), encoding), flush=True)


def print_outcome(value: object, words: str, *, as_json: bool) -> None:
    """Print what a command has done: the value with ``--json``, otherwise a line of words."""
    if as_json:
        print_json(value)
    else:
        open_console().print(words, markup=False)


def open_console(*, as_json: bool = False) -> Terminal:
    """Return the console for messages: stdout, or stderr with ``--json``."""
    return Terminal(stderr=as_json)


def make_group(
    name: str, help_: str, commands: Mapping[str, Callable[..., None]], **context: Any
) -> typer.Typer:
    """Return a group of commands, such as ``elastane team``; ``context`` has settings of all of them."""
    group = typer.Typer(
        name=name, help=help_, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
    )
    for word, command in commands.items():
        group.command(word, context_settings=context)(wrap_command(command))
    return group


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
