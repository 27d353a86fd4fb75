"""``elastane run --debug`` gives its worker the terminal, so that a user can work at a breakpoint."""

import os
import pty
import re
import select
import signal
import time
from pathlib import Path

import pytest

from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run
from tests.waiting import wait_until

from .stage import SCRIPTS, is_alive

pytestmark = pytest.mark.processes

LONGER_THAN_A_HANG_S = 3.0


class Terminal:
    """A pseudo terminal with `elastane run` in its foreground, and the keyboard of a user."""

    def __init__(self, *command: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(command[0], command)  # noqa: S606
        self.shown = ""
        self._read = 0

    def read_until(self, words: str) -> str:
        """Wait for these words and return the text between the last ones and these."""

        def take() -> None:
            assert self._take(), self.shown

        wait_until(
            lambda: words in self.shown[self._read :],
            f"{words!r} is shown",
            state=lambda: self.shown,
            meanwhile=take,
        )
        found = self.shown.index(words, self._read)
        part, self._read = self.shown[self._read : found], found + len(words)
        return part

    def type(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def wait_for_exit(self) -> int:
        """Read the rest and return the exit code."""
        wait_until(lambda: not self._take(), "the command has ended", state=lambda: self.shown)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)

    def _take(self) -> bool:
        """Read what has been printed; return False at the end."""
        if not select.select((self._fd,), (), (), 0.5)[0]:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # no process has the other end open any more
            return False
        self.shown += data.decode(errors="replace").replace("\r", "")
        return bool(data)


@pytest.fixture
def open_terminal(home, stage):
    opened = []

    def start(*arguments):
        terminal = Terminal(*stage.build_command("elastane.cli.main"), "run", *arguments)
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        if is_alive(terminal.pid):
            os.kill(terminal.pid, signal.SIGKILL)


def start_debugging(open_terminal, tmp_path, *arguments):
    return open_terminal(
        "--debug", "--run-dir", str(tmp_path / "run"), str(SCRIPTS / "debugged.py"), *arguments
    )


def test_a_user_inspects_values_at_a_breakpoint_and_continues(open_terminal, tmp_path):
    terminal = start_debugging(open_terminal, tmp_path, "between")
    terminal.read_until("(Pdb)")
    time.sleep(LONGER_THAN_A_HANG_S)  # not a wait: a worker that hung would be killed meanwhile
    terminal.type("p step.number")
    assert re.search(r"^3$", terminal.read_until("(Pdb)"), re.MULTILINE)
    terminal.type("p input('who? ')")
    terminal.read_until("who? ")
    terminal.type("me")
    assert "'me'" in terminal.read_until("(Pdb)")
    terminal.type("c")
    assert terminal.wait_for_exit() == 0, terminal.shown
    assert terminal.shown.count("the script says that it is done") == 1
    run = read_run(RunDir(tmp_path / "run"))
    assert len(run.ledger) == 5
    assert [event.who for event in run.events if event.kind == "worker.started"] == ["worker 0"]
    assert not [event for event in run.events if event.kind in {"worker.hung", "worker.died"}]


def test_a_user_may_stay_at_a_breakpoint_inside_a_step_for_longer_than_a_hang(open_terminal, tmp_path):
    terminal = start_debugging(open_terminal, tmp_path, "loop")
    terminal.read_until("(Pdb)")
    time.sleep(LONGER_THAN_A_HANG_S)  # not a wait: a worker that hung would be killed meanwhile
    terminal.type("p step.number, batch.shape")
    assert "(2, torch.Size([2, 4]))" in terminal.read_until("(Pdb)")
    terminal.type("c")
    assert terminal.wait_for_exit() == 0, terminal.shown


def test_quitting_the_debugger_ends_the_run_without_a_traceback_or_another_worker(open_terminal, tmp_path):
    terminal = start_debugging(open_terminal, tmp_path, "between")
    terminal.read_until("(Pdb)")
    terminal.type("q")
    assert terminal.wait_for_exit() == 1, terminal.shown
    assert "the debugger was quit" in terminal.shown
    assert "Traceback" not in terminal.shown
    events = read_run(RunDir(tmp_path / "run")).events
    assert len([event for event in events if event.kind == "worker.started"]) == 1


def test_a_worker_killed_under_the_debugger_is_not_replaced(open_terminal, tmp_path):
    terminal = start_debugging(open_terminal, tmp_path, "between")
    terminal.read_until("(Pdb)")
    terminal.type("import os; os.kill(os.getpid(), 9)")
    assert terminal.wait_for_exit() == 1, terminal.shown
    assert "SIGKILL" in terminal.shown
    events = read_run(RunDir(tmp_path / "run")).events
    assert len([event for event in events if event.kind == "worker.started"]) == 1


def test_a_breakpoint_without_a_terminal_names_the_option_to_use(stage):
    ended = stage.play("between", script="debugged.py", start=1, max_workers=2)
    assert ended.outcome.code == 1, ended.describe()
    assert "breakpoint()" in ended.outcome.traceback
    assert "elastane run --debug" in ended.outcome.traceback


def test_the_debugger_changes_no_byte(stage, tmp_path, open_terminal):
    terminal = start_debugging(open_terminal, tmp_path)
    assert terminal.wait_for_exit() == 0, terminal.shown
    ended = stage.play(script="debugged.py", start=2, max_workers=2)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == Path(
        ended.run.run_dir.model_files.weights
    ).read_bytes()
