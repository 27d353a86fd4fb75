"""``elastane explain``: why a job has the size it has."""

from elastane.cli.verb import AsJson, JobName, print_json, talk
from elastane.client.context import connect


def explain(job: JobName, as_json: AsJson = False) -> None:
    """Say why JOB has the size it has, what it waits for, and what would change that.

    Below it, the decisions that led there, newest first.

    With --json, one object with the keys job, state, wanted, workers,
    explanation and decisions.
    """
    with connect() as cluster:
        told = cluster.explain(job)
        if as_json:
            print_json(told)
            return
        found = cluster.job(job)
    from rich.text import Text  # noqa: PLC0415 - a program that asks for JSON needs none

    from elastane.cli.jobs.words import explanation_lines, moment_text, state_of  # noqa: PLC0415

    console = talk()
    if found.ended_s is not None:
        why = f": {found.why}" if found.why else ""
        console.print(f"{job} has ended ({found.state}){why}", markup=False)
    else:
        for sentence in explanation_lines(told.explanation):
            console.print(Text(sentence))
        if found.why:
            console.print(f"Its last life ended: {found.why}.", markup=False)
        if state_of(found) in ("pausing", "cancelling"):
            console.print("Its workers leave at the next commit.")
    if told.decisions:
        console.print("\n[dim]decisions, newest first[/dim]")
    for decided in told.decisions:
        size = sum(decided.workers.values())
        at = (f"{moment_text(decided.time_s)}  ", "dim")
        console.print(Text.assemble(at, f"{decided.action:<8}{size:>3}  ", " ".join(decided.sentences[1:])))
