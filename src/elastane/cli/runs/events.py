"""Events of a run, past ones or live."""

from elastane.cli.command import open_console, print_json
from elastane.cli.runs.run_polling import poll_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, read_record, read_run
from elastane.run.observability.tail import Tail


def show_run_events(run_dir: RunDir, *, follow: bool, as_json: bool) -> None:
    """Print the events of a run; with ``follow`` until the run is over."""
    from elastane.cli.runs.run_display import describe_run_event

    console = open_console(as_json=as_json)
    timed = read_record(run_dir).spec.contract is not None
    if not follow:
        for event in read_run(run_dir).events:
            print_json(event) if as_json else console.print(describe_run_event(event, timed=timed))
        return
    tail = Tail(run_dir.events)
    for _ in poll_run(run_dir, follow=True):
        for line in tail.read_new_lines():
            event = decode_event_line(line)
            print_json(event) if as_json else console.print(describe_run_event(event, timed=timed))
