"""The end of ``elastane run``: report, files and exit code."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elastane.cli.command import print_json
from elastane.cli.options import spell_option
from elastane.cli.runs.run_display import format_logged
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.terminal import write_paragraphs
from elastane.common.durations import format_duration
from elastane.common.exit_codes import ExitCode
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record

if TYPE_CHECKING:
    from rich.console import Console

WRONG_ARGUMENTS = "the script ended with SystemExit(2)"
"""The error of a script whose argument parser, such as argparse, has refused the arguments."""
ENDINGS: dict[int, str] = {ExitCode.OK: "finished", ExitCode.STOPPED_BY_USER: "stopped"}


def conclude_run(run_dir: RunDir, over: RunOver, console: "Console", *, as_json: bool) -> int:
    """Write the results of a run, print how it ended, and return the exit code."""
    from elastane.run.attempts.results import write_results
    from elastane.run.observability.metrics import collect_latest_values
    from elastane.run.observability.tensors import find_finished_model

    if over.traceback:
        over = msgspec.structs.replace(
            over, traceback=over.traceback + advise_on_arguments(run_dir, over.traceback)
        )
        write_paragraphs(over.traceback, sys.stderr)
    conclusion = write_results(run_dir, lambda line: console.print(line, markup=False))
    recorded, facts, report = conclusion.recorded, conclusion.facts, conclusion.report
    model = find_finished_model(run_dir)
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
            "logged": collect_latest_values(recorded.ledger) if recorded else {},
        }
        numbers = msgspec.to_builtins(facts) if facts else {}
        print_json(answer | {key: value for key, value in numbers.items() if key != "why"})
    print_summary(run_dir, over, console, report)
    return over.code


def advise_on_arguments(run_dir: RunDir, error: str) -> str:
    """Return what to do if a script has refused an option of ``elastane run``; empty: it has not."""
    if not error.startswith(WRONG_ARGUMENTS):
        return ""
    spec = read_record(run_dir).spec
    ours = set(map(spell_option, RunOptions.__struct_fields__))
    typed = [word for argument in spec.args if (word := argument.partition("=")[0]) in ours]
    if not typed:
        return ""
    script = spec.module or Path(spec.script).name
    return (
        f"  means: all arguments after {script} are arguments of the script\n"
        f"  do:    write {' and '.join(dict.fromkeys(typed))} before {script}\n"
    )


def print_summary(run_dir: RunDir, over: RunOver, console: "Console", report: Path | None) -> None:
    """Print how a run ended and which files it has written, in a few lines."""
    from elastane.run.observability.facts import collect_facts
    from elastane.run.observability.metrics import collect_latest_values
    from elastane.run.observability.quantities import format_loss
    from elastane.run.observability.run_files import read_run
    from elastane.run.observability.tensors import find_finished_model

    rows: list[tuple[str, str]] = []
    kept = 0
    if report is not None:
        recorded = read_run(run_dir)
        facts = collect_facts(recorded)
        ending = ENDINGS.get(over.code, "failed")
        loss = f": loss {format_loss(facts.loss)}" if facts.steps else ""
        # The steps of an unmodified script are not known.
        steps = "" if recorded.record.spec.contract is not None else f" after {facts.steps} steps"
        console.print(f"{ending}{steps} in {format_duration(facts.wall_s)}{loss}", markup=False)
        kept = facts.checkpoints
        if logged := format_logged(collect_latest_values(recorded.ledger)):
            rows.append(("logged", "  ".join(logged)))
        if facts.digest:
            rows.append(("digest", f"{facts.digest[0]} (parameters after step {facts.digest[1]})"))
        rows.append(("report", str(report)))
    if over.why and over.code:
        console.print(over.why, markup=False)
    stopped = over.code == ExitCode.STOPPED_BY_USER
    again = f"elastane run --resume {run_dir.root}"
    if kept and (stopped or over.lost):
        onward = "goes back to" if over.lost else "continues from"
        console.print(f"{again} {onward} its newest checkpoint", markup=False)
    elif kept and over.traceback:
        console.print(
            f"mend the script; then {again} --accept-changes goes on from its newest checkpoint", markup=False
        )
    elif stopped and report is not None and recorded.record.spec.contract is not None:
        console.print(f"{again} starts the script again, from its own snapshot", markup=False)
    elif stopped and report is not None and recorded.record.spec.checkpoints is not None:
        console.print(f"{again} begins the run again", markup=False)
    model = find_finished_model(run_dir)
    if model is not None:
        rows.insert(0, ("model", str(model)))
    if run_dir.card.exists():
        rows.append(("card", str(run_dir.card)))
    rows.append(("logs", str(run_dir.logs)))
    for title, value in rows:
        console.print(f"  {title:<7} {value}", markup=False)
