"""What a script prints appears once for the run, and once in the log of each worker."""

import builtins
import sys
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from elastane.run.nouns.records import EventLine
from elastane.run.worker import script_output
from elastane.run.worker.script_output import LONGEST_LINE, MOST_EARLY_LINES
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
        "message-0-1": "parameters: 10",
        "message-0-2": "ready",
    }


def test_run_print_prints_in_a_process_that_trains_alone(capsys):
    Run(get_settings()).print("parameters:", 10)
    assert capsys.readouterr().out == "parameters: 10\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that runs code as a file of the script, and the lines that it has shown."""
    monkeypatch.setattr(builtins, "print", print)
    monkeypatch.setattr(script_output, "_output", None)
    script_output.take_over_print(tmp_path)
    shown = []

    def run(code, file=tmp_path / "train.py", connect=True):
        if connect:
            script_output.show_prints(shown.append)
        exec(compile(code, str(file), "exec"), {"threading": threading})  # noqa: S102 - the script of the test
        return shown

    return run


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("print(1, 'two', sep='-')", ["1-two"]),
        ("print('a\\nb')", ["a", "b"]),
        ("print('a', end=''); print('b', end=' '); print('c')", ["ab c"]),
        ("print('1 of 2', end='\\r'); print('2 of 2')", ["2 of 2"]),
        ("print()", [""]),
        ("import sys; print('error', file=sys.stderr)", []),
        ("import sys; print('same', file=sys.stdout, flush=True)", ["same"]),
        ("threading.Thread(target=lambda: print('from a thread')).start()", []),
        ("print('x' * 5000)", ["x" * LONGEST_LINE + "…"]),
    ],
)
def test_the_lines_that_the_script_prints_are_shown(script, code, lines):
    assert script(code) == lines


def test_every_print_is_also_in_the_log(script, capsys):
    script("print('first', end=';'); print('x' * 2000)")
    assert capsys.readouterr().out == "first;" + "x" * 2000 + "\n"


def test_what_libraries_print_is_not_shown(script, tmp_path):
    assert script("print(1)", file="/usr/lib/python3/library.py") == []
    assert script("print(1)", file=tmp_path / ".venv" / "site-packages" / "library.py") == []


def test_lines_from_before_the_join_are_shown_after_it(script):
    assert script(f"for number in range({MOST_EARLY_LINES + 1}): print(number)", connect=False) == []
    shown = script("print('joined')")
    assert shown == [*map(str, range(MOST_EARLY_LINES)), "joined"]


def test_an_error_of_a_value_is_that_of_print(script):
    with pytest.raises(TypeError, match="sep must be None or a string"):
        script("print(1, sep=2)")


def test_what_each_worker_prints_for_itself_is_not_shown(monkeypatch):
    run, reporter = Run(get_settings()), ListeningReporter()
    monkeypatch.setattr(run, "_reporter", reporter)
    monkeypatch.setattr(run, "_trainer", SimpleNamespace(step=3, iterating="step 4"))
    run.show_printed("inside")
    run._trainer.iterating = ""
    run.show_printed("between")
    assert {key: (event.kind, event.why) for key, event in reporter.events.items()} == {
        "printed-3-1": ("printed", "between")
    }
