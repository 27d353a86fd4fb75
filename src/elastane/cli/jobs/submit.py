"""``elastane submit``: a job for the cluster, from a file or a script."""

import os
import stat
import sys
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from elastane.api.errors import BadInput, ElastaneError
from elastane.api.exit_codes import ExitCode
from elastane.api.jobs import JobSpec
from elastane.api.quotas import Team
from elastane.api.rest import Job
from elastane.attempts.script_modules import find_module_file
from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.jobs.job_file import anchored, is_job_file, read_job, yaml_of
from elastane.cli.jobs.job_polling import poll_job
from elastane.cli.jobs.login import find_own_team
from elastane.cli.jobs.submission import Here, Wishes, limits_text, notes, wished
from elastane.cli.run_names import generate_name
from elastane.cli.runs.run_spec import check_script, find_script
from elastane.cli.terminal import indent_quotation, write_paragraphs
from elastane.cli.timestamps import localize_timestamps
from elastane.client.context import connect, find_context, read_running

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.client.cluster import Cluster

WHOSE, SIZE, RULES = "Whose it is", "How many workers, and where", "When it ends"
TRAINING, CHECKPOINTS, AFTER = "Training (the trained bytes depend on these)", "Checkpoints", "After it"
DEFAULT_TEAM = "default"
CODES = {"finished": ExitCode.OK, "cancelled": ExitCode.STOPPED_BY_USER}


