"""The reasons for the size of a job of the cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastane.cli.command import open_console, print_json
from elastane.cli.stop_times import describe_job_stop_time
from elastane.cli.timestamps import format_timestamp, localize_timestamps
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.history import DecisionRecord
from elastane.common.safe_text import fold_text

if TYPE_CHECKING:
    from rich.console import Console


def explain_job(job: str, *, as_json: bool) -> None:
    with connect() as cluster:
        explanation = cluster.jobs.explain(job)
        if as_json:
            print_json(explanation)
            return
        found = cluster.jobs.get(job)
    from rich.text import Text

    from elastane.cli.jobs.job_display import list_explanation_lines

    console = open_console()
    if found.ended_s is not None:
        why = f": {found.why}" if found.why else ""
        console.print(f"{job} has ended ({found.state}){why}", markup=False)
    else:
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
