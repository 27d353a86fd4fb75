"""Requests to the agents of a run on several machines, over HTTPS with the run's certificate pinned."""

import hashlib
import hmac
import http.client
import ssl
from collections.abc import Iterable
from http import HTTPStatus

from elastane.common.errors import BadInput, NoSuchRun
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import build_bearer_header
from elastane.run.machines.tickets.tickets import (
    LARGEST_ADMISSION_BYTES,
    Admission,
    Ticket,
    decode_admission,
    write_authorization,
)
from elastane.run.nouns.membership import NodeAddress

TIMEOUT_S = 5.0
LARGEST_REFUSAL_BYTES = 1024
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Unanswered(Exception):
    """One machine did not answer, or something else answered in its place; the message gives the reason."""


def redeem_ticket(ticket: Ticket) -> Admission:
    """Present a ticket to the machines that it names, one after the other, and return the admission.

    Raises:
        BadInput: the run refuses the ticket.
        NoSuchRun: no machine of the run answers.
    """
    nodes = tuple(NodeAddress("", host, port) for host, port in ticket.addresses)
    body = ask_any(
        nodes, "/", ticket.fingerprint, write_authorization(ticket), at_most_bytes=LARGEST_ADMISSION_BYTES
    )
    try:
        return decode_admission(body)
    except Malformed as error:
        raise explain_unknown_answer(error) from error


def explain_unknown_answer(error: Malformed) -> BadInput:
    """Return the error for an answer of the run that this version of Elastane does not know."""
    return BadInput(
        f"the run answered with something unknown: {error}",
        means="it has another version of Elastane",
        do="use the version of Elastane on this machine that the run uses",
    )


def present_secret(secret: str) -> str:
    """Return the Authorization header for a client of the run."""
    return build_bearer_header(secret)["Authorization"]


def ask_any(
    nodes: Iterable[NodeAddress], path: str, fingerprint: bytes, authorization: str, *, at_most_bytes: int
) -> bytes:
    """Return the answer of the first machine that gives one.

    Args:
        nodes: the machines to ask, in this order.
        path: of the page, with its query.
        fingerprint: of the run's certificate; nothing is sent to a machine without it.
        authorization: the header with a ticket or the secret.
        at_most_bytes: size limit of the answer.

    Raises:
        BadInput: the run refuses the request; the error has its reason.
        NoSuchRun: no machine of the run answers.
    """
    reasons = []
    for node in nodes:
        try:
            return _ask(node, path, fingerprint, authorization, at_most_bytes)
        except Unanswered as error:
            reasons.append(f"{node.host} port {node.port}: {error}")
    raise NoSuchRun(
        f"no machine of the run answers: {'; '.join(reasons)}",
        means="the run has ended, these machines have left it, or the network is in the way",
        do="check the run on one of its machines, and get a new ticket there: elastane ticket create RUN",
    )


def _ask(node: NodeAddress, path: str, fingerprint: bytes, authorization: str, at_most_bytes: int) -> bytes:
    """Return the answer of one machine.

    Raises:
        BadInput: it refuses the request.
        Unanswered: it gives no answer.
    """
    connection = http.client.HTTPSConnection(
        node.host, node.port, timeout=TIMEOUT_S, context=_build_context()
    )
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket), "an HTTPS connection has one"
        certificate = connection.sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(certificate).digest(), fingerprint):
            raise Unanswered("it has another certificate, so it is not this attempt of the run")
        connection.request("GET", path, headers={"Authorization": authorization})
        response = connection.getresponse()
        if response.status in REFUSED:
            raise BadInput(
                escape_line(response.read(LARGEST_REFUSAL_BYTES).decode(errors="replace").strip()),
                do="get a new ticket on a machine of the run: elastane ticket create RUN",
            )
        if response.status != HTTPStatus.OK:
            why = escape_line(response.read(LARGEST_REFUSAL_BYTES).decode(errors="replace"))
            raise Unanswered(f"status {response.status}, {why}")
        body = response.read(at_most_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if len(body) > at_most_bytes:
        raise Unanswered("its answer is too large")
    return body


def _build_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate; its fingerprint is compared before anything is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
