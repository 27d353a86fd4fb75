"""Visits with a ticket; the admission is kept, so one use serves all commands of one user on one machine."""

import hashlib
import os
import time
from pathlib import Path

import msgspec

from elastane.api.atomic_file import replace_file
from elastane.api.endpoint import read_secret
from elastane.api.errors import BadInput, RunFailed
from elastane.api.remote_files import MARK_PATH
from elastane.api.run_certificate import compute_fingerprint
from elastane.api.rundir import RunDir
from elastane.api.ticket_files import find_tickets, is_mark
from elastane.api.tickets import LARGEST_ADMISSION_BYTES, Admission, decode_admission, decode_ticket
from elastane.api.untrusted_data import Malformed, read_bytes
from elastane.client.mirror import create_mirror
from elastane.client.run_pages_client import ask_any, present_secret, redeem_ticket
from elastane.client.runs_home import find_home, make_home

SEEN_S = 10.0
"""A network file system may show a new file so much later."""
LOOK_S = 0.1
LARGEST_MARK_BYTES = 256


def visit_run(word: str) -> RunDir:
    """Return the directory of the run to which a ticket belongs, or a mirror of it on this machine.

    Raises:
        BadInput: the ticket is damaged, or the run refuses it.
        NoSuchRun: no machine of the run answers.
        RunFailed: the admission or the mirror cannot be written.
    """
    admission = get_admission(word)
    shared = RunDir(Path(admission.directory))
    return shared if _has_secret(shared, admission) else create_mirror(admission)


def find_shared_run(word: str) -> RunDir:
    """Return the directory of the run to which a ticket belongs, which this machine must share.

    Raises:
        BadInput: it does not share it; or see `visit_run`.
        NoSuchRun, RunFailed: see `visit_run`.
    """
    admission = get_admission(word)
    shared = RunDir(Path(admission.directory))
    if not _has_secret(shared, admission) or not _sees_mark(shared, admission):
        raise BadInput(
            f"this machine does not share the directory of the run: {shared.root}",
            means="all machines of a run write their checkpoints and logs there",
            do="mount the file system of the run at the same path, and join as the user of the run",
        )
    return shared


def get_admission(word: str) -> Admission:
    """Return the admission of a ticket: the kept one, or that for which the ticket is used now.

    Errors: see `visit_run`.
    """
    ticket = decode_ticket(word)
    path = find_home() / "admissions" / f"{hashlib.sha256(word.strip().encode()).hexdigest()[:24]}.json"
    try:
        return decode_admission(read_bytes(path, LARGEST_ADMISSION_BYTES, follow_links=False))
    except (OSError, Malformed):
        admission = redeem_ticket(ticket)
    try:
        make_home()
        path.parent.mkdir(exist_ok=True, mode=0o700)
        replace_file(path, msgspec.json.encode(admission), durable=False, mode=0o600)
    except OSError as error:
        raise RunFailed(
            f"cannot write {path}: {error.strerror}",
            means="the ticket was used, and its admission is lost",
            do="make room there, and get a new ticket if this one admits only once",
        ) from error
    return admission


def _has_secret(run_dir: RunDir, admission: Admission) -> bool:
    """Return whether a directory here has the secret of the run; it may still be a copy on another disk."""
    try:
        return read_secret(run_dir) == admission.secret
    except (OSError, Malformed):
        return False


def _sees_mark(run_dir: RunDir, admission: Admission) -> bool:
    """Return whether a file that a machine of the run writes now appears on this one."""
    name = ask_any(
        admission.nodes,
        MARK_PATH,
        compute_fingerprint(admission.endpoint.certificate),
        present_secret(admission.secret),
        at_most_bytes=LARGEST_MARK_BYTES,
    ).decode(errors="replace")
    if not is_mark(name):
        return False
    give_up = time.monotonic() + SEEN_S
    while time.monotonic() < give_up:
        # Listing asks a network file system anew; a look at one name may be answered from memory.
        if name in os.listdir(find_tickets(run_dir)):  # noqa: PTH208 - names, not paths
            (find_tickets(run_dir) / name).unlink(missing_ok=True)
            return True
        time.sleep(LOOK_S)
    return False
