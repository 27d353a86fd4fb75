"""The process that sends one message, or examines one URL.

It is a process of its own because services are slow, apprise is large, and its log has secrets: nothing that
it prints is kept, and the controller kills it without harm. ``python -m`` with the name of this module reads
an `Order` from its standard input. It writes what it found about a URL to its standard output, and the
outcome of a message to its receipt.
"""

import os
import sys
import threading
from pathlib import Path
from typing import TypeAlias

import msgspec

from elastane.cluster.controller.notifications.deliveries import Outcome
from elastane.cluster.controller.notifications.receipts import BEGUN, write_receipt
from elastane.cluster.controller.notifications.sealing import seal, unseal
from elastane.cluster.controller.notifications.services import open_service, read_service
from elastane.common.errors import ElastaneError

LONGEST_S = 20.0
"""A service has this long to answer."""


class ExamineUrl(msgspec.Struct, frozen=True, tag=True):
    """An order to examine a URL, and to encrypt it."""

    home: str
    url: str


class SendMessage(msgspec.Struct, frozen=True, tag=True):
    """An order to send a message.

    Args:
        receipt: descriptor of its receipt.
        longest_s: time that the service has to answer.
        left_out: see `Outcome`.
    """

    home: str
    sealed: bytes
    title: str
    body: str
    receipt: int
    longest_s: float = LONGEST_S
    left_out: int = 0


class ExaminedUrl(msgspec.Struct, frozen=True, tag=True):
    """The answer about a URL. `elastane.cluster.controller.notifications.services.Service` has the fields."""

    service: str
    host: str
    is_hosted: bool
    sealed: bytes


class RefusedUrl(msgspec.Struct, frozen=True, tag=True):
    """The answer about a URL that cannot be a target."""

    what: str
    means: str
    do: str


Order: TypeAlias = ExamineUrl | SendMessage
Answer: TypeAlias = ExaminedUrl | RefusedUrl


def examine(order: ExamineUrl) -> Answer:
    """Return what a URL names, with the URL encrypted; or why it cannot be a target."""
    try:
        service = read_service(order.url)
        sealed = seal(Path(order.home), order.url)
    except ElastaneError as error:
        return RefusedUrl(error.what, error.means, error.do)
    return ExaminedUrl(service.name, service.host, service.is_hosted, sealed)


def send(order: SendMessage) -> Outcome:
    """Send a message, and return the outcome."""
    service = open_service(unseal(Path(order.home), order.sealed))
    if service is None:
        return Outcome(result="failed", why="the URL of the target is not one of apprise any more")
    write_receipt(order.receipt, BEGUN)
    from apprise import Apprise, NotifyFormat

    # The end of our time counts: after a shorter one, the message would seem not to have arrived.
    service.socket_read_timeout = order.longest_s + 10
    sender = Apprise(asset=service.asset)
    sender.add(service)
    # A thread, because the lookup of a name cannot be interrupted.
    limit = threading.Timer(order.longest_s, end_late, (order,))
    limit.daemon = True
    limit.start()
    # As text: it has no markup, and services that take HTML get it escaped.
    is_sent = sender.notify(title=order.title, body=order.body, body_format=NotifyFormat.TEXT)
    limit.cancel()
    if is_sent:
        return Outcome(result="sent", left_out=order.left_out)
    return Outcome(result="failed", why="the service could not be reached, or it has refused the message")


def end_late(order: SendMessage) -> None:
    """End this process, which waits for a service that does not answer."""
    late = Outcome(result="unknown", why=f"the service did not answer within {order.longest_s:g} s")
    write_receipt(order.receipt, msgspec.json.encode(late))
    os._exit(1)


def main() -> None:
    os.nice(10)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if isinstance(order, ExamineUrl):
        sys.stdout.buffer.write(msgspec.json.encode(examine(order)))
        return
    try:
        outcome = send(order)
    except ElastaneError as error:
        outcome = Outcome(result="failed", why=error.what)
    except Exception as error:  # noqa: BLE001 - the text of apprise's errors may have the URL
        outcome = Outcome(result="unknown", why=f"apprise has failed ({type(error).__name__})")
    write_receipt(order.receipt, msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
