"""A claim list at a controller, over its API: a list of a team, or that of a job's run."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus

from elastane.common.bodies import Page
from elastane.common.connections.controller_connection import (
    ControllerConnection,
    RequestRefused,
    check_path_name,
)
from elastane.common.connections.controller_context import Context, find_context_of
from elastane.common.errors import BadInput, ElastaneError
from elastane.run.connections.record_store import RecordStore
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable, Content
from elastane.run.machines.claims.records import LARGEST_RECORD_BYTES, Unreadable
from elastane.run.machines.claims.slots import NewSlot, SlotAnswer, SlotContent

REQUEST_S = 3.0
"""The time limit of one request with its repetitions. `ClaimList` tries again while a claim has some time."""
RETRIED_STATUSES = (408, 409, 429)
"""Client errors that may go away; so may all server errors."""


class ControllerPlace:
    """Keeps each slot at a controller.

    Args:
        where: the list, as errors name it.
        path: of its requests.
        connect: opens the connection for one request at a time.
    """

    def __init__(
        self, where: str, path: str, connect: Callable[[], AbstractContextManager[ControllerConnection]]
    ) -> None:
        self.where = where
        self._path, self._open = path, connect

    def create(self, slot: int, content: bytes) -> bool:
        with self._connect("write") as connection:
            body = NewSlot(slot=slot, content=content)
            return connection.request("POST", self._path, SlotAnswer, body=body).written

    def read(self, first_slot: int) -> tuple[Content, ...]:
        with self._connect("read") as connection:
            found: list[Content] = []
            params = {"after": first_slot - 1 or None}
            for slot_content in connection.list_pages(self._path, Page[SlotContent], params):
                if slot_content.slot != first_slot + len(found):
                    break
                found.append(_check_content(slot_content))
            return tuple(found)

    def prove_writable(self) -> None:
        # A controller creates no slot twice, so only the right is in doubt.
        with self._connect("write") as connection:
            connection.send("GET", f"{self._path}/right")

    @contextmanager
    def _connect(self, action: str) -> Iterator[ControllerConnection]:
        """Yield a connection for one request.

        Raises:
            ClaimsUnavailable: the controller does not answer, or trying again may help otherwise.
            ClaimsUnusable: this machine has no token for it, or the token lacks a right.
        """
        try:
            with self._open() as connection:
                yield connection
        except RequestRefused as error:
            kind = ClaimsUnavailable if _may_go_away(error.problem.status) else ClaimsUnusable
            raise self._explain(kind, action, error) from error
        except BadInput as error:
            raise self._explain(ClaimsUnusable, action, error) from error
        except ElastaneError as error:
            raise self._explain(ClaimsUnavailable, action, error) from error

    def _explain(
        self, kind: type[ClaimsUnavailable] | type[ClaimsUnusable], action: str, error: ElastaneError
    ) -> ElastaneError:
        # What an error means for jobs is not what it means for a claim.
        means = "nothing was claimed" if kind is ClaimsUnusable else ""
        return kind(f"cannot {action} the claim list {self.where}: {error.what}", means=means, do=error.do)


def open_team_list(url: str) -> ControllerPlace:
    """Return a list in the store of a controller, for which this machine has a token.

    Args:
        url: of the controller, then the team and the name of the list.

    Raises:
        ClaimsUnusable: the URL lacks the team or the name.
    """
    where = url.rstrip("/")
    address, team, name = _split(where)
    path = f"/claims/{check_path_name(team)}/{check_path_name(name)}"
    return ControllerPlace(where, path, _TokenConnection(address).open)


def open_agent_list(store: RecordStore) -> ControllerPlace:
    """Return the list of a run of which a controller keeps the records."""
    return ControllerPlace(f"{store.where}/claims", f"{store.path}/claims", store.connect)


class _TokenConnection:
    """A connection with the token that this machine has for a controller.

    The token is read again for each request, so a new one counts at once, and it is in no file of the run.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._connection: ControllerConnection | None = None
        self._close: Callable[[], object] | None = None

    @contextmanager
    def open(self) -> Iterator[ControllerConnection]:
        """Yield the connection with the present token, to one thread at a time.

        Raises:
            BadInput: this machine has no token for the controller.
        """
        with self._lock:
            context = find_context_of(self._address)
            if self._connection is None or context != self._context:
                if self._close is not None:
                    self._close()
                self._connection = ControllerConnection.from_context(context, timeout_s=REQUEST_S)
                self._context = context
                # Claim lists are not closed: their connections end with them.
                self._close = weakref.finalize(self, self._connection.close)
            yield self._connection


def _may_go_away(status: int) -> bool:
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in RETRIED_STATUSES


def _split(url: str) -> tuple[str, str, str]:
    """Return the address of the controller, the team and the name of the list.

    Raises:
        ClaimsUnusable: one is missing.
    """
    scheme, _, rest = url.partition("://")
    front, _, name = rest.rpartition("/")
    host, _, team = front.rpartition("/")
    if not (host and team and name):
        raise ClaimsUnusable(
            f"{url} does not name a claim list of a controller",
            means="nothing was claimed",
            do="write https://HOST:PORT/TEAM",
        )
    return f"{scheme}://{host}", team, name


def _check_content(slot_content: SlotContent) -> Content:
    if slot_content.damage:
        return Unreadable(slot_content.damage)
    if len(slot_content.content) > LARGEST_RECORD_BYTES:
        return Unreadable(f"it has more than {LARGEST_RECORD_BYTES} bytes")
    return slot_content.content
