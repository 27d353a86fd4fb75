"""What a script says with ``run.print`` is told once for the run, and stands in each worker's log."""

import sys
from dataclasses import dataclass, field

from elastane.api.records import EventLine
from elastane.runtime.session import Run
from elastane.runtime.worker_settings import get_settings


@dataclass
class Told:
    """The line to a coordinator that only listens."""

    events: dict[str, EventLine] = field(default_factory=dict)
    alone: bool = False

    def happened(self, key: str, event: EventLine) -> None:
        self.events[key] = event


def test_a_worker_prints_into_its_own_log_what_it_tells_the_run(capsys, monkeypatch):
    run, told = Run(get_settings()), Told()
    monkeypatch.setattr(run, "_reporter", told)
    sys.stdout.write("before\n")
    run.print("parameters:", 10)
    sys.stdout.write("between\n")
    run.print("ready")
    assert capsys.readouterr().out == "before\nparameters: 10\nbetween\nready\n"
    assert {key: event.why for key, event in told.events.items()} == {
        "print-0-1": "parameters: 10",
        "print-0-2": "ready",
    }


def test_alone_it_is_printed(capsys):
    Run(get_settings()).print("parameters:", 10)
    assert capsys.readouterr().out == "parameters: 10\n"
