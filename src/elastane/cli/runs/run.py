"""``elastane run``: one process that starts the run, shows it and ends it."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from elastane.api.control import RunOver
from elastane.api.durations import format_duration
from elastane.api.errors import BadInput
from elastane.api.exit_codes import ExitCode
from elastane.api.extras import require
from elastane.api.rundir import RunDir
from elastane.api.spec import RunRecord
from elastane.attempts.resumption import prepare_resumption as another_attempt
from elastane.attempts.run_directory import check_name_is_free, claim_run_directory, reclaim_run_directory
from elastane.attempts.supervision import run_to_end
from elastane.cli.checkpoints.policy import CheckpointOptions
from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.completion import complete_runs
from elastane.cli.devices import count_devices
from elastane.cli.explicit_options import list_explicit_options
from elastane.cli.run_names import generate_name
from elastane.cli.runs.debugger import NOTE, DebugTerminal, check_debug_options
from elastane.cli.runs.ownership import find_own_run
from elastane.cli.runs.run_spec import (
    Changes,
    Options,
    build_spec,
    change_spec,
    check_run_name,
    check_script,
    find_script,
    list_remarks,
)
from elastane.cli.terminal import write_paragraphs
from elastane.controller.embedded import Embedded
from elastane.observability.run_files import read_record
from elastane.storage.urls import open_storage

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.cli.runs.watcher import Watcher

ELASTICITY, TRAINING = "Elasticity", "Training (the trained bytes depend on these)"
CHECKPOINTS, BACK, OUTPUT = "Checkpoints", "Coming back", "Output"
DIGEST_EVERY, SHARD_SIZE = 50, "5GB"
ENDINGS: dict[int, str] = {ExitCode.OK: "finished", ExitCode.STOPPED_BY_USER: "stopped"}


def run(
    context: typer.Context,
    script: Annotated[
        Path | None, typer.Argument(metavar="SCRIPT", help="The Python file that trains.", show_default=False)
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Everything after SCRIPT is the script's own."),
    ] = None,
    *,
    module: Annotated[
        bool,
        typer.Option("--module", "-m", help="SCRIPT is the name of a module, as for python -m."),
    ] = False,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Fewest and most workers. Default: 1 to the number of CPUs.",
            rich_help_panel=ELASTICITY,
        ),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Workers to begin with; from then on only you change their number. Default: MIN, and "
            "the run grows into idle devices of this machine while that is worth it.",
            rich_help_panel=ELASTICITY,
        ),
    ] = None,
    copies: Annotated[
        str | None,
        typer.Option(
            metavar="all|N",
            help="How many workers keep each piece of the optimizer; N-1 may die at once. Default: all.",
            rich_help_panel=ELASTICITY,
        ),
    ] = None,
    transport: Annotated[
        Literal["shared", "tcp"] | None,
        typer.Option(
            help="How gradients travel: shared memory (default), or the workers' connections.",
            rich_help_panel=ELASTICITY,
        ),
    ] = None,
    virtual_ranks: Annotated[
        int | None,
        typer.Option(
            metavar="V",
            help="Fixed pieces of every global batch. Default: global batch / microbatch.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    convergence: Annotated[
        Literal["exact", "fast"],
        typer.Option(
            help="exact: the same bits for any number of workers. fast: sums in the cheapest order.",
            rich_help_panel=TRAINING,
        ),
    ] = "exact",
    seed: Annotated[
        int,
        typer.Option(help="Of the sample order, dropout and initial weights.", rich_help_panel=TRAINING),
    ] = 0,
    threads: Annotated[
        int, typer.Option(help="Threads per worker; the bits depend on it.", rich_help_panel=TRAINING)
    ] = 1,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="EVERY",
            help='"10 min", "500 steps", auto or never. Default: auto, by what one costs and how often '
            "workers die; never above 1 % of the time.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None,
    checkpoint_at: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="epoch, evaluation or both: after each of these, too.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A directory, or s3://bucket/path. Default: checkpoints/ in the run directory.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="So many of the newest stay. Default: 2.", rich_help_panel=CHECKPOINTS
        ),
    ] = None,
    keep_every: Annotated[
        int | None,
        typer.Option(metavar="K", help="Those of every K steps stay, too.", rich_help_panel=CHECKPOINTS),
    ] = None,
    keep_best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC:DIR",
            help="The best by a metric stays, too: eval_loss:min.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            autocompletion=complete_runs,
            help="Go on with RUN, whose processes are all gone, from its newest good checkpoint. Takes no "
            "SCRIPT, and only options of elasticity and checkpoints.",
            rich_help_panel=BACK,
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Although the script or the software has changed; the bytes may then differ.",
            rich_help_panel=BACK,
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="What other terminals call the run. Default: made up.", rich_help_panel=OUTPUT),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Its directory. Default: $ELASTANE_HOME/runs/NAME.", rich_help_panel=OUTPUT),
    ] = None,
    digest_every: Annotated[
        int,
        typer.Option(metavar="K", help="Steps between two digests in the ledger.", rich_help_panel=OUTPUT),
    ] = DIGEST_EVERY,
    save_optimizer: Annotated[
        bool,
        typer.Option(
            "--save-optimizer", help="Write its state beside the finished model.", rich_help_panel=OUTPUT
        ),
    ] = False,
    max_shard_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="A model with more weights is written in shards.", rich_help_panel=OUTPUT
        ),
    ] = SHARD_SIZE,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="One worker, whose input and output are this terminal: breakpoint() works. It may stand "
            "still, and is not replaced when it ends.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train SCRIPT, elastically.

    Stays in the foreground until the run is over. The first Ctrl-C stops at
    the next commit and writes the model; the second ends everything at once.
    When the script raises, its own traceback is printed.

    Options of elastane come before SCRIPT; all after it is the script's own.

      $ elastane run --workers 1:4 --name demo train.py --lr 3e-4
      $ elastane run -m mypackage.train --lr 3e-4

    The state is kept as it goes. After a power cut, go on from there, with any
    number of workers, to the same trained bytes:

      $ elastane run --resume demo --start 2
    """
    kept = _typed(
        every=checkpoint_every,
        at=checkpoint_at,
        url=checkpoint_dir,
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=keep_best,
    )
    console = open_console(as_json=as_json)
    if debug:
        check_debug_options(workers=workers, start=start, as_json=as_json)
    cpus = len(os.sched_getaffinity(0))
    require("torch", "training needs torch")
    if resume is not None:
        if script is not None:
            raise BadInput(
                f"--resume {resume} and the script {script} at once",
                means="a run goes on with the script and the arguments it began with",
                do=f"elastane run --resume {resume}",
            )
        check_pinned_options(
            {
                "--virtual-ranks": virtual_ranks is not None,
                "--convergence": convergence != "exact",
                "--seed": seed != 0,
                "--threads": threads != 1,
                "--name": name is not None,
                "--run-dir": run_dir is not None,
                "--digest-every": digest_every != DIGEST_EVERY,
                "--save-optimizer": save_optimizer,
                "--max-shard-size": max_shard_size != SHARD_SIZE,
                "--module": module,
            }
        )
        checkpoints = CheckpointOptions(**kept) if kept else None
        changes = Changes(
            workers=workers,
            start=start,
            copies=copies,
            transport=transport,
            checkpoints=checkpoints,
            debug=debug,
        )
        ended = find_own_run(
            resume,
            means="the controller starts its attempts, and would start one beside this",
            do="elastane resume {job}; elastane explain {job} says what it waits for",
        )
        with reclaim_run_directory(ended) as directory:
            record = read_record(directory)
            spec = change_spec(record.spec, changes, cpus)
            check_script(Path(spec.script))
            record = another_attempt(directory, spec, make_printer(console), adapted=accept_changes)
            over = _train(directory, record, console)
    else:
        if accept_changes:
            raise BadInput("--accept-changes is about a run that goes on", do="use it with --resume RUN")
        if script is None:
            raise BadInput("no script to train", do="elastane run SCRIPT, or elastane run --resume RUN")
        find_script(script, module=module, do="check the path; options of elastane go before it")
        stem = script.name.rpartition(".")[2] if module else script.stem
        chosen = generate_name(stem) if name is None else name
        check_run_name(chosen)
        check_name_is_free(chosen, run_dir)
        options = Options(
            script=script,
            module=module,
            args=tuple(args or ()),
            workers=workers,
            start=start,
            virtual_ranks=virtual_ranks,
            copies=copies or "all",
            convergence=convergence,
            seed=seed,
            threads=threads,
            transport=transport or "shared",
            digest_every=digest_every,
            checkpoints=CheckpointOptions(**kept),
            save_optimizer=save_optimizer,
            max_shard_size=max_shard_size,
            debug=debug,
        )
        spec = build_spec(options, chosen, cpus)
        if spec.checkpoints is not None and "://" in spec.checkpoints.url:
            # Before anything is written: the package for this place may be missing.
            open_storage(spec.checkpoints.url)
        with claim_run_directory(
            spec, run_dir, list_explicit_options(context, left_out=("module",))
        ) as directory:
            console.print(f"run {spec.name} in {directory.root}", markup=False)
            for remark in list_remarks(spec):
                console.print(f"note: {remark}", markup=False)
            record = read_record(directory)
            over = _train(directory, record, console)
    code = conclude(directory, over, console, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _train(run_dir: RunDir, record: RunRecord, console: "Console") -> RunOver:
    """Train to the end of the run, before this terminal or, to debug, with it."""
    if not record.spec.debug:
        with _start_controller(run_dir, record, console):
            return run_to_end(run_dir, record, RunTerminal(run_dir, console))
    console.print(f"note: {NOTE}", markup=False)
    over = run_to_end(run_dir, record, DebugTerminal(console))
    # The worker has written its traceback to this terminal.
    return msgspec.structs.replace(over, traceback="")


def _start_controller(
    run_dir: RunDir, record: RunRecord, console: "Console"
) -> AbstractContextManager[object]:
    """Somebody decides on the number of workers, unless the user does."""
    if not record.spec.self_sizing:
        return nullcontext()
    attempt = 1 if record.resumed is None else record.resumed.times + 1
    return Embedded(run_dir, record.spec, attempt, count_devices(), make_printer(console))


def check_pinned_options(given: dict[str, bool]) -> None:
    """An attempt of a run may not differ in what the run was begun with.

    Args:
        given: options, and whether each was given.

    Raises:
        BadInput: one was.
    """
    if names := ", ".join(option for option, was in given.items() if was):
        raise BadInput(
            f"--resume and {names} at once",
            means="a run keeps these from its first step to its last",
            do="leave them out, or begin another run",
        )


class RunTerminal:
    """Shows a run to whoever sits before it."""

    def __init__(self, run_dir: RunDir, console: "Console") -> None:
        self._run_dir = run_dir
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def view(self, record: RunRecord) -> "Watcher":
        from elastane.cli.runs.watcher import Watcher  # noqa: PLC0415 - only an attempt that is watched needs the panel

        return Watcher(self._run_dir, record.spec, self._console)


def _typed(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - options of any type
    """Those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def make_printer(console: "Console") -> Callable[[str], None]:
    return lambda line: console.print(line, markup=False)


def conclude(run_dir: RunDir, over: RunOver, console: "Console", *, as_json: bool) -> int:
    """Write the report and say how it ended; returns the exit code."""
    from elastane.attempts.results import write_results  # noqa: PLC0415 - only a run that is over is drawn
    from elastane.observability.logged import latest_values  # noqa: PLC0415 - likewise
    from elastane.observability.tensors import finished_model  # noqa: PLC0415

    if over.traceback:
        write_paragraphs(over.traceback, sys.stderr)
    conclusion = write_results(run_dir, make_printer(console))
    recorded, facts, report = conclusion.recorded, conclusion.facts, conclusion.report
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
            "logged": latest_values(recorded.ledger) if recorded else {},
        }
        numbers = msgspec.to_builtins(facts) if facts else {}
        print_json(answer | {key: value for key, value in numbers.items() if key != "why"})
    print_summary(run_dir, over, console, report)
    return over.code


def print_summary(run_dir: RunDir, over: RunOver, console: "Console", report: Path | None) -> None:
    from elastane.cli.words import loss_text  # noqa: PLC0415 - likewise
    from elastane.observability.facts import facts_of  # noqa: PLC0415
    from elastane.observability.run_files import read_run  # noqa: PLC0415
    from elastane.observability.tensors import finished_model  # noqa: PLC0415

    rows: list[tuple[str, str]] = []
    kept = 0
    if report is not None:
        facts = facts_of(read_run(run_dir))
        ending = ENDINGS.get(over.code, "failed")
        loss = f": loss {loss_text(facts.loss)}" if facts.steps else ""
        console.print(
            f"{ending} after {facts.steps} steps in {format_duration(facts.wall_s)}{loss}", markup=False
        )
        kept = facts.checkpoints
        if facts.digest:
            rows.append(("digest", f"{facts.digest[0]} (parameters after step {facts.digest[1]})"))
        rows.append(("report", str(report)))
    if over.why and over.code:
        console.print(over.why, markup=False)
    onward = "goes back to" if over.lost else "goes on from" if over.code == ExitCode.STOPPED_BY_USER else ""
    if onward and kept:
        console.print(f"elastane run --resume {run_dir.root} {onward} its newest checkpoint", markup=False)
    model = finished_model(run_dir)
    if model is not None:
        rows.insert(0, ("model", str(model)))
    if run_dir.card.exists():
        rows.append(("card", str(run_dir.card)))
    rows.append(("logs", str(run_dir.logs)))
    for title, value in rows:
        console.print(f"  {title:<7} {value}", markup=False)
