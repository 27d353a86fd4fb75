"""``elastane list``: the runs that can be called by name."""

from elastane.api.rundir import RunDir
from elastane.cli.home import known_runs
from elastane.cli.moments import in_local_time
from elastane.cli.verb import AsJson, print_json, talk
from elastane.client.resolve import runs_home
from elastane.observability.facts import outcome_of
from elastane.observability.run_files import (
    decode_event_line,
    decode_ledger_line,
    is_live,
    last_line,
    read_lines,
    read_record,
)


def listing(as_json: AsJson = False) -> None:
    """Show the known runs, those that are over too."""
    rows = [row_of(run_dir) for run_dir in known_runs()]
    rows.sort(key=lambda row: str(row["created"]))
    if as_json:
        print_json(rows)
        return
    console = talk()
    if not rows:
        console.print(f"no runs in {runs_home()}", markup=False)
        return
    from rich.table import Table  # noqa: PLC0415 - a program that asks for JSON needs no tables
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("name", "state", "step", "loss", "started"):
        table.add_column(title, justify="right" if title in ("step", "loss") else "left", no_wrap=True)
    table.add_column("directory", overflow="fold")
    for row in rows:
        loss, steps = row["loss"], row["steps"]
        table.add_row(
            Text(str(row["name"])),
            Text(str(row["state"])),
            f"{row['step']}" + (f"/{steps}" if steps else ""),
            f"{loss:.4f}" if isinstance(loss, float) else "",
            Text(in_local_time(str(row["created"]))),
            Text(str(row["directory"])),
        )
    console.print(table)


def row_of(run_dir: RunDir) -> dict[str, str | int | float | None]:
    record = read_record(run_dir)
    newest = last_line(run_dir.ledger, decode_ledger_line)
    live = is_live(run_dir)
    # A torn tail is no reason to hide a run; `verify` judges it.
    events = read_lines(run_dir.events, decode_event_line, torn_tail=True)
    return {
        "name": record.spec.name,
        "state": outcome_of(events, live=live)[0],
        "step": newest.step if newest else 0,
        "steps": record.pinned.steps if record.pinned else None,
        "loss": newest.loss if newest else None,
        "workers": len(newest.workers) if newest else 0,
        "created": record.created,
        "directory": str(run_dir.root),
    }
