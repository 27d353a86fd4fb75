"""A cluster of root with a system user for each team, and a home and a Python that these users can reach."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir, suppress
from pathlib import Path

import msgspec
from typer.testing import CliRunner

import elastane
from elastane.cli.main import app
from elastane.common import process_identity
from tests.waiting import WAIT_S, wait_until

SOURCES = Path(elastane.__file__).parents[1]
SITE = Path(msgspec.__file__).parents[1]
UNPRIVILEGED_USER = 65534


def can_run(python: str) -> bool:
    """Tell whether another user can run this Python."""
    with suppress(OSError):
        return not subprocess.run(
            [python, "-c", ""],
            user=UNPRIVILEGED_USER,
            group=UNPRIVILEGED_USER,
            extra_groups=(),
            cwd="/",
            check=False,
        ).returncode
    return False


def find_shared_python() -> str:
    """Return a Python of this version that every user can run, or an empty string."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return next((one for one in (os.path.realpath(sys.executable), system) if can_run(one)), "")


def explain_unavailable() -> str:
    """Return why this machine cannot have such a cluster, or an empty string."""
    if os.geteuid() != 0:
        return "only root can make system users"
    if not shutil.which("useradd") or not shutil.which("userdel"):
        return "useradd is not installed"
    if not find_shared_python():
        return f"no Python that other users can run: {sys.executable} is closed to them"
    closed = [str(one) for one in (SOURCES, SITE) if not can_enter(one)]
    return f"closed to other users: {', '.join(closed)}" if closed else ""


def can_enter(directory: Path) -> bool:
    return all(one.stat().st_mode & 0o001 for one in (directory, *directory.parents))


class Users:
    """A controller of root, and the system users of its teams ``red`` and ``blue``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="elastane-users-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self.red, self.blue = f"el-red-{os.getpid()}", f"el-blue-{os.getpid()}"
        self.created: list[str] = []
        for name in (self.red, self.blue):
            self.make_user(name)
        self.python = str(self._create_environment() / "bin" / "python")

    def _create_environment(self) -> Path:
        """Create a Python environment that every user can read, with the packages of this test."""
        place = self.folder / "python"
        subprocess.run([find_shared_python(), "-m", "venv", "--without-pip", str(place)], check=True)
        packages = next(place.glob("lib/python*/site-packages"))
        # The tree of this test comes first: an editable installation may name another.
        (packages / "tree.pth").write_text(f"{SOURCES}\n{SITE}\n")
        subprocess.run(["chmod", "-R", "go+rX", str(place)], check=True)
        return place

    def make_user(self, name: str) -> None:
        subprocess.run(["useradd", "--system", "--no-create-home", name], check=True)
        self.created.append(name)

    def remove_user(self, name: str) -> None:
        subprocess.run(["userdel", name], check=True, capture_output=True)
        self.created.remove(name)

    def write_script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def run_elastane(
        self, *words: object, code: int | None = 0, user: str = "", umask: int = -1
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, in this process unless it needs another user, another umask or starts a controller.

        Args:
            words: the command.
            code: its expected exit code; None: any.
            user: runs the command; empty: root.
            umask: of the command; -1: that of this process.
        """
        if not user and umask == -1 and words[0] != "up":
            done = self._run_here([str(word) for word in words])
        else:
            done = self._run_apart([str(word) for word in words], user, umask)
        if code is not None:
            assert done.returncode == code, done.stdout + done.stderr
        return done

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "ELASTANE_HOME": str(self.home), "HOME": str(self.folder)}

    def _run_here(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        with chdir(self.folder):
            result = CliRunner().invoke(app, words, env=self._environment)
        return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)

    def _run_apart(self, words: list[str], user: str, umask: int) -> subprocess.CompletedProcess[str]:
        account = {"user": user, "group": user, "extra_groups": ()} if user else {}
        return subprocess.run(
            [self.python, "-P", "-m", "elastane", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
            cwd=self.folder,
            umask=umask,
            env=self._environment,
            **account,
        )

    def start_controller(
        self, *words: str, code: int = 0, **more: object
    ) -> subprocess.CompletedProcess[str]:
        options = ("--detach", "--listen=127.0.0.1:0", "--devices=4")
        return self.run_elastane("up", *options, *words, code=code, **more)

    def submit(self, name: str, team: str, script: Path, *words: object, code: int | None = 0):
        return self.run_elastane(
            "submit", script, "--name", name, "--team", team, "--workers=1", *words, code=code
        )

    def get_job(self, name: str) -> dict:
        return json.loads(self.run_elastane("describe", name, "--json").stdout)

    def wait_for_end(self, name: str) -> dict:
        """Wait until a job has ended and return it."""

        def find_ended() -> dict | None:
            job = self.get_job(name)
            return job if job["state"] in {"finished", "failed", "cancelled"} else None

        return wait_until(find_ended, f"{name} has ended", state=lambda: self.get_job(name))

    def run_dir(self, name: str) -> Path:
        return self.home / "runs" / name

    def count_steps(self, name: str) -> int:
        ledger = self.run_dir(name) / "ledger.jsonl"
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0

    def list_workers(self, name: str) -> list[int]:
        """Return the process ids of a job's workers."""
        rows = json.loads(self.run_elastane("ps", name, "--json").stdout)
        return [row["pid"] for row in rows if row["role"] == "worker"]

    def wait_for_event(self, name: str, words: str) -> None:
        """Wait until an event of a job contains these words."""

        def read_events() -> str:
            return self.run_elastane("events", name, "--job").stdout

        wait_until(
            lambda: words in read_events(),
            f"{name} has an event with {words!r}",
            state=lambda: f"{self.get_job(name)}\n{read_events()}\n{self.read_log()}",
        )

    def read_log(self) -> str:
        return (self.home / "controller.log").read_text()

    def read_output(self, name: str) -> str:
        """Return the output of a job's only worker."""
        return (self.run_dir(name) / "logs" / "worker-0.log").read_text()

    def close(self) -> None:
        self.run_elastane("down", code=None)
        uids = {pwd.getpwnam(name).pw_uid for name in self.created}
        for pid in find_user_processes(uids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not find_user_processes(uids), "the processes of these users have ended")
        for name in list(self.created):
            self.remove_user(name)
        shutil.rmtree(self.folder)


def find_user_processes(uids: set[int]) -> Sequence[int]:
    found = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [
        pid
        for pid in found
        if process_identity.read_user_id(pid) in uids and process_identity.read_start_time(pid) is not None
    ]
