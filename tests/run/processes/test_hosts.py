"""``elastane run --hosts`` starts a run on several machines from one terminal.

In most tests ssh is a script that runs the command on this machine, in a session of its own.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_events, read_last_step
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-P", "-m", "elastane"]
EXAMPLE = Path(__file__).parents[3] / "examples" / "digits" / "train.py"
SSH = """#!/bin/sh
[ "$1" = unreachable ] && {{ echo "connect to host $1 port 22: No route to host" >&2; exit 255; }}
echo "$2" >> {log}
ELASTANE_HOME={home}-$1 exec setsid -w sh -c "$2"
"""

SLOW_LOSS = """
import time
from torch.nn import functional
compute = functional.cross_entropy
functional.cross_entropy = lambda *given: (time.sleep(0.05), compute(*given))[1]
"""

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


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


@pytest.mark.long
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


@pytest.mark.long
def test_the_run_goes_on_when_its_terminal_closes(terminal):
    run = terminal.start("localhost:1,node-b:1,unreachable:1", epochs=40)
    terminal.wait_for("worker.joined", "worker 100")
    run.send_signal(signal.SIGHUP)
    shown, _ = run.communicate()
    assert run.returncode == 0
    assert f"unreachable: {terminal.ssh} has no connection" in shown
    assert "it goes on: connect to host unreachable port 22: No route to host" in shown
    terminal.wait_for("run.finished", "coordinator")
    assert terminal.find_subjects("node.left") == ["the first node"]
    assert terminal.find_subjects("worker.died") == []
    assert read_last_step(terminal.run_dir).step == 920


@pytest.mark.long
def test_the_user_of_a_terminal_that_drains_its_only_machine_is_informed(terminal):
    # The steps are slow, because they would take the cores from the commands that the user types.
    (terminal.project / "helper.py").write_text(SLOW_LOSS)
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


@contextmanager
def serve_ssh(folder: Path, home: Path) -> Iterator[tuple[str, int]]:
    """Serve ssh to this user on loopback; return the command that reaches it, and the pid of the server."""
    for key in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / f"{key}-key")]
        subprocess.run(command, check=True)
    with socket.create_server(("127.0.0.3", 0)) as free:
        port = free.getsockname()[1]
    config = [
        f"ListenAddress 127.0.0.3:{port}",
        f"HostKey {folder / 'host-key'}",
        f"AuthorizedKeysFile {folder / 'user-key.pub'}",
        f"SetEnv ELASTANE_HOME={home}",
        *("StrictModes no", "PermitRootLogin yes", "UsePAM no", "PidFile none"),
    ]
    (folder / "sshd-config").write_text("\n".join(config))
    options = ["HostName 127.0.0.3", f"Port {port}", f"IdentityFile {folder / 'user-key'}"]
    options += ["StrictHostKeyChecking no", f"UserKnownHostsFile {folder / 'known'}"]
    (folder / "ssh-config").write_text("\n".join(options))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it, and only a service manager makes it
    with subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(folder / "sshd-config")], stderr=subprocess.DEVNULL
    ) as server:
        try:
            yield f"ssh -F {folder / 'ssh-config'} -o BatchMode=yes", server.pid
        finally:
            server.terminate()


def end_sessions(server: int) -> None:
    """Kill the processes of a server's sessions, as a server that restarts without care does."""
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(SSHD is None, reason="the program sshd is not installed")
def test_the_run_goes_on_when_a_real_ssh_loses_its_connection(terminal, tmp_path):
    with serve_ssh(tmp_path, tmp_path / "home-b") as (command, server):
        terminal.ssh = command
        run = terminal.start("node-b:1", epochs=10)
        terminal.wait_for("generation.started", "coordinator")
        end_sessions(server)
        shown, _ = run.communicate()
    assert run.returncode == 0, shown
    assert "node-b: ssh has no connection; if elastane join runs there, it goes on" in shown
    assert terminal.find_subjects("worker.died") == terminal.find_subjects("node.lost") == []
    assert read_last_step(terminal.run_dir).step == 230