class Submit(TyperCommand):
    """Says where a script's own options go, if one stands where only ours can."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of whichever click typer has
        ours = iter(args[: args.index("--")] if "--" in args else args)
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        known = {name for one in options for name in (*one.opts, *one.secondary_opts)}
        valued = {name for one in options if not getattr(one, "is_flag", False) for name in one.opts}
        for word in ours:
            name, equals, _ = word.partition("=")
            if name in valued and not equals:
                next(ours, None)  # its value, also where that begins with a dash: --budget -5
            elif word.startswith("-") and name not in known:
                long = [one.removeprefix("--") for one in known if one.startswith("--")]
                near = get_close_matches(name.removeprefix("--"), long, n=1)
                meant = f"Did you mean --{near[0]}?\n" if near else ""
                raise typer.BadParameter(
                    f"{word} is no option of elastane submit.\n{meant}"
                    f"Those of the script go after --:\nelastane submit SCRIPT -- {word} ..."
                )
        return super().parse_args(ctx, args)


def submit(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|SCRIPT", help="A job's file (.yaml, .json), or a Python script.", show_default=False
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="After --: the script's own.", show_default=False),
    ] = None,
    *,
    module: Annotated[
        bool,
        typer.Option("--module", "-m", help="SCRIPT is the name of a module, as for python -m."),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Unique in the cluster. Default: made up.", rich_help_panel=WHOSE)
    ] = None,
    team: Annotated[
        str | None,
        typer.Option(
            metavar="TEAM", help="Whose quota it runs on. Default: your token's.", rich_help_panel=WHOSE
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="A word to list jobs by; decides nothing.", rich_help_panel=WHOSE),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Its priority class, such as high.", rich_help_panel=WHOSE),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="Fewest and most workers. Default: 1.", rich_help_panel=SIZE),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(metavar="N", help="Devices of each worker.", rich_help_panel=SIZE)
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND", help="Device kind that will do, best first; repeatable.", rich_help_panel=SIZE
        ),
    ] = None,
    spot: Annotated[
        bool | None,
        typer.Option("--spot/--no-spot", help="May use capacity that can vanish.", rich_help_panel=SIZE),
    ] = None,
    borrow: Annotated[
        bool | None,
        typer.Option("--borrow/--no-borrow", help="May use others' idle quota.", rich_help_panel=SIZE),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="When it should be done: +8h, or a time.", rich_help_panel=RULES),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="COST", help="The most it may cost.", rich_help_panel=RULES)
    ] = None,
    retries: Annotated[
        int | None, typer.Option(metavar="N", help="Restarts after crashes.", rich_help_panel=RULES)
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K[=V]",
            help="A variable of its environment; without a value, as it is here. Repeatable.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of samples, dropout and initial weights.", rich_help_panel=TRAINING),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads per worker.", rich_help_panel=TRAINING)
    ] = None,
    virtual_ranks: Annotated[
        int | None,
        typer.Option(metavar="V", help="Fixed pieces of every global batch.", rich_help_panel=TRAINING),
    ] = None,
    convergence: Annotated[
        Literal["exact", "fast"] | None,
        typer.Option(help="exact: the same bits for any number of workers.", rich_help_panel=TRAINING),
    ] = None,
    copies: Annotated[
        str | None,
        typer.Option(
            metavar="all|N", help="Workers that keep each piece of the optimizer.", rich_help_panel=TRAINING
        ),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="EVERY", help='"10 min", "500 steps", auto or never.', rich_help_panel=CHECKPOINTS
        ),
    ] = None,
    checkpoint_at: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="epoch, evaluation or both.", rich_help_panel=CHECKPOINTS),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A directory, or s3://bucket/path.", rich_help_panel=CHECKPOINTS),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(metavar="N", help="So many of the newest stay.", rich_help_panel=CHECKPOINTS),
    ] = None,
    keep_every: Annotated[
        int | None,
        typer.Option(metavar="K", help="Those of every K steps stay.", rich_help_panel=CHECKPOINTS),
    ] = None,
    keep_best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC:DIR", help="The best stays: eval_loss:min.", rich_help_panel=CHECKPOINTS
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Follow it to its end; exit with its code.", rich_help_panel=AFTER),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", help="Only print the job as YAML.", rich_help_panel=AFTER),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Hand a job to the cluster: a file, or a script.

    It starts as soon as its fewest workers fit. Options win over the file's
    fields. Paths in a file begin where the file is. A script begins in the
    directory that you are in, with the variables that --env names.

      $ elastane submit job.yaml --workers 2:8
      $ elastane submit train.py --workers 1:8 --team vision -- --lr 3e-4
      $ elastane submit train.py --workers 1:8 --dry-run > job.yaml
      $ elastane submit -m mypackage.train --workers 1:8 -- --lr 3e-4

    With --json, the job as the cluster has it, with --wait as it ended.
    With --wait, exit code 0 if it finished, 1 if it failed, 130 if it was
    cancelled; Ctrl-C ends the waiting, not the job.
    """
    here = Path.cwd()
    kept_team = team or _usual_team(needed=not dry_run)
    of_file = not module and is_job_file(what)
    if of_file:
        spec = job_in(what, tuple(args or ()), team=kept_team)
    else:
        spec = job_of(what, tuple(args or ()), here, team=kept_team, module=module)
    wishes = Wishes(
        name=name,
        team=team,
        queue=queue,
        priority=priority,
        workers=workers,
        devices=devices,
        kinds=tuple(kind) if kind else None,
        spot=spot,
        borrow=borrow,
        env=tuple(env or ()),
        deadline=deadline,
        budget=budget,
        retries=retries,
        seed=seed,
        threads=threads,
        virtual_ranks=virtual_ranks,
        convergence=convergence,
        copies=copies,
        checkpoint_every=checkpoint_every,
        checkpoint_at=checkpoint_at,
        checkpoint_dir=checkpoint_dir,
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=keep_best,
    )
    typed = Here(environment=os.environ, now=datetime.now().astimezone())
    spec = anchored(wished(spec, wishes, typed), here)
    if of_file and _controller_is_here():
        check_program_of(spec, what)
    if dry_run:
        print_json(spec) if as_json else sys.stdout.write(yaml_of(spec))
        return
    console = open_console(as_json=as_json)
    with connect() as cluster:
        job = cluster.submit(spec)
        console.print(
            f"submitted {job.name}: team {job.team}, {limits_text(job.min_workers, job.max_workers)}",
            markup=False,
        )
        for note in notes(job.spec, cluster.declared(Team), typed.now):
            console.print(f"note: {note}", markup=False)
        if wait:
            try:
                job = followed(cluster, job.name, console)
            except KeyboardInterrupt:
                console.print(f"{job.name} goes on; elastane cancel {job.name} ends it", markup=False)
                raise
    if as_json:
        print_json(job)
    elif not wait:
        console.print(f"  elastane explain {job.name}    elastane logs {job.name} -f", markup=False)
    if wait:
        raise typer.Exit(concluded(job, console))


