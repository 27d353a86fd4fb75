"""A mirror: copies of a run's files on a machine that does not share its directory.

A mirror is a run directory, so commands read it like any other. While one runs, a thread keeps the files up
to date, and holds a lock of the mirror as long as the run answers: so the run counts as live.

A mirror names addresses that get its secret, and its files are written. So only a directory of the reader in
the home of runs is one, never another directory that says so; and nothing is written through a link.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput, ElastaneError, RunFailed
from elastane.common.home import find_runs_home, make_home
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.connections.endpoint import read_secret
from elastane.run.connections.run_certificate import compute_fingerprint
from elastane.run.machines.tickets.remote_files import (
    AT_ONCE_BYTES,
    FILES_PATH,
    LARGEST_LISTING_BYTES,
    RunListing,
    decode_listing,
    is_growing,
    is_shown,
)
from elastane.run.machines.tickets.tickets import LARGEST_ADMISSION_BYTES, Admission
from elastane.run.machines.visits.run_pages_client import ask_any, present_secret
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.rundir import NodeFiles, RunDir

ORIGIN = "origin.json"
"""The file of a mirror that says where its run is."""
PULLING = "pulling"
"""Locked (flock) by the process that pulls for all."""
LARGEST_ORIGIN_BYTES = LARGEST_ADMISSION_BYTES
"""Most of both are the addresses of the machines."""
PULL_EVERY_S = 0.2
GONE_S = 3.0
"""A run that has not answered for so long counts as over; a machine in charge may have died meanwhile."""
OVERLAP_BYTES = 4096
"""The end of a copied file is compared again: after a takeover the lines that follow may be others."""


class Origin(msgspec.Struct, frozen=True):
    """Where the run of a mirror is.

    Args:
        directory: of the run, on its machines.
        fingerprint: SHA-256 of the run's certificate, in hexadecimal digits.
        nodes: at which the agents of the run answered last.
    """

    directory: str
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    nodes: tuple[NodeAddress, ...]


_decode: Decoder[Origin] = Decoder(Origin, at_most_bytes=LARGEST_ORIGIN_BYTES)
_kept: dict[Path, "Mirror"] = {}
"""The mirrors that this process keeps up to date."""


def is_mirror(run_dir: RunDir) -> bool:
    """Return whether a directory is a mirror of a run on other machines, which this user has made here."""
    root = run_dir.root
    try:
        found, home, above = root.lstat(), find_runs_home().stat(), root.parent.stat()
    except OSError:
        return False
    here = os.path.samestat(above, home) and stat.S_ISDIR(found.st_mode) and found.st_uid == home.st_uid
    return here and run_dir.files.has_file(root / ORIGIN)


def create_mirror(admission: Admission) -> RunDir:
    """Return a mirror of the run, in the home of runs, which is kept up to date from now on.

    Raises:
        NoSuchRun: the run does not answer.
        RunFailed: the mirror cannot be written.
    """
    fingerprint = compute_fingerprint(admission.endpoint.certificate).hex()
    origin = Origin(admission.directory, fingerprint, admission.nodes)
    run_dir = RunDir(_choose_place(admission))
    try:
        make_home()
        run_dir.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(run_dir.secret, admission.secret.encode(), durable=False, mode=0o600)
        replace_file(run_dir.root / ORIGIN, msgspec.json.encode(origin), durable=False)
    except OSError as error:
        raise RunFailed(f"cannot write {run_dir.root}: {error.strerror}") from error
    keep_mirror(run_dir)
    return run_dir


def keep_mirror(run_dir: RunDir) -> None:
    """Bring a mirror up to date, and keep it so until this process ends.

    A run that does not answer any more has ended as far as this machine knows; its files stay as they are.

    Raises:
        BadInput: the mirror is damaged.
        NoSuchRun: the run does not answer, and nothing of it is here yet.
    """
    if run_dir.root in _kept:
        return
    mirror = _kept[run_dir.root] = Mirror(run_dir)
    try:
        mirror.start()
    except ElastaneError:
        if not run_dir.run.exists():
            raise


def _choose_place(admission: Admission) -> Path:
    """Return the place of a mirror; another run may have its name here."""
    home = find_runs_home()
    mark = hashlib.sha256(admission.secret.encode()).hexdigest()[:6]
    for name in (admission.name, f"{admission.name}-{mark}"):
        place = RunDir(home / name)
        with contextlib.suppress(OSError, Malformed):
            if is_mirror(place) and read_secret(place) == admission.secret:
                return place.root
        if not place.root.exists():
            return place.root
    raise BadInput(
        f"{home} has runs named {admission.name} and {admission.name}-{mark} already",
        means="the files of the run need a place of their own on this machine",
        do="set ELASTANE_HOME to another directory",
    )


class Mirror:
    """Copies the files of a run, as far as they have changed.

    Raises:
        BadInput: the mirror is damaged.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        try:
            self._origin = _decode(run_dir.files.read(run_dir.root / ORIGIN, LARGEST_ORIGIN_BYTES))
            self._authorization = present_secret(read_secret(run_dir))
            _refuse_links(run_dir)
        except (OSError, Malformed) as error:
            raise BadInput(
                f"{run_dir.root} is damaged: {error}",
                means="it should be a copy of a run on other machines",
                do="remove it, and use the ticket of the run again",
            ) from error

    def start(self) -> None:
        """Pull once, and go on in a thread; of several processes that do so one pulls for all.

        Raises:
            NoSuchRun, RunFailed: see `pull`.
        """
        self._pull_lock = _open_lock(self._run_dir.root / PULLING)
        if self._may_pull():
            try:
                self.pull()
            except ElastaneError:
                os.close(self._pull_lock)
                raise
        # A lock of its own for each process: one that ends must not let the run seem over to the others.
        own = NodeFiles(self._run_dir.root, f"visitor-{os.getpid()}").lock
        live = _open_lock(own)
        fcntl.flock(live, fcntl.LOCK_EX)
        atexit.register(own.unlink, missing_ok=True)
        threading.Thread(target=self._keep_pulling, args=(live,), daemon=True).start()

    def pull(self) -> None:
        """Copy what has changed.

        Raises:
            NoSuchRun: the run does not answer.
            RunFailed: the copies cannot be written, or the run answers with something unknown.
        """
        try:
            listing = decode_listing(self._get(FILES_PATH, LARGEST_LISTING_BYTES))
            self._remember_nodes(listing)
            self._run_dir.logs.mkdir(exist_ok=True)
            # The record comes last: without it a directory does not count as a run.
            for name in sorted(
                filter(is_shown, listing.files), key=lambda name: name == self._run_dir.run.name
            ):
                self._copy(name, listing.files[name])
            if self._run_dir.endpoint.name not in listing.files:
                self._run_dir.endpoint.unlink(missing_ok=True)
        except Malformed as error:
            raise RunFailed(f"a machine of the run answered with something unknown: {error}") from error
        except OSError as error:
            raise RunFailed(f"cannot write {self._run_dir.root}: {error.strerror}") from error

    def _remember_nodes(self, listing: RunListing) -> None:
        if listing.nodes and listing.nodes != self._origin.nodes:
            self._origin = msgspec.structs.replace(self._origin, nodes=listing.nodes)
            replace_file(self._run_dir.root / ORIGIN, msgspec.json.encode(self._origin), durable=False)

    def _copy(self, name: str, size_bytes: int) -> None:
        path = self._run_dir.root / name
        # An empty file is new here too.
        present_bytes = path.stat().st_size if path.exists() else -1
        if not is_growing(name):
            content = self._get_part(name, 0)
            if not path.exists() or self._run_dir.files.read(path) != content:
                replace_file(path, content, durable=False)
        elif present_bytes != size_bytes and not self._append(name, path, max(0, present_bytes)):
            # The run has replaced the file meanwhile.
            path.unlink(missing_ok=True)
            self._append(name, path, 0)

    def _append(self, name: str, path: Path, present_bytes: int) -> bool:
        """Append the new end of a file; return False if its present end has changed."""
        begin = max(0, present_bytes - OVERLAP_BYTES)
        with path.open("r+b" if present_bytes else "wb") as file:
            for part in self._iterate_parts(name, begin):
                if begin < present_bytes:
                    file.seek(begin)
                    if not part.startswith(file.read(present_bytes - begin)):
                        return False
                file.seek(begin)
                file.write(part)
                begin += len(part)
            # A file that has become shorter ends before the copy.
            return begin >= present_bytes

    def _iterate_parts(self, name: str, begin: int) -> Iterator[bytes]:
        while part := self._get_part(name, begin):
            yield part
            begin += len(part)
            if len(part) < AT_ONCE_BYTES:
                return

    def _get_part(self, name: str, begin: int) -> bytes:
        return self._get(f"{FILES_PATH}/{quote(name)}?from={begin}", AT_ONCE_BYTES)

    def _get(self, path: str, at_most_bytes: int) -> bytes:
        return ask_any(
            self._origin.nodes,
            path,
            bytes.fromhex(self._origin.fingerprint),
            self._authorization,
            at_most_bytes=at_most_bytes,
        )

    def _keep_pulling(self, live: int) -> None:
        pulled_s = time.monotonic()
        while time.monotonic() - pulled_s < GONE_S:
            time.sleep(PULL_EVERY_S)
            if not self._may_pull():
                pulled_s = time.monotonic()
                continue
            # The run may have ended, or its machine in charge has just died.
            with contextlib.suppress(ElastaneError):
                self.pull()
                pulled_s = time.monotonic()
        os.close(live)
        os.close(self._pull_lock)

    def _may_pull(self) -> bool:
        """Return whether it is for this process to pull."""
        try:
            fcntl.flock(self._pull_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _refuse_links(run_dir: RunDir) -> None:
    """Raise `Malformed` if the copy of a file would be written where a link leads."""
    links = (*run_dir.files.list_links(run_dir.root), *run_dir.files.list_links(run_dir.logs))
    if links:
        raise Malformed(f"{links[0]} is a symbolic link")


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
