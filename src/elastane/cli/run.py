"""``elastane run``: one process that starts the run, shows it and ends it."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from elastane.api.control import RunOver
from elastane.api.errors import ElastaneError, RunFailed
from elastane.api.rundir import RunDir
from elastane.api.spec import RunSpec
from elastane.cli.home import fresh_name
from elastane.cli.last_word import say_last_word
from elastane.cli.run_directory import check_name_is_free, claimed
from elastane.cli.run_spec import Options, check_name, check_script, remarks, spec_of
from elastane.cli.verb import STOPPED_BY_USER, AsJson, print_json, talk

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.cli.watch import Watcher

SHAPE, CHOICES, PLACE = "How many workers", "Pinned for the whole run", "Where and how"
FINISHED = "The finished model"


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The Python file that trains.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Everything after SCRIPT is the script's own."),
    ] = None,
    *,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Fewest and most workers. Default: 1 to the number of CPUs.",
            rich_help_panel=SHAPE,
        ),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(metavar="N", help="Workers to begin with. Default: MIN.", rich_help_panel=SHAPE),
    ] = None,
    virtual_ranks: Annotated[
        int | None,
        typer.Option(
            metavar="V",
            help="Fixed pieces of every global batch. Default: global batch / microbatch.",
            rich_help_panel=CHOICES,
        ),
    ] = None,
    copies: Annotated[
        str,
        typer.Option(
            metavar="all|N", help="Copies of each block of the optimizer state.", rich_help_panel=CHOICES
        ),
    ] = "all",
    convergence: Annotated[
        Literal["exact", "fast"],
        typer.Option(
            help="exact: the same bits for any number of workers. fast: sums in the cheapest order.",
            rich_help_panel=CHOICES,
        ),
    ] = "exact",
    seed: Annotated[
        int,
        typer.Option(help="Of the sample order, dropout and initial weights.", rich_help_panel=CHOICES),
    ] = 0,
    threads: Annotated[
        int, typer.Option(help="Threads per worker; the bits depend on it.", rich_help_panel=CHOICES)
    ] = 1,
    name: Annotated[
        str | None,
        typer.Option(help="What other terminals call the run. Default: made up.", rich_help_panel=PLACE),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Its directory. Default: $ELASTANE_HOME/runs/NAME.", rich_help_panel=PLACE),
    ] = None,
    transport: Annotated[
        Literal["shared", "tcp"],
        typer.Option(
            help="How gradients travel: shared memory, or the workers' connections.", rich_help_panel=PLACE
        ),
    ] = "shared",
    digest_every: Annotated[
        int,
        typer.Option(metavar="K", help="Steps between two digests in the ledger.", rich_help_panel=PLACE),
    ] = 50,
    save_optimizer: Annotated[
        bool,
        typer.Option(
            "--save-optimizer", help="Write its state beside the finished model.", rich_help_panel=FINISHED
        ),
    ] = False,
    max_shard_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="A model with more weights is written in shards.", rich_help_panel=FINISHED
        ),
    ] = "5GB",
    as_json: AsJson = False,
) -> None:
    """Train SCRIPT, elastically.

    Stays in the foreground until the run is over. The first Ctrl-C stops at
    the next commit and writes the model; the second ends everything at once.
    When the script raises, its own traceback is printed.

    Options of elastane come before SCRIPT; all after it is the script's own.

      $ elastane run --workers 1:4 train.py --lr 3e-4
    """
    check_script(script)
    chosen = fresh_name(script.stem) if name is None else name
    check_name(chosen)
    check_name_is_free(chosen, run_dir)
    options = Options(
        script=script,
        args=tuple(args or ()),
        workers=workers,
        start=start,
        virtual_ranks=virtual_ranks,
        copies=copies,
        convergence=convergence,
        seed=seed,
        threads=threads,
        transport=transport,
        digest_every=digest_every,
        save_optimizer=save_optimizer,
        max_shard_size=max_shard_size,
    )
    spec = spec_of(options, chosen, cpus=len(os.sched_getaffinity(0)))
    console = talk(as_json=as_json)
    with claimed(spec, run_dir) as directory:
        console.print(f"run {spec.name} in {directory.root}", markup=False)
        for remark in remarks(spec):
            console.print(f"note: {remark}", markup=False)
        over = asyncio.run(trained(directory, spec, console))
        try:
            say_last_word(directory, over)
        except (OSError, ElastaneError) as error:
            console.print(f"the end of the run is not in its files: {error}", markup=False)
    code = conclude(directory, over, console, as_json=as_json)
    if code:
        raise typer.Exit(code)


async def trained(run_dir: RunDir, spec: RunSpec, console: "Console") -> RunOver:
    """Run the agent to the end of the run, showing it and passing on Ctrl-C."""
    from elastane.agent.agent import Agent  # noqa: PLC0415 - sockets are loaded by whoever needs them
    from elastane.cli.watch import Watcher  # noqa: PLC0415 - likewise the panel

    agent = Agent(run_dir, spec)
    watcher = Watcher(run_dir, spec, console)
    interrupts = 0

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            watcher.say("stopping at the next commit; Ctrl-C again ends it at once")
            agent.drain()
        else:
            watcher.say("ending every process of the run")
            agent.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    showing = asyncio.create_task(watcher.follow())
    try:
        over = await agent.run()
    except OSError as error:
        raise RunFailed(f"cannot start the processes of the run in {run_dir.root}: {error}") from error
    finally:
        await ended(showing, watcher)
    # Killed before it could say so itself: the outcome is still the user's wish, not a failure.
    if interrupts > 1 and over.code != 0:
        return msgspec.structs.replace(over, code=STOPPED_BY_USER, traceback="")
    return over


async def ended(showing: "asyncio.Task[None]", watcher: "Watcher") -> None:
    """Let the view take its last look; a view that failed says so, but does not change the run's outcome."""
    showing.cancel()
    (outcome,) = await asyncio.gather(showing, return_exceptions=True)
    failed = isinstance(outcome, Exception)
    watcher.close(look=not failed)
    if failed:
        watcher.console.print(f"the view failed ({outcome}); the run went on without it", markup=False)


