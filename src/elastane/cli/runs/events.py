"""What happened in a run, told once or as it happens."""

from elastane.api.rundir import RunDir
from elastane.cli.runs.following import looks
from elastane.cli.verb import print_json, talk
from elastane.observability.run_files import decode_event_line, read_run
from elastane.observability.tail import Tail


def run_events(run_dir: RunDir, *, follow: bool, as_json: bool) -> None:
    """Those of one run; followed until it is over."""
    from elastane.cli.words import event_text  # noqa: PLC0415 - rich

    console = talk(as_json=as_json)
    if not follow:
        for event in read_run(run_dir).events:
            print_json(event) if as_json else console.print(event_text(event))
        return
    tail = Tail(run_dir.events)
    for _ in looks(run_dir, follow=True):
        for line in tail.new_lines():
            event = decode_event_line(line)
            print_json(event) if as_json else console.print(event_text(event))
