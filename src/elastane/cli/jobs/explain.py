"""``elastane explain``: why a job has the size it has."""

from elastane.cli.verb import AsJson, JobName, print_json, talk
from elastane.client.context import connect


def explain(job: JobName, as_json: AsJson = False) -> None:
    """Say why JOB has its size, and what would change that.

    Or what it waits for. Below it, the decisions that led there, newest first,
    each with its first reason.

    With --json, one object with the keys job, state, wanted, workers,
    explanation and decisions; these with all their reasons.
    """
    with connect() as cluster:
        told = cluster.explain(job)
        if as_json:
            print_json(told)
            return
        found = cluster.job(job)
    from rich.text import Text  # noqa: PLC0415 - a program that asks for JSON needs none

    from elastane.cli.jobs.words import explanation_lines, moment_text  # noqa: PLC0415

    console = talk()
    if found.ended_s is not None:
        why = f": {found.why}" if found.why else ""
        console.print(f"{job} has ended ({found.state}){why}", markup=False)
    else:
        for sentence in explanation_lines(told.explanation):
            console.print(Text(sentence))
        if found.why and found.state != "running":
            console.print(f"Its last life ended: {found.why}.", markup=False)
        if found.state == "running" and found.wanted != "run":
            console.print("Its workers leave at the next commit.")
    if told.decisions:
        console.print("\n[dim]decisions, newest first[/dim]")
    for decided in told.decisions:
        size = sum(decided.workers.values())
        at = (f"{moment_text(decided.time_s)}  ", "dim")
        console.print(Text.assemble(at, f"{decided.action:<8}{size:>3}  ", " ".join(decided.sentences[1:2])))
