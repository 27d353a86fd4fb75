"""``elastane list``: the runs that have a name."""

from collections.abc import Sequence

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.run_lookup import list_runs
from elastane.cli.timestamps import localize_timestamps
from elastane.common.errors import ElastaneError
from elastane.common.home import find_runs_home
from elastane.common.safe_text import escape_line
from elastane.run.connections.run_lock import is_live
from elastane.run.machines.visits.mirror import is_mirror
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.facts import find_outcome
from elastane.run.observability.run_files import read_events, read_last_step, read_record


def list_(as_json: AsJson = False) -> None:
    """List all runs, live and over."""
    rows = [describe_run_or_error(run_dir) for run_dir in list_runs()]
    rows.sort(key=lambda row: str(row["created"]))
    if as_json:
        print_json(rows)
        return
    console = open_console()
    if not rows:
        console.print(f"no runs in {find_runs_home()}", markup=False)
        return
    from elastane.cli.tables import build_table, print_wide

    cells = [
        (
            str(row["name"]),
            str(row["state"]),
            _format_step(row),
            f"{loss:.4f}" if isinstance(loss := row["loss"], float) else "",
            localize_timestamps(str(row["created"])),
            str(row["directory"]),
        )
        for row in rows
    ]
    titles = ("name", "state", "step", "loss", "started", "directory")
    print_wide(console, build_table(titles, cells, numbers=("step", "loss")))


def _format_step(row: dict[str, str | int | float | None]) -> str:
    """Return the last step of a run; empty for an unmodified script, which reports no steps."""
    if row["contract"] == "torchrun":
        return ""
    return f"{row['step']}" + (f"/{row['steps']}" if row["steps"] else "")


def describe_run_or_error(run_dir: RunDir) -> dict[str, str | int | float | None]:
    """Return the row of a run; if its files cannot be read, a row with the state ``unreadable``."""
    try:
        return describe_run(run_dir)
    except (ElastaneError, OSError) as error:
        return {
            "name": run_dir.root.name,
            "state": "unreadable",
            "step": 0,
            "steps": None,
            "loss": None,
            "workers": 0,
            "contract": None,
            "created": "",
            "directory": str(run_dir.root),
            "why": escape_line(str(error)),
        }


def describe_run(run_dir: RunDir) -> dict[str, str | int | float | None]:
    record = read_record(run_dir)
    newest = read_last_step(run_dir)
    live = is_live(run_dir)
    # An incomplete last line must not hide the run; `verify` reports it.
    events = read_events(run_dir, torn_tail=True)
    state = find_outcome(events, live=live)[0]
    return {
        "name": record.spec.name,
        "state": "elsewhere" if state == "interrupted" and is_mirror(run_dir) else state,
        "step": newest.step if newest else 0,
        "steps": record.pinned.steps if record.pinned else None,
        "loss": newest.loss if newest else None,
        "workers": len(newest.workers if newest else find_newest_workers(events)),
        "contract": "elastane" if record.spec.contract is None else "torchrun",
        "created": record.created,
        "directory": str(run_dir.root),
    }


def find_newest_workers(events: Sequence[EventLine]) -> Sequence[int]:
    """Return the workers of the newest generation, for a run without steps."""
    starts = (event.workers for event in reversed(events) if event.kind == "generation.started")
    return next(starts, ())
