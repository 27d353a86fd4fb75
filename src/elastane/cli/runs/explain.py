"""The reasons for the number of workers of a run."""

from elastane.cli.command import open_console, print_json
from elastane.cli.jobs.explain import print_decisions
from elastane.cli.runs.requests import send_request
from elastane.cluster.controller.run_controller import read_run_explanation
from elastane.common.errors import BadInput
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record


def explain_run(run_dir: RunDir, *, as_json: bool) -> None:
    """Print what the controller of a run has decided, and whether that still applies.

    Raises:
        BadInput: the run has no controller, or its controller has not decided anything yet.
    """
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
