"""Job tickets: one word with which one agent finds its controller and proves itself to it.

An agent that waited for days in the queue of its engine learns then what its job needs. The word is a secret
until the agent has ended: a machine reads it from its standard input, never from its arguments.
"""

from typing import Annotated

import msgspec

from elastane.cluster.nouns.agents import AgentId
from elastane.common.checked_words import decode_word, encode_word
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed

BEGIN = "elastane2-"
"""The first characters of a job ticket; the number tells it from the ticket of a run."""
LONGEST_TICKET = 8192
KEY_BYTES = 16


class JobTicket(msgspec.Struct, frozen=True, array_like=True):
    """The content of a job ticket.

    Args:
        url: of the controller.
        agent: the only agent that may use it.
        key: the secret part, 16 random bytes.
        certificate: of the controller, in PEM, which the agent trusts; empty: it trusts the authorities of
            its machine.
    """

    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]+\Z", max_length=512)]
    agent: AgentId
    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    certificate: Annotated[str, msgspec.Meta(max_length=4096)] = ""


_decode: Decoder[JobTicket] = Decoder(JobTicket, format="msgpack", at_most_bytes=LONGEST_TICKET)


def is_job_ticket(text: str) -> bool:
    """Return whether a text is meant as a job ticket."""
    return text.startswith(BEGIN)


def encode_job_ticket(ticket: JobTicket) -> str:
    """Return a job ticket as one word."""
    return encode_word(BEGIN, msgspec.msgpack.encode(ticket))


def decode_job_ticket(word: str) -> JobTicket:
    """Return the job ticket that a word describes."""
    try:
        return _decode(decode_word(BEGIN, word.strip(), longest=LONGEST_TICKET))
    except Malformed as error:
        raise BadInput(
            f"the job ticket is damaged: {error}",
            means="it was copied in part, or changed on its way; this machine takes part in no job",
            do="an engine starts agents with whole tickets; let it start this one again",
        ) from None


def encode_credentials(key: bytes) -> str:
    """Return the key as the credentials of an Authorization header."""
    return key.hex()