def conclude(run_dir: RunDir, over: RunOver, console: "Console", *, as_json: bool) -> int:
    """Write the report and say how it ended; returns the exit code."""
    from elastane.cli.report import drawn  # noqa: PLC0415 - only a run that is over is drawn
    from elastane.observability.facts import facts_of  # noqa: PLC0415
    from elastane.observability.finished import write_conclusion  # noqa: PLC0415
    from elastane.observability.run_files import read_run  # noqa: PLC0415
    from elastane.observability.tensors import finished_model  # noqa: PLC0415

    if over.traceback:
        sys.stderr.write(over.traceback if over.traceback.endswith("\n") else over.traceback + "\n")
        sys.stderr.flush()
    report: Path | None = None
    try:
        recorded = read_run(run_dir)
        facts = facts_of(recorded)
        report = drawn(recorded)
    except ElastaneError as error:
        console.print(f"no report: {error}", markup=False)
        recorded, facts = None, None
    try:
        if recorded is not None:
            write_conclusion(recorded)
    except ElastaneError as error:
        console.print(f"no metrics and no card: {error}", markup=False)
    model = finished_model(run_dir)
    if as_json:
        answer = {
            "name": recorded.record.spec.name if recorded else run_dir.root.name,
            "run_dir": str(run_dir.root),
            "exit_code": over.code,
            "why": over.why,
            "traceback": over.traceback,
            "model": str(model) if model else None,
            "report": str(report) if report else None,
            "card": str(run_dir.card) if run_dir.card.exists() else None,
        }
        numbers = msgspec.to_builtins(facts) if facts else {}
        print_json(answer | {key: value for key, value in numbers.items() if key != "why"})
    say_the_end(run_dir, over, console, report)
    return over.code


def say_the_end(run_dir: RunDir, over: RunOver, console: "Console", report: Path | None) -> None:
    from elastane.cli.words import duration_text, loss_text  # noqa: PLC0415 - likewise
    from elastane.observability.facts import facts_of  # noqa: PLC0415
    from elastane.observability.run_files import read_run  # noqa: PLC0415
    from elastane.observability.tensors import finished_model  # noqa: PLC0415

    rows: list[tuple[str, str]] = []
    if report is not None:
        facts = facts_of(read_run(run_dir))
        ending = {0: "finished", STOPPED_BY_USER: "stopped"}.get(over.code, "failed")
        loss = f": loss {loss_text(facts.loss)}" if facts.steps else ""
        console.print(
            f"{ending} after {facts.steps} steps in {duration_text(facts.wall_s)}{loss}", markup=False
        )
        if facts.digest:
            rows.append(("digest", f"{facts.digest[0]} (parameters after step {facts.digest[1]})"))
        rows.append(("report", str(report)))
    if over.why and over.code:
        console.print(over.why, markup=False)
    model = finished_model(run_dir)
    if model is not None:
        rows.insert(0, ("model", str(model)))
    if run_dir.card.exists():
        rows.append(("card", str(run_dir.card)))
    rows.append(("logs", str(run_dir.logs)))
    for title, value in rows:
        console.print(f"  {title:<7} {value}", markup=False)
