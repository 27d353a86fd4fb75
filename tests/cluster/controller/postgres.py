"""A real PostgreSQL for tests and for `controller_kills`."""

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
    """Return the folder of the programs of Debian's package ``postgresql``, or that of ``initdb``."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return max(
        Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: int(path.parent.name)
    )


@contextmanager
def postgres_server():
    """Start a PostgreSQL server without a network, as an unprivileged user, and remove it afterwards.

    Yields:
        A function that returns the URL of a database by its name.

    Raises:
        NotInstalled: there is no PostgreSQL.
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