def job_in(file: Path, args: tuple[str, ...], *, team: str) -> JobSpec:
    """The job that a file describes, before any option.

    Raises:
        BadInput: there is none.
    """
    if args:
        raise BadInput(
            f"{file} and arguments for a script",
            do=f"write args: into {file}, or submit the script itself",
        )
    return read_job(file, name=generate_name(file.stem), team=team)


def job_of(named: Path, args: tuple[str, ...], here: Path, *, team: str, module: bool) -> JobSpec:
    """The job that a script or a module is, before any option.

    Raises:
        BadInput: there is none.
    """
    find_script(named, module=module)
    if module:
        name = generate_name(named.name.rpartition(".")[2])
        return JobSpec(name=name, team=team, module=str(named), args=args, working_dir=str(here))
    return JobSpec(
        name=generate_name(named.stem),
        team=team,
        script=str(named.absolute()),
        args=args,
        working_dir=str(here),
    )


def check_program_of(spec: JobSpec, file: Path) -> None:
    """Goes on if what a job's file names is on this machine: its script or module, and where that begins.

    Raises:
        BadInput: it is not.
    """
    field = "workingDir"
    try:
        if spec.working_dir:
            _check_folder(Path(spec.working_dir))
        field = "script" if spec.script else "module"
        if spec.script:
            check_script(Path(spec.script))
        elif spec.module:
            find_module_file(spec.module, Path(spec.working_dir))
    except BadInput as error:
        if field == "module":
            do = "correct module: in it, or workingDir:, where the job starts"
        else:
            do = f"correct {field}: in it; a relative path begins where the file is"
        raise BadInput(f"{file}: {error.what}", means=error.means, do=do) from error


def _check_folder(folder: Path) -> None:
    try:
        found = stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError as error:
        raise BadInput(f"there is no directory {folder}") from error
    except OSError as error:
        raise BadInput(f"cannot enter {folder}: {error.strerror}") from error
    if not found:
        raise BadInput(f"{folder} is not a directory")


def followed(cluster: "Cluster", name: str, console: "Console") -> Job:
    """Tell what happens to a job, and how far it is, until it has ended."""
    from rich.text import Text  # noqa: PLC0415

    from elastane.cli.jobs.words import event_text, progress_line  # noqa: PLC0415 - rich

    shown = 0
    why: tuple[str, ...] = ()
    for job, events in poll_job(cluster, name):
        if job.step > shown:
            shown = job.step
            console.print(progress_line(job))
        for event in events:
            console.print(event_text(event, of_job=True))
        # What becomes of a job that runs is told by its events; of one that waits there are none.
        if job.state == "queued" and job.explained.sentences != why:
            why = job.explained.sentences
            console.print(Text("          " + localize_timestamps(" ".join(why))))
    return job


def concluded(job: Job, console: "Console") -> int:
    """Say how a job has ended; its exit code."""
    if job.traceback:
        write_paragraphs(indent_quotation(job.traceback), sys.stderr)
    if job.run_dir and job.state == "finished":
        console.print(f"  run  {job.run_dir}", markup=False)
    return CODES.get(job.state, ExitCode.FAILED)


def _controller_is_here() -> bool:
    """Whether `elastane up` started it on this machine, whose files its jobs then are."""
    started = read_running()
    try:
        return started is not None and find_context().url == started.url
    except BadInput:
        return False


def _usual_team(*, needed: bool) -> str:
    """The token's, which the controller knows where nobody has logged in with it."""
    try:
        return find_context().team or _asked_team() or DEFAULT_TEAM
    except ElastaneError:
        if needed:
            raise
        return DEFAULT_TEAM


def _asked_team() -> str:
    with connect() as cluster:
        return find_own_team(cluster.me())
