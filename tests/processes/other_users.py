"""A cluster of root's whose teams have system users: real users, a home and a Python that they can reach."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

import elastane
from elastane.agent import process_identity

SOURCES = Path(elastane.__file__).parents[1]
SITE = Path(msgspec.__file__).parents[1]
WAIT_S = 90
AS_NOBODY = 65534


def can_run(python: str) -> bool:
    """Whether another user can run this Python."""
    with suppress(OSError):
        return not subprocess.run(
            [python, "-c", ""], user=AS_NOBODY, group=AS_NOBODY, extra_groups=(), cwd="/", check=False
        ).returncode
    return False


def python_for_all() -> str:
    """A Python of this version that every user can run; empty: there is none."""
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return next((one for one in (os.path.realpath(sys.executable), system) if can_run(one)), "")


def why_not() -> str:
    """Why such a cluster cannot be had here; empty: it can."""
    if os.geteuid() != 0:
        return "only root can make system users"
    if not shutil.which("useradd") or not shutil.which("userdel"):
        return "useradd is not installed"
    if not python_for_all():
        return f"no Python that other users can run: {sys.executable} is closed to them"
    closed = [str(one) for one in (SOURCES, SITE) if not can_enter(one)]
    return f"closed to other users: {', '.join(closed)}" if closed else ""


def can_enter(directory: Path) -> bool:
    return all(one.stat().st_mode & 0o001 for one in (directory, *directory.parents))


class Users:
    """A controller of root's, and the system users of its teams ``red`` and ``blue``."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="elastane-users-", dir="/tmp"))
        self.place.chmod(0o755)
        self.home = self.place / "home"
        self.red, self.blue = f"el-red-{os.getpid()}", f"el-blue-{os.getpid()}"
        self.made: list[str] = []
        for name in (self.red, self.blue):
            self.make_user(name)
        self.python = str(self._environment() / "bin" / "python")

    def _environment(self) -> Path:
        """A Python whose packages are the ones of this test's, readable for all."""
        place = self.place / "python"
        subprocess.run([python_for_all(), "-m", "venv", "--without-pip", str(place)], check=True)
        packages = next(place.glob("lib/python*/site-packages"))
        # The tree of this test comes first: an editable installation may name another.
        (packages / "tree.pth").write_text(f"{SOURCES}\n{SITE}\n")
        subprocess.run(["chmod", "-R", "go+rX", str(place)], check=True)
        return place

    def make_user(self, name: str) -> None:
        subprocess.run(["useradd", "--system", "--no-create-home", name], check=True)
        self.made.append(name)

    def remove_user(self, name: str) -> None:
        subprocess.run(["userdel", name], check=True, capture_output=True)
        self.made.remove(name)

    def script(self, name: str, text: str) -> Path:
        path = self.place / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def elastane(
        self, *words: object, code: int | None = 0, user: str = "", umask: int = -1
    ) -> subprocess.CompletedProcess[str]:
        """What a command prints; as root, or as another user."""
        account = {"user": user, "group": user, "extra_groups": ()} if user else {}
        done = subprocess.run(
            [self.python, "-P", "-m", "elastane", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
            cwd=self.place,
            umask=umask,
            env={"PATH": os.environ["PATH"], "ELASTANE_HOME": str(self.home), "HOME": str(self.place)},
            **account,
        )
        if code is not None:
            assert done.returncode == code, done.stdout + done.stderr
        return done

    def up(self, *words: str, code: int = 0, **more: object) -> subprocess.CompletedProcess[str]:
        options = ("--detach", "--listen=127.0.0.1:0", "--devices=4")
        return self.elastane("up", *options, *words, code=code, **more)

    def submit(self, name: str, team: str, script: Path, *words: object, code: int | None = 0):
        return self.elastane(
            "submit", script, "--name", name, "--team", team, "--workers=1", *words, code=code
        )

    def job(self, name: str) -> dict:
        return json.loads(self.elastane("describe", name, "--json").stdout)

    def ended(self, name: str) -> dict:
        """The job, once it has."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            job = self.job(name)
            if job["state"] in {"finished", "failed", "cancelled"}:
                return job
            time.sleep(0.3)
        raise AssertionError(f"{name} has not ended: {self.job(name)}")

    def run_dir(self, name: str) -> Path:
        return self.home / "runs" / name

    def steps(self, name: str) -> int:
        """How many it has made."""
        ledger = self.run_dir(name) / "ledger.jsonl"
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0

    def workers(self, name: str) -> list[int]:
        """The process ids of its workers."""
        rows = json.loads(self.elastane("ps", name, "--json").stdout)
        return [row["pid"] for row in rows if row["role"] == "worker"]

    def is_told(self, name: str, words: str) -> None:
        """Goes on once an event of a job has these words in it."""
        deadline = time.monotonic() + WAIT_S
        while words not in (told := self.elastane("events", name, "--job").stdout):
            assert time.monotonic() < deadline, f"{name}: {self.job(name)}\n{told}\n{self.log()}"
            time.sleep(0.5)

    def log(self) -> str:
        return (self.home / "controller.log").read_text()

    def words(self, name: str) -> str:
        """What its only worker has printed."""
        return (self.run_dir(name) / "logs" / "worker-0.log").read_text()

    def close(self) -> None:
        self.elastane("down", code=None)
        uids = {pwd.getpwnam(name).pw_uid for name in self.made}
        for pid in processes_of(uids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while processes_of(uids):
            time.sleep(0.1)
        for name in list(self.made):
            self.remove_user(name)
        shutil.rmtree(self.place)


def processes_of(uids: set[int]) -> Sequence[int]:
    found = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [
        pid
        for pid in found
        if process_identity.read_user_id(pid) in uids and process_identity.read_start_time(pid) is not None
    ]
