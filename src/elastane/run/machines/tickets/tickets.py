"""Tickets: one word that lets a machine or a user take part in a run on several machines.

A ticket says where the run's machines answer and with which certificate, and has a key. A client shows the
key to a machine only after its certificate has matched. The run directory keeps only a hash of the key.

A ticket of a site admits machines of this site only, and does not have the run's secret for its holder.
"""

import hashlib
import hmac
import re
import secrets
import time
from typing import Annotated

import msgspec

from elastane.common.checked_words import decode_word, encode_word
from elastane.common.durations import format_duration
from elastane.common.errors import BadInput, NoSuchRun
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.nouns.membership import (
    LARGEST_NODE_BYTES,
    MOST_NODES,
    MOST_SITES,
    Host,
    NodeAddress,
    SiteName,
)

BEGIN = "elastane1-"
"""The first characters of a ticket; the number is the version of its form."""
COPY_WHOLE = "copy the whole word that elastane run or elastane ticket create printed"
SCHEME = "Ticket"
"""The scheme of the Authorization header that presents a ticket."""
ID_BYTES, KEY_BYTES = 4, 16
MOST_ADDRESSES = 8
LONGEST_TICKET = 2048
LARGEST_ADMISSION_BYTES = (64 << 10) + MOST_NODES * LARGEST_NODE_BYTES
"""Its certificate, secret and paths fit into the first part."""
_MEANT = re.compile(r"elastane\d+-\S{24}")
_BEGUN = re.compile(r"elastane\d+-")

RunName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
"""It names a directory on the client's machine."""
TicketId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}\Z")]


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """The content of a ticket.

    Args:
        id: names it in the run.
        key: the secret part, 16 random bytes.
        fingerprint: SHA-256 of the run's certificate, in DER.
        addresses: hosts and TCP ports at which machines of the run answer, the most useful first.
    """

    id: TicketId
    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    fingerprint: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    addresses: Annotated[
        tuple[tuple[Host, Annotated[int, msgspec.Meta(ge=1, le=65535)]], ...],
        msgspec.Meta(min_length=1, max_length=MOST_ADDRESSES),
    ]


class TicketRecord(msgspec.Struct, frozen=True):
    """What the run keeps of a ticket.

    Args:
        key_digest: SHA-256 of its key, in hexadecimal digits.
        created: as a Unix time in seconds.
        expires: as a Unix time in seconds; None: with the run.
        uses: how often it admits a machine or a user; None: without limit.
        sites: those of which it admits machines; empty: it admits machines of any site, and users.
    """

    key_digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: float
    expires: float | None = None
    uses: Annotated[int, msgspec.Meta(ge=1)] | None = None
    sites: Annotated[tuple[SiteName, ...], msgspec.Meta(max_length=MOST_SITES)] = ()


class Admission(msgspec.Struct, frozen=True):
    """The answer to a valid ticket: all that a client of the run needs.

    Args:
        directory: of the run, on its machines.
        secret: of the run; empty for a ticket of a site: machines read it in the directory.
        secret_digest: SHA-256 of the secret, in hexadecimal digits.
        endpoint: of the coordinator, with the run's certificate.
        nodes: the addresses at which the agents of the run answer.
        sites: those of the ticket; empty: any.
    """

    name: RunName
    directory: str
    secret: str
    secret_digest: str
    endpoint: CoordinatorEndpoint
    nodes: tuple[NodeAddress, ...]
    sites: tuple[SiteName, ...] = ()


decode_admission: Decoder[Admission] = Decoder(Admission, at_most_bytes=LARGEST_ADMISSION_BYTES)
_decode: Decoder[Ticket] = Decoder(Ticket, format="msgpack", at_most_bytes=LONGEST_TICKET)


def create_ticket(
    fingerprint: bytes,
    addresses: tuple[tuple[str, int], ...],
    *,
    uses: int | None = None,
    valid_s: float | None = None,
    sites: tuple[SiteName, ...] = (),
) -> tuple[Ticket, TicketRecord]:
    """Return a new ticket, and what the run keeps of it.

    Args:
        fingerprint: SHA-256 of the run's certificate.
        addresses: of machines of the run; the first `MOST_ADDRESSES` count.
        uses: how often it admits; None: without limit.
        valid_s: for how many seconds; None: as long as the run.
        sites: those of which it admits machines; empty: any, and users.
    """
    key = secrets.token_bytes(KEY_BYTES)
    now = time.time()
    record = TicketRecord(
        hashlib.sha256(key).hexdigest(), now, None if valid_s is None else now + valid_s, uses, sites
    )
    return Ticket(secrets.token_hex(ID_BYTES), key, fingerprint, addresses[:MOST_ADDRESSES]), record


