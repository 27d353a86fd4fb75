"""A real PostgreSQL for tests and for `killing`."""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path


class NotInstalled(Exception):
    pass


def postgres_programs() -> Path | None:
    """Where Debian's package ``postgresql`` has them, or wherever ``initdb`` is found."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return max(
        Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: int(path.parent.name)
    )


@contextmanager
def postgres_server():
    """A PostgreSQL of one's own: no network, an unprivileged user, gone afterwards.

    Yields what makes the URL of a database of its name.

    Raises:
        NotInstalled: there is none.
    """
    programs = postgres_programs()
    if programs is None:
        raise NotInstalled("PostgreSQL is not installed here: apt-get install postgresql")
    # PostgreSQL refuses to be root.
    owner = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.geteuid() == 0 else {}
    where = Path(tempfile.mkdtemp(prefix="elastane-postgres-"))
    if owner:
        os.chown(where, pwd.getpwnam("nobody").pw_uid, owner["group"])
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    quiet = {"stdout": subprocess.DEVNULL, "cwd": where, "env": environment, **owner}
    subprocess.run(
        [
            programs / "initdb",
            "-D",
            where / "data",
            "-U",
            "elastane",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
        ],
        check=True,
        **quiet,
    )
    options = (
        f"-c listen_addresses='' -c unix_socket_directories='{where}' -c fsync=off -c max_connections=200"
    )
    try:
        subprocess.run(
            [programs / "pg_ctl", "-D", where / "data", "-l", where / "log", "-o", options, "-w", "start"],
            check=True,
            **quiet,
        )
        try:
            yield lambda name: f"postgresql://elastane@/{name}?host={where}"
        finally:
            subprocess.run(
                [programs / "pg_ctl", "-D", where / "data", "-m", "immediate", "stop"], check=True, **quiet
            )
    finally:
        shutil.rmtree(where, ignore_errors=True)
