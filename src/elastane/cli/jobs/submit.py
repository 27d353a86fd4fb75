"""``elastane submit``: submit a job to the cluster, from a file or a script."""

import os
import sys
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.jobs.job_file import find_code_root, format_job, is_job_file
from elastane.cli.jobs.job_options import JobOptions
from elastane.cli.jobs.submission import Invocation, build_job, check_program, format_limits, list_notes
from elastane.cli.launcher_options import TORCHRUN, LauncherCommand, accept_launcher_options
from elastane.cli.options import argument, expand_options, spell_with_hyphens
from elastane.cli.terminal import indent_quotation, write_paragraphs
from elastane.cli.timestamps import localize_timestamps
from elastane.cluster.client.context import (
    DEFAULT_TEAM,
    connect,
    find_dashboard_url,
    find_team_of,
    read_running,
)
from elastane.cluster.client.job_handle import poll_job
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.rest import Job
from elastane.common.connections.controller_context import find_context
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.cluster.client.cluster import Cluster

CODES = {"finished": ExitCode.OK, "cancelled": ExitCode.STOPPED_BY_USER}


class Submit(LauncherCommand):
    """The command, with an error that explains where the options of the script belong."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours = iter(args[: args.index("--")] if "--" in args else args)
        options = [option for option in self.get_params(ctx) if option.param_type_name == "option"]
        known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
        valued = {name for option in options if not getattr(option, "is_flag", False) for name in option.opts}
        for word in ours:
            name, equals, _ = spell_with_hyphens(word).partition("=")
            if name in valued and not equals:
                next(ours, None)  # skip its value, which may begin with a dash: --budget -5
            elif word.startswith("-") and name not in known:
                self.refuse(name, args)
                long = [name.removeprefix("--") for name in known if name.startswith("--")]
                near = get_close_matches(name.removeprefix("--"), long, n=1)
                hint = f"Did you mean --{near[0]}?\n" if near else ""
                raise typer.BadParameter(
                    f"{word} is not an option of elastane submit.\n{hint}"
                    f"Options of the script go after --:\nelastane submit SCRIPT -- {word} ..."
                )
        return super().parse_args(ctx, args)


@accept_launcher_options(TORCHRUN)
@expand_options
def submit_script(
    what: Annotated[Path, argument("FILE|SCRIPT", "A job file (.yaml, .yml or .json), or a Python script.")],
    args: Annotated[list[str] | None, argument("ARGS", "Arguments of the script, after --.")] = None,
    *,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Submit a job to the cluster: a job file or a script.

    The job starts as soon as its minimum of workers fits. Options win over the
    fields of the file. Relative paths in a file start from its directory. A
    script runs in your current directory, with the variables of --env. Without
    --ship-code, the machines of the cluster need your files at the same paths.

      $ elastane submit job.yaml --workers 2:8
      $ elastane submit train.py --workers 1:8 --team vision -- --lr 3e-4
      $ elastane submit train.py --workers 1:8 --ship-code
      $ elastane submit train.py --workers 1:8 --dry-run > job.yaml
      $ elastane submit -m mypackage.train --workers 1:8 -- --lr 3e-4

    With --wait, the exit code is 0 if the job finished, 1 if it failed, and 130
    if it was cancelled. Ctrl-C ends the command, not the job.

    With --json, the job as the cluster stores it; with --wait, after its end.
    """
    invocation = describe_invocation()
    spec = build_job(what, tuple(args or ()), options, invocation, team=find_job_team(options))
    if is_job_file(what) and not options.module and _is_controller_here():
        check_program(spec, what)
    submit_job(spec, options, invocation, as_json=as_json)


def describe_invocation() -> Invocation:
    """Return the place and time at which this command was typed."""
    return Invocation(directory=Path.cwd(), environment=os.environ, now=datetime.now().astimezone())


def submit_job(spec: JobSpec, options: JobOptions, invocation: Invocation, *, as_json: bool) -> None:
    """Submit a checked job, or print it for ``--dry-run``; with ``--wait`` follow it to its end."""
    if options.dry_run:
        print_json(spec) if as_json else sys.stdout.write(format_job(spec))
        return
    console = open_console(as_json=as_json)
    with connect() as cluster:
        root = find_code_root(spec)
        spec = spec if root is None else msgspec.structs.replace(spec, code="")
        job = cluster.jobs.submit(spec, code=root, say=lambda line: console.print(line, markup=False))
        console.print(
            f"submitted {job.name}: team {job.team}, {format_limits(job.min_workers, job.max_workers)}",
            markup=False,
        )
        for note in list_notes(job.spec, cluster.documents.list(Team), invocation.now):
            console.print(f"note: {note}", markup=False)
        if options.wait:
            job = _follow_job(cluster, job.name, console)
    if as_json:
        print_json(job)
    elif not options.wait:
        console.print(f"  elastane explain {job.name}    elastane logs {job.name} -f", markup=False)
        if page := find_dashboard_url(find_context().url):
            console.print(f"  {page}/jobs/{job.name}", markup=False)
    if options.wait:
        raise typer.Exit(_conclude_job(job, console))


def _follow_job(cluster: "Cluster", name: str, console: "Console") -> Job:
    """Print the events and progress of a job until it has ended."""
    from rich.text import Text

    from elastane.cli.jobs.job_display import describe_job_event, describe_job_progress

    shown = 0
    why: tuple[str, ...] = ()
    try:
        for job, events in poll_job(cluster, name):
            if job.step > shown:
                shown = job.step
                console.print(describe_job_progress(job))
            for event in events:
                console.print(describe_job_event(event, of_job=True))
            # A job that waits has no events, so print its reasons.
            if job.state == "queued" and job.explained.sentences != why:
                why = job.explained.sentences
                console.print(Text("          " + localize_timestamps(" ".join(why))))
    except KeyboardInterrupt:
        console.print(f"{name} continues; elastane cancel {name} ends it", markup=False)
        raise
    return job


def _conclude_job(job: Job, console: "Console") -> int:
    """Print how a job has ended, and return the exit code."""
    if job.traceback:
        write_paragraphs(indent_quotation(job.traceback), sys.stderr)
    if job.run_dir and job.state == "finished":
        console.print(f"  run  {job.run_dir}", markup=False)
    return CODES.get(job.state, ExitCode.FAILED)


def _is_controller_here() -> bool:
    """Return whether the controller runs on this machine, so that its jobs read the files here."""
    started = read_running()
    try:
        return started is not None and find_context().url == started.url
    except BadInput:
        return False


def find_job_team(options: JobOptions) -> str:
    """Return the team of a job: the typed one, or that of the user."""
    return options.team or _find_team(needed=not options.dry_run)


def _find_team(*, needed: bool) -> str:
    """Return the team of the token, as `elastane login` has saved it or the controller knows it.

    If it is not needed and no controller answers, return the default team.
    """
    try:
        return find_team_of(find_context())
    except ElastaneError:
        if needed:
            raise
        return DEFAULT_TEAM