def is_ticket(text: str) -> bool:
    """Return whether a text is meant as a ticket, of any version."""
    return _MEANT.match(text) is not None


def explain_part_of_ticket(text: str) -> BadInput | NoSuchRun | None:
    """Return the error for a text that is not a ticket but has a part of one; None: it has not.

    Args:
        text: is also no name of a run.
    """
    words = text.split()
    if not any(_BEGUN.match(word) for word in words):
        return None
    if len(words) > 1:
        return BadInput(
            f"{' '.join(words)[:40]!r} is more than a ticket",
            means=f"a ticket is the one word that begins with {BEGIN}",
            do="pass only that word",
        )
    return NoSuchRun(
        f"there is no run {text!r}, and as a ticket it is incomplete",
        means=f"a ticket has at least {len(BEGIN) + 24} characters, so it was copied in part",
        do=COPY_WHOLE,
    )


def encode_ticket(ticket: Ticket) -> str:
    """Return a ticket as one word without characters that a shell treats specially."""
    return encode_word(BEGIN, msgspec.msgpack.encode(ticket))


def decode_ticket(text: str) -> Ticket:
    """Return the ticket that a word describes.

    Raises:
        BadInput: it is not one, or not a whole one.
    """
    word = text.strip()
    if not word.startswith(BEGIN):
        raise BadInput(
            "the ticket has a form that this version of Elastane does not know",
            means=f"this version reads tickets that begin with {BEGIN}",
            do="use the version of Elastane on this machine that the run uses",
        )
    try:
        return _decode(decode_word(BEGIN, word, longest=LONGEST_TICKET))
    except Malformed as error:
        raise BadInput(
            f"the ticket is damaged: {error}",
            means="it was copied in part, or changed on its way",
            do=COPY_WHOLE,
        ) from None


def present_ticket(ticket: Ticket) -> str:
    """Return the id and the key of a ticket in one text."""
    return f"{ticket.id}.{ticket.key.hex()}"


def write_authorization(ticket: Ticket) -> str:
    """Return the Authorization header that presents a ticket."""
    return f"{SCHEME} {present_ticket(ticket)}"


def read_authorization(header: str) -> tuple[str, bytes] | None:
    """Return the id and the key of the ticket that a header presents; None: it presents none."""
    scheme, _, presented = header.partition(" ")
    return read_presented(presented) if scheme == SCHEME else None


def read_presented(text: str) -> tuple[str, bytes] | None:
    """Return the id and the key from `present_ticket`; None: the text has another form."""
    ticket_id, _, key = text.partition(".")
    if not is_ticket_id(ticket_id) or not _is_hexadecimal(key, 2 * KEY_BYTES):
        return None
    return ticket_id, bytes.fromhex(key)


def is_ticket_id(text: str) -> bool:
    """Return whether a text can be the id of a ticket."""
    return _is_hexadecimal(text, ID_BYTES * 2)


def _is_hexadecimal(text: str, length: int) -> bool:
    return len(text) == length and all(character in "0123456789abcdef" for character in text)


def matches_key(record: TicketRecord, key: bytes) -> bool:
    """Return whether a key is that of the ticket; the time does not depend on where they differ."""
    return hmac.compare_digest(hashlib.sha256(key).hexdigest(), record.key_digest)


def find_ticket_fault(record: TicketRecord, *, used: int, revoked: bool, now: float) -> str:
    """Return why a ticket with the right key does not admit; empty: it does.

    Args:
        used: how often it has admitted.
        revoked: a user has revoked it.
        now: as a Unix time in seconds, by the clock of a machine of the run.
    """
    if revoked:
        return "the ticket was revoked"
    if record.expires is not None and now >= record.expires:
        return f"the ticket expired {format_duration(now - record.expires)} ago"
    if record.uses is not None and used >= record.uses:
        times = "once" if record.uses == 1 else f"{record.uses} times"
        return f"the ticket was valid for use {times}, and is used up"
    return ""
