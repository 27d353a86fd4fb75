"""``run.print`` prints once for the run, and once in the log of each worker."""

import sys
from dataclasses import dataclass, field

from elastane.run.nouns.records import EventLine
from elastane.run.worker.session import Run
from elastane.run.worker.worker_settings import get_settings


@dataclass
class ListeningReporter:
    """Records events instead of sending them."""

    events: dict[str, EventLine] = field(default_factory=dict)
    alone: bool = False

    def report_event(self, key: str, event: EventLine) -> None:
        self.events[key] = event


def test_run_print_writes_to_the_workers_own_log_and_reports_one_event(capsys, monkeypatch):
    run, reporter = Run(get_settings()), ListeningReporter()
    monkeypatch.setattr(run, "_reporter", reporter)
    sys.stdout.write("before\n")
    run.print("parameters:", 10)
    sys.stdout.write("between\n")
    run.print("ready")
    assert capsys.readouterr().out == "before\nparameters: 10\nbetween\nready\n"
    assert {key: event.why for key, event in reporter.events.items()} == {
        "print-0-1": "parameters: 10",
        "print-0-2": "ready",
    }


def test_run_print_prints_in_a_process_that_trains_alone(capsys):
    Run(get_settings()).print("parameters:", 10)
    assert capsys.readouterr().out == "parameters: 10\n"
