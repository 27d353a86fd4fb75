"""Visits with a ticket; the admission is kept, so one use serves all commands of one user on one machine."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput, RunFailed
from elastane.common.home import find_home, make_home
from elastane.common.untrusted_data import Malformed, read_bytes
from elastane.run.connections.endpoint import CoordinatorEndpoint, hash_secret, read_secret
from elastane.run.connections.run_certificate import compute_fingerprint, read_certificate
from elastane.run.machines.tickets.remote_files import MARK_PATH
from elastane.run.machines.tickets.shared_places import (
    LARGEST_MARKS_BYTES,
    PlaceName,
    decode_marks,
    remove_mark,
)
from elastane.run.machines.tickets.ticket_files import find_tickets
from elastane.run.machines.tickets.tickets import (
    LARGEST_ADMISSION_BYTES,
    Admission,
    decode_admission,
    decode_ticket,
)
from elastane.run.machines.visits.mirror import create_mirror
from elastane.run.machines.visits.run_pages_client import (
    ask_any,
    explain_unknown_answer,
    present_secret,
    redeem_ticket,
)
from elastane.run.nouns.membership import NodeAddress, SiteName
from elastane.run.nouns.rundir import RunDir

SEEN_S = 10.0
"""A network file system may show a new file so much later."""
_PLACES: dict[PlaceName, str] = {
    "run": "the directory",
    "checkpoints": "the directory of the checkpoints",
    "claims": "the claim list",
}
_MEANINGS: dict[PlaceName, str] = {
    "run": "all machines of a run write their checkpoints and logs there",
    "checkpoints": "each worker writes its part of a checkpoint there, so no checkpoint would be complete",
    "claims": "this machine could not take charge of the run when the machine in charge dies",
}


def visit_run(word: str) -> RunDir:
    """Return the directory of the run to which a ticket belongs, or a mirror of it on this machine.

    Raises:
        BadInput: the ticket is damaged, the run refuses it, or it is one of a site and this machine does not
            share the directory.
        NoSuchRun: no machine of the run answers.
        RunFailed: the admission or the mirror cannot be written.
    """
    admission = get_admission(word)
    shared = RunDir(Path(admission.directory))
    if _has_secret(shared, admission):
        return shared
    if admission.sites:
        raise BadInput(
            f"the ticket admits only machines of site {', '.join(admission.sites)}",
            means="commands on a machine without the directory of the run need a ticket of the whole run",
            do="get one from the owner of the run: elastane ticket create RUN",
        )
    return create_mirror(admission)


def find_shared_run(word: str) -> tuple[RunDir, tuple[SiteName, ...]]:
    """Return the directory of the run to which a ticket belongs, and the sites of the ticket.

    This machine must share the directory.

    Raises:
        BadInput: it does not share it, or another directory of the run; or see `visit_run`.
        NoSuchRun, RunFailed: see `visit_run`.
    """
    admission = get_admission(word)
    shared = RunDir(Path(admission.directory))
    if not _has_secret(shared, admission):
        raise explain_unshared("run", shared.root)
    _check_certificate(shared, admission)
    check_shared_places(shared, admission.nodes, admission.endpoint, read_secret(shared))
    return shared, admission.sites


def get_admission(word: str) -> Admission:
    """Return the admission of a ticket: the kept one, or that for which the ticket is used now.

    Errors: see `visit_run`.
    """
    ticket = decode_ticket(word)
    path = find_home() / "admissions" / f"{hashlib.sha256(word.strip().encode()).hexdigest()[:24]}.json"
    try:
        return decode_admission(read_bytes(path, LARGEST_ADMISSION_BYTES))
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
        return hash_secret(read_secret(run_dir)) == admission.secret_digest
    except (OSError, Malformed):
        return False


def _check_certificate(run_dir: RunDir, admission: Admission) -> None:
    """Check that the machine which has admitted this one belongs to the present attempt of a run here.

    Each holder of a site's ticket knows the digest of the run's secret. It could write a ticket of its own,
    with this digest in the admission, and would be sent the secret itself.
    """
    try:
        certificate = read_certificate(run_dir)
    except (OSError, Malformed) as error:
        raise explain_unshared("run", run_dir.root) from error
    if certificate != admission.endpoint.certificate:
        raise BadInput(
            "the ticket is not one of the present attempt of the run",
            means=f"the machine that answers to it has another certificate than the run in {run_dir.root}",
            do="get a new one from the owner of the run: elastane ticket create RUN",
        )


def check_shared_places(
    run_dir: RunDir, nodes: Iterable[NodeAddress], endpoint: CoordinatorEndpoint, secret: str
) -> None:
    """Check that this machine shares the directories that all machines of a run must share.

    A machine of the run writes a file in each of them, which must appear on this one.

    Raises:
        BadInput: it does not share one of them, or cannot write there.
        NoSuchRun: no machine of the run answers.
    """
    body = ask_any(
        nodes,
        MARK_PATH,
        compute_fingerprint(endpoint.certificate),
        present_secret(secret),
        at_most_bytes=LARGEST_MARKS_BYTES,
    )
    try:
        marks = decode_marks(body)
    except Malformed as error:
        raise explain_unknown_answer(error) from error
    for mark in marks:
        directory = find_tickets(run_dir) if mark.place == "run" else Path(mark.directory)
        shown = run_dir.root if mark.place == "run" else directory
        try:
            seen = remove_mark(directory, mark.name, wait_s=SEEN_S)
        except OSError as error:
            raise BadInput(
                f"this machine cannot write {_PLACES[mark.place]} of the run: {shown}: {error.strerror}",
                means=_MEANINGS[mark.place],
                do="join as the user of the run, on a file system that this machine can write",
            ) from error
        if not seen:
            raise explain_unshared(mark.place, shown)


def explain_unshared(place: PlaceName, directory: Path) -> BadInput:
    """Return the error for a machine that does not share a directory of a run."""
    elsewhere = {
        "run": ", and join as the user of the run",
        "checkpoints": ", or start the run with a --checkpoint-dir or URL that all machines share",
        "claims": ", or start the run with a directory or URL for --claims that all machines share",
    }
    return BadInput(
        f"this machine does not share {_PLACES[place]} of the run: {directory}",
        means=_MEANINGS[place],
        do=f"mount its file system at the same path{elsewhere[place]}",
    )
