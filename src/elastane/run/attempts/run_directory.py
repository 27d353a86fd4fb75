"""Creation and locking of run directories."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile

from elastane.common.errors import BadInput
from elastane.common.home import find_runs_home
from elastane.common.local_paths import refuse_url
from elastane.common.untrusted_data import Malformed
from elastane.run.agent.presence import LOCK_CHECK_S
from elastane.run.attempts.software import read_software
from elastane.run.connections.run_lock import is_locked, list_node_locks
from elastane.run.nouns.rundir import CLAIMS, GATHERED, TICKETS, RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from elastane.run.observability.run_files import write_record

SECRET_BYTES = 32
WRITTEN_FOLDERS = ("logs", "checkpoints", "artifacts", "code", CLAIMS, TICKETS, GATHERED)
"""The folders of a run directory in which a run writes."""


@contextmanager
def claim_run_directory(
    spec: RunSpec, directory: Path | None, typed: tuple[str, ...] | None = None, *, linked: bool = True
) -> Iterator[RunDir]:
    """Create a run directory and hold its lock for as long as the context lasts.

    Args:
        directory: its path; None: ``$ELASTANE_HOME/runs/NAME``.
        typed: see `RunRecord`.
        linked: link a ``directory`` elsewhere from there, so that commands find the run by name.

    Raises:
        BadInput: the directory is in use, has another run, or cannot be written. Nothing was overwritten.
    """
    if directory is not None:
        refuse_store(directory)
    run_dir = RunDir((directory or find_runs_home() / spec.name).absolute())
    try:
        run_dir.root.mkdir(parents=True, exist_ok=True)
        refuse_links(run_dir)
        run_dir.logs.mkdir(exist_ok=True)
        (run_dir.root / CLAIMS).mkdir(mode=0o755, exist_ok=True)
        lock = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise explain_unwritable(run_dir, error) from error
    try:
        acquire_lock(lock, run_dir)
        refuse_another_run(run_dir)
        try:
            write_run_request(run_dir, spec, typed)
            if directory is not None and linked:
                link_run_name(spec.name, run_dir)
        except OSError as error:
            raise explain_unwritable(run_dir, error) from error
        yield run_dir
    finally:
        os.close(lock)


@contextmanager
def reclaim_run_directory(run_dir: RunDir) -> Iterator[RunDir]:
    """Lock the run directory of an ended run for as long as the context lasts.

    Raises:
        BadInput: a live run, or a process that it has left behind, holds the lock.
    """
    with lock_run_directory(run_dir):
        refuse_live_nodes(run_dir)
        yield run_dir


@contextmanager
def lock_run_directory(run_dir: RunDir) -> Iterator[None]:
    """Hold the lock of a run directory, which the program holds that begins attempts of the run.

    Raises:
        BadInput: another program holds the lock, or the directory is not safe to write.
    """
    refuse_another_user(run_dir)
    refuse_links(run_dir)
    lock = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        acquire_lock(lock, run_dir)
        # The coordinator of a killed `elastane run` may still be writing its last line.
        if run_dir.events.exists():
            with run_dir.events.open("r+b") as events:
                acquire_lock(events.fileno(), run_dir)
        yield
    finally:
        os.close(lock)


def refuse_another_user(run_dir: RunDir) -> None:
    """Refuse the run of another user: its attempts would run what it names with the rights of this user.

    Raises:
        BadInput: the record of the run belongs to another user, or the directory cannot be written.
    """
    try:
        # On some network file systems, all files belong to one user.
        with TemporaryFile(dir=run_dir.root) as own:
            mine = os.fstat(own.fileno()).st_uid
        with run_dir.files.open(run_dir.run) as record:
            owner = os.fstat(record.fileno()).st_uid
    except FileNotFoundError:
        return
    except Malformed as error:
        raise BadInput(f"{run_dir.run} is damaged: {error}") from error
    except OSError as error:
        raise explain_unwritable(run_dir, error) from error
    if owner != mine:
        raise BadInput(
            f"the run in {run_dir.root} belongs to another user, with the id {owner}",
            means="resuming it would run its script with your rights; nothing was run",
            do="resume it as its user, or copy its directory if you trust its script",
        )


def refuse_links(run_dir: RunDir) -> None:
    """Refuse a directory with links in the place of files or folders: a run would write where they lead.

    Raises:
        BadInput: there is such a link.
    """
    folders = (run_dir.root, *(run_dir.root / name for name in WRITTEN_FOLDERS))
    try:
        links = [folder / name for folder in folders for name in run_dir.files.list_links(folder)]
    except Malformed as error:
        raise BadInput(f"{run_dir.root} is not a directory that a run can use: {error}") from error
    if links:
        raise BadInput(
            f"{links[0]} is a symbolic link",
            means="a run writes only below its own directory; nothing was written",
            do="remove the link; checkpoints may be elsewhere with --checkpoint-dir",
        )


def acquire_lock(lock: int, run_dir: RunDir) -> None:
    """Take the lock; fail if a run holds it.

    Raises:
        BadInput: a live run holds it.
    """
    give_up = time.monotonic() + LOCK_CHECK_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A check for a live run holds the lock only for a moment; a run holds it until its end.
            if time.monotonic() > give_up:
                raise BadInput(
                    f"{run_dir.root} is in use by a live run",
                    do=f"stop that run: elastane stop {run_dir.root}; a new run needs another --name or "
                    "--run-dir",
                ) from None
            time.sleep(0.02)


def refuse_live_nodes(run_dir: RunDir) -> None:
    """Refuse the directory of a run that goes on without the machine on which it began."""
    for path in list_node_locks(run_dir):
        if is_locked(path):
            node = path.name.removeprefix("lock-")
            raise BadInput(
                f"the run in {run_dir.root} goes on: {node} takes part in it",
                do=f"let this machine take part too: elastane join {run_dir.root}",
            )


def refuse_another_run(run_dir: RunDir) -> None:
    if run_dir.run.exists():
        raise BadInput(
            f"{run_dir.root} already holds a run",
            means="a directory holds one run, so that its ledger proves that run",
            do=f"elastane run --resume {run_dir.root} goes on with it; or choose another --run-dir or --name",
        )


def write_run_request(run_dir: RunDir, spec: RunSpec, typed: tuple[str, ...] | None) -> None:
    """Write the secret and then ``run.json``; once the latter exists, other processes may read the secret."""
    run_dir.secret.unlink(missing_ok=True)
    secret = os.open(run_dir.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(secret, "w") as file:
        file.write(secrets.token_hex(SECRET_BYTES))
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = RunRecord(spec=spec, created=created, typed=typed, software=read_software(spec))
    write_record(run_dir, record)


def link_run_name(name: str, run_dir: RunDir) -> None:
    """Link the run directory in the home, so that commands in other terminals can name the run."""
    link = find_runs_home() / name
    if link.resolve() == run_dir.root.resolve():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and not link.exists():
        link.unlink()  # its target was removed
    link.symlink_to(run_dir.root)


def refuse_store(directory: Path) -> None:
    """Refuse the URL of a store as the directory of a run.

    Raises:
        BadInput: it is a URL.
    """
    refuse_url(
        directory,
        "--run-dir",
        do="name a local directory, or omit --run-dir; to keep the checkpoints in a store, write "
        "--checkpoint-dir URL",
    )


def check_name_is_free(name: str, directory: Path | None) -> None:
    """Check that no other run has a name."""
    path = find_runs_home() / name
    if directory is None or not path.exists() or path.resolve() == directory.resolve():
        return
    raise BadInput(
        f"the name {name} belongs to the run in {path.resolve()}",
        do="choose another --name, or remove that run",
    )


def explain_unwritable(run_dir: RunDir, error: OSError) -> BadInput:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return BadInput(
        f"cannot write the run directory {run_dir.root}: {error.strerror}",
        means="the run needs its ledger, so it was not started",
        do="free some space there, or choose another --run-dir" if full else "choose another --run-dir",
    )
