"""``elastane run``: start a run, show it, and end it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from elastane.cli.command import AsJson, open_console
from elastane.cli.devices import count_cores, count_devices
from elastane.cli.launcher_options import TORCHRUN, LauncherCommand, accept_launcher_options
from elastane.cli.options import argument, expand_options, list_explicit_options
from elastane.cli.run_lookup import find_own_run, find_trained_run
from elastane.cli.runs.address_options import DEFAULT_ADDRESS, CommandWithListen
from elastane.cli.runs.conclusion import conclude_run
from elastane.cli.runs.debugger import NOTE, DebugTerminal, check_debug_options
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.runs.run_spec import (
    build_spec,
    change_spec,
    check_pinned_options,
    check_run_name,
    inherit_settings,
    list_dropped_commands,
    list_remarks,
    restrict_sizes,
)
from elastane.cli.scripts import check_script, check_text, find_script
from elastane.cli.terminal import outlive_output
from elastane.cluster.controller.run_controller import RunController
from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput, ElastaneError, NoSuchRun
from elastane.common.extras import require
from elastane.common.generated_names import generate_name
from elastane.common.home import find_runs_home
from elastane.run.attempts.beginnings import (
    OriginState,
    prepare_beginning,
    read_origin,
    read_stored_origin,
    split_step,
)
from elastane.run.attempts.host_discovery import FollowedHosts, discover_capacity
from elastane.run.attempts.resumption import prepare_rerun, prepare_resumption
from elastane.run.attempts.run_directory import (
    check_name_is_free,
    claim_run_directory,
    reclaim_run_directory,
    refuse_store,
)
from elastane.run.attempts.supervision import run_to_end
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.machines.claims.urls import find_claims, open_claims, prepare_claims
from elastane.run.machines.joining.shipped_code import (
    check_shipped_code,
    compute_code_digest,
    copy_code,
    list_code,
)
from elastane.run.nouns.connection_limits import check_worker_limit
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.hosts import MOST_SLOTS
from elastane.run.nouns.rundir import RECIPE, RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from elastane.run.nouns.trackers import require_trackers
from elastane.run.observability.bound_data import collect_absences
from elastane.run.observability.run_files import Recorded, read_record, read_run

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.cli.runs.watcher import ScriptWatcher, Watcher


class RunCommand(CommandWithListen, LauncherCommand):
    """The command: it has ``--listen``, and refuses options of torchrun in words."""


@accept_launcher_options(TORCHRUN)
@expand_options
def run(
    context: typer.Context,
    script: Annotated[Path | None, argument("SCRIPT", "The training script, a Python file.")] = None,
    args: Annotated[
        list[str] | None, argument("ARGS", "Arguments of the script: all words after SCRIPT.")
    ] = None,
    *,
    options: RunOptions,
    as_json: AsJson = False,
) -> None:
    """Train SCRIPT elastically, in the foreground, until the run is over.

    The first Ctrl-C stops the run at the next commit and writes the model; the
    second ends all processes at once. If the script raises an exception, its
    traceback is printed.

    Options of elastane run come before SCRIPT; all arguments after SCRIPT belong
    to the script.

      $ elastane run --workers 1:4 --name demo train.py --lr 3e-4
      $ elastane run -m mypackage.train --lr 3e-4

    The run writes checkpoints. After a power failure, resume it from the newest
    one with any number of workers; the trained bytes are the same:

      $ elastane run --resume demo --start 2

    Train on in a new run, with more epochs or other settings:

      $ elastane run --from demo train.py --epochs 6

    A script for torchrun needs no change. It restarts at each new size, from
    its own snapshot:

      $ elastane run --contract torchrun --workers 1:4 train.py
    """
    console = open_console(as_json=as_json)
    if options.debug:
        check_debug_options(workers=options.workers, start=options.start, as_json=as_json)
    require("torch", "training needs torch")
    if options.resume is None:
        typed = list_explicit_options(context, left_out=("module",))
        opened = open_new_run(_require_script(script, options), tuple(args or ()), options, typed, console)
    else:
        opened = _open_ended_run(options.resume, script, options, console)
    train_to_end(opened, console, as_json=as_json)


def train_to_end(
    opened: AbstractContextManager[tuple[RunDir, RunRecord]], console: "Console", *, as_json: bool
) -> None:
    """Train an opened run to its end, and show its outcome."""
    outlive_output()
    with opened as (directory, record):
        over = _train(directory, record, console)
    if over is None:
        console.print("this machine has left the run, which goes on", markup=False)
        return
    code = conclude_run(directory, over, console, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _require_script(script: Path | None, options: RunOptions) -> Path:
    """Return the script that was typed."""
    if options.accept_changes:
        raise BadInput("--accept-changes needs --resume", do="use it with --resume RUN")
    if script is None:
        raise BadInput("no script was given", do="elastane run SCRIPT, or elastane run --resume RUN")
    return script


def _advise_on_script(script: Path, options: RunOptions) -> str:
    """Return what to do if there is no such script; after ``--listen`` it may be a mistyped address."""
    if options.listen != DEFAULT_ADDRESS:
        return "check the path; options of elastane run go before it"
    return (
        f"check the path, if {script} is the script; if it should be the address for --listen, write a "
        "numeric one of this machine, such as --listen 10.0.0.5, before the script"
    )


@contextmanager
def open_new_run(
    script: Path,
    args: tuple[str, ...],
    options: RunOptions,
    typed: tuple[str, ...],
    console: "Console",
    *,
    preload: tuple[str, ...] = (),
    sizes: tuple[int, ...] = (),
    recipe: str = "",
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[tuple[RunDir, RunRecord]]:
    """Make and lock the directory of a new run.

    Args:
        script: path of the script; with ``-m`` the name of a module.
        options: as typed, or as a recipe completes them.
        typed: the options for the report.
        preload: modules that all workers need, for the fork server.
        sizes: the only numbers of workers of the run; empty: all within the limits.
        recipe: the content of ``recipe.yaml`` in the directory; empty: there is none.
        environment: further variables of each process of an unmodified script.
        prepare: the last and longest check, called when all options are valid and nothing is written.

    Raises:
        BadInput: the error names the option to change; nothing was written.
    """
    find_script(script, module=options.module, do=_advise_on_script(script, options))
    check_text(*args)
    given = "" if options.contract else options.from_ or ""
    replayed = find_replayed_run(given)
    origin = find_origin_state(given) if given and replayed is None else None
    if origin is not None:
        options = inherit_settings(options, origin.origin.pinned, origin.virtual_ranks)
    elif replayed is not None:
        known = replayed.record.spec
        options = inherit_settings(options, known, known.virtual_ranks)
    stem = script.name.rpartition(".")[2] if options.module else script.stem
    name = generate_name(stem) if options.name is None else options.name
    check_run_name(name)
    if options.run_dir is not None:
        refuse_store(options.run_dir)
    check_name_is_free(name, options.run_dir)
    spec = build_spec(options, script, args, name=name, cpus=count_cores())
    _check_limits(spec)
    spec = msgspec.structs.replace(restrict_sizes(spec, sizes), preload=preload)
    if replayed is not None:
        spec = msgspec.structs.replace(spec, replayed=collect_absences(replayed.ledger))
    if spec.contract is not None and environment:
        contract = msgspec.structs.replace(spec.contract, environment=dict(environment))
        spec = msgspec.structs.replace(spec, contract=contract)
    if spec.checkpoints is not None and "://" in spec.checkpoints.url:
        # Open the storage before anything is written: its package may be missing.
        open_storage(spec.checkpoints.url)
    require_trackers(spec.log, "--log")
    if spec.listen:
        require("nodes", "--listen encrypts the connections to other machines")
    spec = _start_as_discovered(spec, console)
    if prepare is not None:
        prepare()
    if options.ship_code:
        spec = _ship_code(spec, options.run_dir)
    with claim_run_directory(spec, options.run_dir, typed) as directory:
        if recipe:
            replace_file(directory.root / RECIPE, recipe.encode(), durable=True)
        _prepare_claims_of_new_run(directory, spec)
        console.print(f"run {spec.name} in {directory.root}", markup=False)
        if spec.code:
            os.chdir(spec.directory)
        for remark in list_remarks(spec):
            console.print(f"note: {remark}", markup=False)
        if origin is not None:
            prepare_beginning(directory, origin, make_printer(console))
        yield directory, read_record(directory)


def find_replayed_run(text: str) -> Recorded | None:
    """Return the run that ``--from RUN@0`` names: its rounds are made again, without the same sites.

    Raises:
        NoSuchRun: there is no such run.
        BadInput: its data is not bound to sites.
    """
    name, step = split_step(text)
    if step != 0 or "://" in name:
        return None
    run = read_run(find_trained_run(name, "ledger to repeat"))
    if run.record.pinned is None or not run.record.pinned.rank_sites:
        raise BadInput(
            f"--from {text} repeats a run with data that is bound to sites, and {name} has none",
            means="the sites that were absent decide the bits of such a run; any other one repeats itself",
            do="leave --from out, and pass the same script and options",
        )
    return run


def find_origin_state(text: str) -> OriginState:
    """Return the state that ``--from RUN[@STEP]`` names; a run with the whole text as its name wins.

    RUN may be the URL of checkpoints.

    Raises:
        NoSuchRun: there is no such run.
        BadInput: it has no such checkpoint, or no state of its own.
    """
    name, step = split_step(text)
    if "://" in name:
        return read_stored_origin(name, step)
    if step is not None:
        with suppress(NoSuchRun):
            return read_origin(find_trained_run(text, "checkpoints"), None)
    return read_origin(find_trained_run(name, "checkpoints"), step)


def _prepare_claims_of_new_run(run_dir: RunDir, spec: RunSpec) -> None:
    """Prepare the claim list of a run on several machines, which cannot begin without a claim."""
    if not spec.listen:
        return
    try:
        prepare_claims(find_claims(run_dir, spec))
    except ElastaneError:
        # Without this file the directory is free for the same command.
        run_dir.run.unlink(missing_ok=True)
        raise


@contextmanager
def _open_ended_run(
    name: str, script: Path | None, options: RunOptions, console: "Console"
) -> Iterator[tuple[RunDir, RunRecord]]:
    """Lock the directory of a run that has no process left, and prepare its next attempt.

    Raises:
        BadInput: the error names the option to change; nothing was changed.
    """
    if script is not None:
        raise BadInput(
            f"--resume {name} cannot be combined with the script {script}",
            means="a run is resumed with the script and the arguments that it was started with",
            do=f"elastane run --resume {name}",
        )
    check_pinned_options(options)
    ended = find_own_run(
        name,
        means="the controller starts its attempts, and would start another one at the same time",
        do="elastane resume {job}; elastane explain {job} shows what the job waits for",
    )
    with reclaim_run_directory(ended) as directory:
        before = read_record(directory).spec
        spec = change_spec(before, options, count_cores())
        for note in list_dropped_commands(before, spec):
            console.print(f"note: {note}", markup=False)
        _check_limits(spec)
        spec = _start_as_discovered(spec, console)
        if spec.code:
            check_shipped_code(directory, spec.code)
            os.chdir(spec.directory)
        check_script(Path(spec.script))
        require_trackers(spec.log, "--log")
        if spec.listen:
            open_claims(directory, spec).prove_writable()
        printer = make_printer(console)
        if spec.contract is not None:
            yield directory, prepare_rerun(directory, spec, why="requested by the user")
        else:
            yield directory, prepare_resumption(directory, spec, printer, adapted=options.accept_changes)


def _ship_code(spec: RunSpec, directory: Path | None) -> RunSpec:
    """Copy the code of the working directory into the run directory; return the spec that uses it."""
    root, script = Path.cwd().resolve(), Path(spec.script)
    if not script.is_relative_to(root):
        raise BadInput(
            f"--ship-code: {script} is not below the working directory {root}",
            means="the working directory is shipped, with the script",
            do="start the run from a directory above the script",
        )
    files = list_code(root)
    if script.relative_to(root).as_posix() not in {file.name for file in files}:
        raise BadInput(
            f"--ship-code: an ignore file in {root} leaves out the script {script}", do="remove that line"
        )
    try:
        digest = compute_code_digest(root, files)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"--ship-code: a file below {root} cannot be read: {error}", do="leave it out in .elastaneignore"
        ) from error
    run_dir = RunDir((directory or find_runs_home() / spec.name).absolute())
    copy = copy_code(root, files, run_dir, digest)
    path = str(copy / script.relative_to(root))
    return msgspec.structs.replace(spec, code=digest, directory=str(copy), script=path)


def _check_limits(spec: RunSpec) -> None:
    """Check that the run can have its most workers."""
    if spec.contract is not None:
        return  # workers of an unmodified script do not connect to each other, and have no slots
    if not spec.listen and spec.least_ranks > MOST_SLOTS:
        raise BadInput(
            f"the run may have {spec.least_ranks} workers, but one machine has at most {MOST_SLOTS}",
            means="this is the most workers that the agent of a machine watches",
            do=f"--workers MIN:{MOST_SLOTS}; or let other machines take part: --listen",
        )
    check_worker_limit(spec.least_ranks)


def _start_as_discovered(spec: RunSpec, console: "Console") -> RunSpec:
    """Return the spec with the discovered number of workers at the start, if hosts are discovered."""
    if not spec.host_discovery:
        return spec
    capacity = discover_capacity(spec)
    for remark in capacity.remarks:
        console.print(f"note: {remark}", markup=False)
    return msgspec.structs.replace(spec, start=capacity.workers)


def _train(run_dir: RunDir, record: RunRecord, console: "Console") -> RunOver | None:
    """Train to the end of the run, see `run_to_end`; with ``--debug`` the worker gets this terminal."""
    if not record.spec.debug:
        with _start_controller(run_dir, record, console):
            return run_to_end(run_dir, record, RunTerminal(run_dir, console))
    console.print(f"note: {NOTE}", markup=False)
    over = run_to_end(run_dir, record, DebugTerminal(console))
    # The worker has written its traceback to this terminal.
    return None if over is None else msgspec.structs.replace(over, traceback="")


def _start_controller(
    run_dir: RunDir, record: RunRecord, console: "Console"
) -> AbstractContextManager[object]:
    """Return what decides on the number of workers, unless the user does."""
    if record.spec.host_discovery:
        return FollowedHosts(run_dir, record.spec, make_printer(console))
    if not record.spec.self_sizing:
        return nullcontext()
    attempt = 1 if record.resumed is None else record.resumed.times + 1
    return RunController(run_dir, record.spec, attempt, count_devices(), make_printer(console))


class RunTerminal:
    """Display of a run on a terminal or in a log."""

    def __init__(self, run_dir: RunDir, console: "Console") -> None:
        self._run_dir = run_dir
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def view(self, record: RunRecord) -> "Watcher | ScriptWatcher":
        if record.spec.contract is not None:
            from elastane.cli.runs.watcher import ScriptWatcher

            return ScriptWatcher(self._run_dir, record.spec, self._console)
        from elastane.cli.runs.watcher import Watcher

        return Watcher(self._run_dir, record.spec, self._console)


def make_printer(console: "Console") -> Callable[[str], None]:
    return lambda line: console.print(line, markup=False)
