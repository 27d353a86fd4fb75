"""What all verbs share: how they fail, what they print where, and the arguments they have in common."""

import functools
import sys
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Annotated, ParamSpec, TypeAlias, cast

import msgspec
import typer

from elastane.api.errors import ElastaneError
from elastane.api.exit_codes import ExitCode
from elastane.cli.completion import complete_jobs, complete_runs, complete_runs_and_jobs
from elastane.cli.terminal import Terminal, escape_json

P = ParamSpec("P")

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Machine-readable on stdout; everything else goes to stderr.")
]
RunName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of a run, or its directory.",
        show_default=False,
        autocompletion=complete_runs,
    ),
]
NAME = typer.Argument(
    metavar="NAME",
    help="A run's name or directory, or a job's name.",
    show_default=False,
    autocompletion=complete_runs_and_jobs,
)
Name: TypeAlias = Annotated[str, NAME]
JobName: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of a job of the cluster.", show_default=False, autocompletion=complete_jobs
    ),
]
JobNames: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB", help="Names of jobs of the cluster.", show_default=False, autocompletion=complete_jobs
    ),
]
AsJob: TypeAlias = Annotated[
    bool,
    typer.Option("--job", help="The cluster's job, though a run of that name is here.", show_default=False),
]


def wrap_command(function: Callable[P, None]) -> Callable[P, None]:
    """Give a command its exit codes: failures become them here and nowhere else."""

    @functools.wraps(function)
    def shell(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except ElastaneError as error:
            typed = [kwargs.get("job"), kwargs.get("name"), *cast("list[str]", kwargs.get("jobs") or [])]
            told = add_suggestion(error, typed)
            # A program finds the reason where it looks for the answer; a person, in words.
            if kwargs.get("as_json"):
                words = {"what": told.what, "means": told.means, "do": told.do}
                print_json({"error": words, "exit_code": error.exit_code})
            print(f"error: {told}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.STOPPED_BY_USER) from None

    return shell


def add_suggestion(error: ElastaneError, typed: Collection[object]) -> ElastaneError:
    """The error; where the cluster knows no job of a name that was typed, with the one that may be meant."""
    unknown = [name for name in typed if error.what == f"there is no job {name}"]
    near = get_close_matches(str(unknown[0]), complete_jobs(""), n=1) if unknown else []
    return ElastaneError(error.what, means=error.means, do=f"did you mean {near[0]}?") if near else error


def print_json(value: object) -> None:
    """One JSON value on one line of stdout."""
    print(escape_json(msgspec.json.encode(value)), flush=True)


def open_console(*, as_json: bool = False) -> Terminal:
    """Where words go: stdout, or stderr when stdout is for a machine."""
    return Terminal(stderr=as_json)
