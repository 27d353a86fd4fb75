"""``elastane ps``: the processes of a run, or of all live runs."""

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated

import msgspec

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.completion import complete_runs
from elastane.cli.options import argument
from elastane.cli.run_lookup import list_runs
from elastane.cli.runs.requests import send_request
from elastane.common.errors import ElastaneError, NoSuchRun
from elastane.common.safe_text import escape_line
from elastane.run.connections.run_lock import is_live
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.control import Answer, AskStatus, ProcessInfo
from elastane.run.nouns.membership import FIRST_NODE_WORD
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.quantities import format_size
from elastane.run.observability.run_files import read_record


def ps(
    run: Annotated[
        str | None,
        argument(
            "RUN", "A run's name, directory or ticket. Default: all live runs.", autocompletion=complete_runs
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the processes of RUN, or of all live runs.

    With --json, a list of objects with the keys run, role, pid, worker,
    generation, virtual_ranks, blocks, state, node, which is empty on the
    machine on which the run began, and for workers sent_bytes and
    received_bytes: what crosses to and from other machines in a usual step;
    activity: the shares in percent of what it did in the last two seconds;
    silent_s: the time since its last progress, 0 if that is a moment ago;
    compute_s: the time for a virtual rank; saving: it writes a checkpoint;
    sites: those of which it may read the data.
    """
    if run is not None:
        answers = {read_run_name(run_dir): send_request(run_dir, AskStatus()) for run_dir in (find_run(run),)}
    else:
        answers = query_live_runs()
    if as_json:
        print_json(
            [
                {"run": name} | msgspec.structs.asdict(row)
                for name, answer in answers.items()
                for row in answer.processes
            ]
        )
    elif not answers:
        open_console().print("no live runs; elastane list shows all runs")
    for name, answer in answers.items() if not as_json else ():
        print_processes(name, answer)


def query_live_runs() -> dict[str, Answer]:
    answers = {}
    for run_dir in list_runs():
        if is_live(run_dir):
            try:
                answers[read_run_name(run_dir)] = send_request(run_dir, AskStatus())
            except NoSuchRun:
                continue  # the run ended after the check
            except (ElastaneError, OSError) as error:
                # An unreadable run must not hide the others.
                print(escape_line(f"{run_dir.root}: {error}"), file=sys.stderr)
    return answers


def read_run_name(run_dir: RunDir) -> str:
    return read_record(run_dir).spec.name


def print_processes(name: str, answer: Answer) -> None:
    from rich.text import Text

    from elastane.cli.tables import build_table, print_wide

    console = open_console()
    console.print(Text(f"{name}: {', '.join(_list_facts(answer))}"))
    if answer.note:
        console.print(answer.note, markup=False)
    for line in describe_traffic(answer.processes):
        console.print(line, markup=False)
    numbers = ("pid", "worker", "generation", "virtual ranks", "blocks")
    nodes = ("node",) if any(row.node for row in answer.processes) else ()
    sites = ("site",) if any(row.sites for row in answer.processes) else ()
    cells = [
        (
            *(row.node or "(first)" for _ in nodes),
            *(", ".join(row.sites) for _ in sites),
            row.role,
            ", ".join(map(str, (row.pid, *row.further))),
            *(
                "" if n is None else str(n)
                for n in (row.worker, row.generation, row.virtual_ranks, row.blocks)
            ),
            row.state,
            describe_activity(row),
        )
        for row in sorted(answer.processes, key=lambda row: row.node)
    ]
    print_wide(
        console, build_table((*nodes, *sites, "role", *numbers, "state", "now"), cells, numbers=numbers)
    )


def describe_activity(process: ProcessInfo) -> str:
    """Return what a worker does most of its time now."""
    words = []
    if process.activity:
        name, share = max(process.activity.items(), key=lambda found: found[1])
        words = [f"{name} {share} %"]
    if process.silent_s:
        words.append(f"for {process.silent_s:.0f} s")
    if process.saving:
        words.append("saves a checkpoint")
    return ", ".join(words)


def describe_traffic(processes: Iterable[ProcessInfo]) -> list[str]:
    """Return what each machine exchanges with the others in a usual step, once all its workers know it."""
    workers = sorted(
        (row for row in processes if row.role == "worker" and row.state in ("member", "draining")),
        key=lambda row: row.node,
    )
    lines = []
    for node, rows in groupby(workers, lambda row: row.node):
        sent, received = zip(*((row.sent_bytes, row.received_bytes) for row in rows), strict=True)
        if None not in sent and None not in received:
            sizes = f"{format_size(sum(sent))}, receives {format_size(sum(received))}"
            lines.append(f"{node or FIRST_NODE_WORD} sends {sizes} per step")
    return lines if any(row.node for row in workers) else []


def _list_facts(answer: Answer) -> list[str]:
    """Return the state of a run in words. The steps of an unmodified script are unknown."""
    processes = 1 if answer.spec is None else answer.spec.worker_processes
    each = [f"{processes} processes a worker"] if processes > 1 else []
    if answer.spec is not None and answer.spec.contract is not None:
        return [answer.state, "an unmodified script", f"generation {answer.generation}", *each]
    step = f"step {answer.step}" + (f" of {answer.steps}" if answer.steps else "")
    loss = [] if answer.loss is None else [f"loss {answer.loss:.4f}"]
    return [answer.state, step, *loss, f"generation {answer.generation}", f"term {answer.term}", *each]
