"""The tickets of a run, as files in its directory: each machine of the run reads and uses them.

Each ticket has a file with its `TicketRecord`, one with the ending ``.revoked`` once a user has revoked it,
and one with the ending ``.use-N`` for the N-th time that it has admitted. Files appear whole and once, so one
machine makes the last use.

A new attempt of the run begins without tickets, except those of sites: machines that have joined with one
take part in it too. The certificate is another one then, so these tickets admit no further machines.
"""

import secrets
import time
from collections.abc import Collection, Iterable
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
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.rundir import TICKETS, RunDir

LARGEST_RECORD_BYTES = 8192
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
    """Prepare the place for the tickets of a new attempt; of those of an earlier one, those of sites stay.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = find_tickets(run_dir)
    directory.mkdir(mode=0o700, exist_ok=True)
    kept = {ticket.id for ticket in SiteTickets(run_dir).read()}
    for name in _list_names(run_dir):
        if name.partition(".")[0] not in kept:
            (directory / name).unlink(missing_ok=True)


def issue_ticket(
    run_dir: RunDir,
    fingerprint: bytes,
    addresses: tuple[tuple[str, int], ...],
    *,
    uses: int | None = None,
    valid_s: float | None = None,
    sites: tuple[SiteName, ...] = (),
) -> Ticket:
    """Return a new ticket, and record it; see `create_ticket`.

    Raises:
        RunFailed: it cannot be recorded.
    """
    ticket, record = create_ticket(fingerprint, addresses, uses=uses, valid_s=valid_s, sites=sites)
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
    names = _list_names(run_dir)
    found = [
        _describe(ticket_id, record, names)
        for ticket_id in _list_ids(names)
        if (record := _read_record(run_dir, ticket_id)) is not None
    ]
    return tuple(sorted(found, key=lambda ticket: ticket.record.created))


class SiteTickets:
    """The tickets of sites, which the coordinator reads again and again: a record never changes."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._records: dict[TicketId, TicketRecord] = {}

    def read(self) -> tuple[TicketStatus, ...]:
        """Return the tickets of sites that can be read, by their ids.

        Raises:
            OSError: the directory cannot be read.
        """
        names = _list_names(self._run_dir)
        ids = _list_ids(names)
        for ticket_id in ids:
            # A network file system may show a name before its file.
            if ticket_id not in self._records and (record := _read_record(self._run_dir, ticket_id)):
                self._records[ticket_id] = record
        return tuple(
            _describe(ticket_id, record, names)
            for ticket_id in ids
            if (record := self._records.get(ticket_id)) is not None and record.sites
        )


def _list_names(run_dir: RunDir) -> Collection[str]:
    """Return the names of the files of tickets, sorted; none if a link is in the place of their directory."""
    try:
        return run_dir.files.list_files(find_tickets(run_dir)).keys()
    except Malformed:
        return ()


def _list_ids(names: Iterable[str]) -> list[TicketId]:
    ids = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [ticket_id for ticket_id in ids if is_ticket_id(ticket_id)]


def _read_record(run_dir: RunDir, ticket_id: TicketId) -> TicketRecord | None:
    """Return the record of a ticket; None: it is damaged, so it admits no machine, and hides no other ticket.

    Raises:
        OSError: the file system is away.
    """
    try:
        path = find_tickets(run_dir) / f"{ticket_id}.json"
        return _decode(run_dir.files.read(path, LARGEST_RECORD_BYTES))
    except (Malformed, FileNotFoundError, PermissionError):
        return None


def _describe(ticket_id: TicketId, record: TicketRecord, names: Collection[str]) -> TicketStatus:
    used = sum(name.startswith(f"{ticket_id}.use-") for name in names)
    return TicketStatus(ticket_id, record, used, f"{ticket_id}.revoked" in names)


def read_ticket(run_dir: RunDir, ticket_id: TicketId) -> TicketStatus:
    """Return a ticket of a run.

    Raises:
        Malformed: its record is damaged.
        OSError: it has no record.
    """
    path = find_tickets(run_dir) / f"{ticket_id}.json"
    record = _decode(run_dir.files.read(path, LARGEST_RECORD_BYTES))
    return _describe(ticket_id, record, _list_names(run_dir))


def revoke_tickets(run_dir: RunDir, id_or_site: str) -> list[TicketId]:
    """Let a ticket, or all tickets of a site, admit no one any more, and return their ids.

    Raises:
        BadInput: the run has no such ticket.
        OSError: the directory cannot be read or written.
    """
    tickets = list_tickets(run_dir)
    ids = [ticket.id for ticket in tickets if ticket.id == id_or_site] or [
        ticket.id for ticket in tickets if id_or_site in ticket.record.sites
    ]
    if not ids:
        raise BadInput(
            f"the run has no ticket {id_or_site}",
            do="choose one that elastane ticket list shows, by its first column, or a site",
        )
    for ticket_id in ids:
        create_file(find_tickets(run_dir) / f"{ticket_id}.revoked", b"")
    return ids


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
