"""``elastane run --hosts`` starts a run on several machines from one terminal.

Here ssh is a script that runs the command on this machine, in a session of its own.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastane.api.rundir import RunDir
from elastane.observability.run_files import read_events, read_last_step

from .stage import wait_until

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-P", "-m", "elastane"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
SSH = """#!/bin/sh
[ "$1" = unreachable ] && {{ echo "connect to host $1 port 22: No route to host" >&2; exit 255; }}
echo "$2" >> {log}
ELASTANE_HOME={home}-$1 exec setsid -w sh -c "$2"
"""


class Terminal:
    """A terminal in which a user starts a run on several machines."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.log = folder / "commands"
        self.ssh = folder / "ssh"
        self.ssh.write_text(SSH.format(log=self.log, home=self.home))
        self.ssh.chmod(0o755)
        self.project = folder / "project"
        self.project.mkdir()
        self.script = self.project / "train.py"
        for source in EXAMPLE.parent.glob("*.py"):
            shutil.copy(source, self.project)
        self.script.write_text(f"import helper\n{EXAMPLE.read_text()}")
        (self.project / "helper.py").write_text("")
        self.run_dir = RunDir(self.home / "runs" / "demo")

    def start(self, hosts: str, *words: str, epochs: int = 15) -> subprocess.Popen:
        options = [
            "--hosts",
            hosts,
            "--ssh",
            str(self.ssh),
            "--listen",
            "127.0.0.2",
            "--name",
            "demo",
            *words,
        ]
        return subprocess.Popen(
            [*COMMAND, "run", *options, str(self.script), "--epochs", str(epochs)],
            cwd=self.project,
            env=os.environ | {"ELASTANE_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def begin(self, *words: str) -> subprocess.Popen:
        environment = os.environ | {"ELASTANE_HOME": str(self.home)}
        command = [*COMMAND, *words]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def call(self, *words: str) -> str:
        """Return what a command prints."""
        return self.begin(*words).communicate()[0]

    def find_subjects(self, kind: str) -> list[str]:
        if not self.run_dir.events.exists():
            return []
        return [event.who for event in read_events(self.run_dir, torn_tail=True) if event.kind == kind]

    def wait_for(self, kind: str, subject: str) -> None:
        wait_until(lambda: subject in self.find_subjects(kind), f"{kind} of {subject}")


@pytest.fixture
def terminal(tmp_path):
    return Terminal(tmp_path)


def test_a_terminal_without_workers_starts_them_on_other_machines(terminal):
    run = terminal.start("node-b:1,me@node-c:1", "--ship-code")
    wait_until(terminal.run_dir.run.exists, "the run has begun")
    # Workers that start now use the shipped code.
    for path in terminal.project.iterdir():
        path.write_text("raise SystemExit('changed')")
    shown, _ = run.communicate()
    assert run.returncode == 0, shown
    assert sorted(terminal.find_subjects("node.joined")) == ["node node-b", "node node-c"]
    assert set(terminal.find_subjects("worker.joined")) <= {"worker 100", "worker 200"}
    # Other users of a machine can read the words of a command.
    assert "elastane1-" not in terminal.log.read_text()
    assert "takes part in the run demo" in terminal.run_dir.log("agent-node-b").read_text()


def test_the_run_goes_on_when_its_terminal_closes(terminal):
    run = terminal.start("localhost:1,node-b:1,unreachable:1", epochs=25)
    terminal.wait_for("worker.joined", "worker 100")
    run.send_signal(signal.SIGHUP)
    shown, _ = run.communicate()
    assert run.returncode == 0
    assert "unreachable: elastane join ended with exit code 255: connect to host" in shown
    terminal.wait_for("run.finished", "coordinator")
    assert terminal.find_subjects("node.left") == ["the first node"]
    assert terminal.find_subjects("worker.died") == []
    assert read_last_step(terminal.run_dir).step == 575


def test_the_user_of_a_terminal_that_drains_its_only_machine_is_informed(terminal):
    run = terminal.start("node-b:1", epochs=10_000)
    terminal.wait_for("generation.started", "coordinator")
    said = "no machine with slots stays"
    assert said not in terminal.call("ps", "demo")
    assert f"accepted, but {said}" in terminal.call("drain", "demo", "node-b")
    assert said in terminal.call("ps", "demo")
    assert said in terminal.call("explain", "demo")
    # Another machine takes over.
    joined = terminal.begin("join", str(terminal.run_dir.root), "--slots", "1", "--name", "c")
    terminal.wait_for("node.left", "node node-b")
    assert said not in terminal.call("ps", "demo")
    terminal.call("stop", "demo")
    shown, _ = run.communicate()
    assert run.returncode == 130, shown
    joined.communicate()
    assert terminal.find_subjects("worker.died") == []


def test_without_any_machine_the_run_fails_in_words(terminal):
    run = terminal.start("unreachable:1")
    shown, _ = run.communicate()
    assert run.returncode == 1
    assert "elastane join has failed on every machine of --hosts" in shown
