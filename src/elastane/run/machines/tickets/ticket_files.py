"""The tickets of a run, as files in its directory: each machine of the run reads and uses them.

``ID.json`` holds the `TicketRecord`, ``ID.revoked`` says that a user has revoked the ticket, and ``ID.use-N``
that it has admitted for the N-th time. Files appear whole and once, so one machine makes the last use.
"""

import secrets
import shutil
import time
from pathlib import Path

import msgspec

from elastane.common.atomic_file import create_file
from elastane.common.errors import BadInput, RunFailed
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.machines.tickets.tickets import (
    Ticket,
    TicketId,
    TicketRecord,
    create_ticket,
    find_ticket_fault,
    is_ticket_id,
    matches_key,
)
from elastane.run.nouns.rundir import TICKETS, RunDir

LARGEST_RECORD_BYTES = 1024
SECRET_MODE = 0o600
UNKNOWN = "the run has no such ticket"

_decode: Decoder[TicketRecord] = Decoder(TicketRecord, at_most_bytes=LARGEST_RECORD_BYTES)


class TicketStatus(msgspec.Struct, frozen=True):
    """A ticket of a run.

    Args:
        record: what the run keeps of it.
        used: how often it has admitted, if its uses are limited.
        revoked: a user has revoked it.
    """

    id: TicketId
    record: TicketRecord
    used: int
    revoked: bool


def find_tickets(run_dir: RunDir) -> Path:
    """Return the directory of a run's tickets."""
    return run_dir.root / TICKETS


def open_tickets(run_dir: RunDir) -> None:
    """Prepare the place for the tickets of a new attempt; those of an earlier one are removed.

    Raises:
        OSError: the directory cannot be written.
    """
    shutil.rmtree(find_tickets(run_dir), ignore_errors=True)
    find_tickets(run_dir).mkdir(mode=0o700, exist_ok=True)


def issue_ticket(
    run_dir: RunDir,
    fingerprint: bytes,
    addresses: tuple[tuple[str, int], ...],
    *,
    uses: int | None = None,
    valid_s: float | None = None,
) -> Ticket:
    """Return a new ticket, and record it; see `create_ticket`.

    Raises:
        RunFailed: it cannot be recorded.
    """
    ticket, record = create_ticket(fingerprint, addresses, uses=uses, valid_s=valid_s)
    try:
        create_file(
            find_tickets(run_dir) / f"{ticket.id}.json", msgspec.json.encode(record), mode=SECRET_MODE
        )
    except OSError as error:
        raise RunFailed(
            f"cannot record the ticket in {find_tickets(run_dir)}: {error.strerror}",
            means="no machine of the run would know it",
            do="check the file system of the run",
        ) from error
    return ticket


def list_tickets(run_dir: RunDir) -> tuple[TicketStatus, ...]:
    """Return the tickets of a run that can be read, oldest first.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for name in run_dir.files.list_files(find_tickets(run_dir)):
        ticket_id = name.removesuffix(".json")
        if ticket_id == name or not is_ticket_id(ticket_id):
            continue
        try:
            found.append(read_ticket(run_dir, ticket_id))
        except (Malformed, OSError):
            # It admits no one, and must not hide the others.
            continue
    return tuple(sorted(found, key=lambda ticket: ticket.record.created))


def read_ticket(run_dir: RunDir, ticket_id: TicketId) -> TicketStatus:
    """Return a ticket of a run.

    Raises:
        Malformed: its record is damaged.
        OSError: it has no record.
    """
    path = find_tickets(run_dir) / f"{ticket_id}.json"
    record = _decode(run_dir.files.read(path, LARGEST_RECORD_BYTES))
    names = run_dir.files.list_files(find_tickets(run_dir))
    used = sum(name.startswith(f"{ticket_id}.use-") for name in names)
    return TicketStatus(ticket_id, record, used, f"{ticket_id}.revoked" in names)


def revoke_ticket(run_dir: RunDir, ticket_id: str) -> None:
    """Let a ticket admit no one any more.

    Raises:
        BadInput: the run has no such ticket.
        OSError: the directory cannot be written.
    """
    if not is_ticket_id(ticket_id) or not (find_tickets(run_dir) / f"{ticket_id}.json").exists():
        raise BadInput(
            f"the run has no ticket {ticket_id}",
            do="choose one that elastane ticket list shows, by its first column",
        )
    create_file(find_tickets(run_dir) / f"{ticket_id}.revoked", b"")


def use_ticket(run_dir: RunDir, ticket_id: str, key: bytes) -> str:
    """Use a ticket once; return why it does not admit, or an empty text if it does.

    Raises:
        OSError: its use cannot be recorded.
    """
    try:
        ticket = read_ticket(run_dir, ticket_id)
    except (Malformed, FileNotFoundError):
        return UNKNOWN
    if not matches_key(ticket.record, key):
        return UNKNOWN
    used, now = ticket.used, time.time()
    while not (why := find_ticket_fault(ticket.record, used=used, revoked=ticket.revoked, now=now)):
        used += 1
        if ticket.record.uses is None or _record_use(run_dir, ticket_id, used):
            break
    return why


def _record_use(run_dir: RunDir, ticket_id: TicketId, number: int) -> bool:
    """Return whether this call made the N-th use of a ticket."""
    path, mark = find_tickets(run_dir) / f"{ticket_id}.use-{number}", secrets.token_bytes(16)
    # Only the content tells: over a network file system the reply to the first attempt may have been lost.
    return create_file(path, mark, mode=SECRET_MODE) or run_dir.files.read(path, len(mark)) == mark
