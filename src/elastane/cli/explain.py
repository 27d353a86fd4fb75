"""``elastane explain``: the reasons for the size of a run or a job."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastane.cli.command import AsJob, AsJson, Name, open_console, print_json
from elastane.cli.run_lookup import find_run_or_job
from elastane.cli.runs.requests import send_request
from elastane.cli.timestamps import describe_job_stop_time, format_timestamp, localize_timestamps
from elastane.cluster.client.context import connect
from elastane.cluster.controller.run_controller import read_run_explanation
from elastane.cluster.nouns.history import DecisionRecord
from elastane.common.errors import BadInput
from elastane.common.safe_text import fold_text
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record

if TYPE_CHECKING:
    from rich.console import Console


def explain(name: Name, job: AsJob = False, as_json: AsJson = False) -> None:
    """Explain why NAME has its size or waits, and what would change that.

    The command then lists the decisions that led to this size, newest first,
    each with its main reason.

    With --json, one object with the keys job, state, wanted, workers,
    explanation and decisions. Each decision has all its reasons.
    """
    run_dir = find_run_or_job(name, job=job)
    # The run of a job may be on this machine too; only the controller of the cluster knows the reasons.
    if run_dir is not None and not run_dir.attempt.exists():
        explain_run(run_dir, as_json=as_json)
    else:
        explain_job(name, as_json=as_json)


def explain_run(run_dir: RunDir, *, as_json: bool) -> None:
    """Print what the controller of a run has decided, and whether that still applies."""
    explained = read_run_explanation(run_dir)
    if explained is None and read_record(run_dir).spec.self_sizing:
        raise BadInput(
            f"the controller of the run in {run_dir.root} has not decided anything yet",
            means="it is starting, or could not be started; the run continues with its workers",
            do="ask again in a second, or read the output of `elastane run`",
        )
    status = send_request(run_dir, AskStatus()) if is_live(run_dir) else None
    note = "" if status is None else status.note
    if explained is None:
        raise BadInput(
            f"the run in {run_dir.root} has no controller, so only you change its number of workers",
            means=note or "it was started with --start, or MIN equals MAX",
            do=f"elastane events {run_dir.root} shows all changes",
        )
    if as_json:
        print_json(explained)
        return
    from rich.text import Text

    from elastane.cli.jobs.job_display import list_explanation_lines

    console = open_console()
    if note:
        console.print(note, markup=False)
    if status is None:
        console.print("The run has ended.")
    elif status.by_hand:
        console.print("Its number of workers was set by hand. To let its controller decide again:")
        console.print(f"  elastane resize {run_dir.root.name} auto", markup=False)
    else:
        for sentence in list_explanation_lines(explained.explanation):
            console.print(Text(sentence))
    print_decisions(console, explained.decisions)


def explain_job(job: str, *, as_json: bool) -> None:
    with connect() as cluster:
        explanation = cluster.jobs.explain(job)
        if as_json:
            print_json(explanation)
            return
        found, health = cluster.jobs.get(job), cluster.health()
    from rich.text import Text

    from elastane.cli.jobs.job_display import list_explanation_lines, print_health

    console = open_console()
    if found.ended_s is not None:
        why = f": {found.why}" if found.why else ""
        console.print(f"{job} has ended ({found.state}){why}", markup=False)
    else:
        print_health(console, health)
        for sentence in list_explanation_lines(explanation.explanation):
            console.print(Text(sentence))
        if found.why and found.state != "running":
            console.print(f"Its last attempt ended: {found.why}.", markup=False)
        if found.state == "running" and found.wanted != "run":
            console.print(f"Its workers leave {describe_job_stop_time(found.spec)}.")
    print_decisions(console, explanation.decisions)


def print_decisions(console: "Console", decisions: Sequence[DecisionRecord]) -> None:
    """Print decisions, each with its main reason."""
    from rich.text import Text

    if decisions:
        console.print()
        console.print(Text("decisions, newest first", style="dim"))
    for decided in decisions:
        size = sum(decided.workers.values())
        at = (f"{format_timestamp(decided.time_s)}  ", "dim")
        why = fold_text(localize_timestamps(" ".join(decided.sentences[1:2])))
        console.print(Text.assemble(at, f"{fold_text(decided.action):<8}{size:>3}  ", why))
