"""The authenticated sender of a request: authentication, rights, and the one way to change anything.

A route with a `Caller` only reads. A route with a `Changer` or an `Editor` accepts their headers, and its
description has them.
"""

import hashlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.security import HTTPBearer
from sqlalchemy import Connection

from elastane.cluster.controller.access.refusals import Refused
from elastane.cluster.controller.access.roles import (
    Action,
    Denied,
    Principal,
    Target,
    authorize,
    list_visible_teams,
    read_principal,
)
from elastane.cluster.controller.rest.bodies import build_response
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.rest.parameters import PRINTABLE
from elastane.cluster.controller.rest.problems import Refusal, answer_refusal, make_missing_error
from elastane.cluster.controller.store import history, replies, tokens
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.controller.store.tokens import PREFIX, compute_digest
from elastane.common.safe_text import LONGEST_TEXT

LONGEST_BY_OPERATORS = 64 * 1024
"""Limit of the detail of an operator's change in the audit log: it may be a whole configuration."""

log = logging.getLogger(__name__)


class NotAllowed(Refusal):
    """A right is missing. The handler of `install_refusal_audit` adds the refusal to the audit log."""

    def __init__(self, caller: "Caller", action: Action, target: Target, denied: Denied) -> None:
        self.caller, self.target, self.reason = caller, target, denied.reason
        self.refused = Refused(
            action=action, target=target.name, reason=denied.reason, visible=denied.visible
        )
        shown = make_missing_error(target.name)
        if denied.visible:
            super().__init__(
                HTTPStatus.FORBIDDEN,
                denied.reason,
                means="nothing was done; the audit log has a record of the attempt",
                do=f"ask {denied.ask}" if denied.ask else "",
            )
        else:
            super().__init__(shown.status, shown.what, means=shown.means, do=shown.do)


class Caller:
    """The sender of one request with a valid token."""

    def __init__(
        self, *, principal: Principal, controller: Controller, request: Request, now_s: float
    ) -> None:
        self.principal = principal
        self.controller = controller
        self.request = request
        self.now_s = now_s
        self._about = Target(name="")

    @property
    def teams(self) -> tuple[str, ...] | None:
        """The teams that the caller may list things of; None: all teams."""
        return list_visible_teams(self.principal)

    @property
    def of_the_cluster(self) -> bool:
        """Whether things of no team are visible too. A role in every team covers only things of teams."""
        return self.principal.role == "operator"

    def require_right(self, action: Action, target: Target) -> None:
        """Check that the caller may do this."""
        match authorize(self.principal, action, target):
            case Denied() as denied:
                raise NotAllowed(self, action, target, denied)
            case _:
                self._about = target

    def begin_read(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that reads one state of the store."""
        return self.controller.store.begin_read()

    def audit(
        self, tx: Connection, action: str, target: str, team: str, *, allowed: bool, detail: str
    ) -> None:
        history.append_audit_line(
            tx,
            token=self.principal.token,
            user=self.principal.user,
            action=action,
            target=target,
            team=team,
            allowed=allowed,
            detail=detail,
            now_s=self.now_s,
            longest=LONGEST_BY_OPERATORS if self.of_the_cluster else LONGEST_TEXT,
        )


class Changer(Caller):
    """The sender of a request that may change something; ``key`` is its idempotency key, if it has one."""

    def __init__(self, caller: Caller, key: str) -> None:
        super().__init__(
            principal=caller.principal,
            controller=caller.controller,
            request=caller.request,
            now_s=caller.now_s,
        )
        self._key = key
        self._detail = ""

    def set_detail(self, detail: str) -> None:
        """Set the detail of the change for its line in the audit log."""
        self._detail = detail

    def change(self, action: str, target: str, do: Callable[[Connection], Reply]) -> Response:
        """Make a change once, and write its audit line, in one transaction.

        The line belongs to the team of the target that `require_right` has checked last.

        Args:
            do: checks the rights, makes the change and returns the answer.
        """
        digest = self._compute_digest()
        with self.controller.store.begin_write() as tx:
            if self._key and (kept := replies.find_reply(tx, self.principal.token, self._key)):
                return build_response(self._get_first_reply(kept, digest), {"Idempotency-Replayed": "true"})
            done = do(tx)
            self.audit(tx, action, target, self._about.team, allowed=True, detail=self._detail)
            if self._key:
                replies.keep_reply(tx, self.principal.token, self._key, digest, done, now_s=self.now_s)
        self.controller.wake()
        return build_response(done)

    def _get_first_reply(self, kept: replies.Kept, digest: bytes) -> Reply:
        if kept.digest != digest:
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "this Idempotency-Key was used for another request",
                means="a key identifies one request, so that a repetition has no effect; nothing was done",
                do="use a new key, such as a UUID",
            )
        return kept.reply

    def _compute_digest(self) -> bytes:
        """Compute the digest of the request: equal requests have equal digests."""
        url = self.request.url
        raw: bytes = getattr(self.request.state, "body", b"")
        return hashlib.sha256(
            msgspec.json.encode((self.request.method, url.path, url.query, hashlib.sha256(raw).hexdigest()))
        ).digest()


class Editor(Changer):
    """The sender of a request that may change something with versions.

    Args:
        key: idempotency key; empty: none.
        if_match: the version to change, as an ``ETag``; ``*``: any existing version; empty: no condition.
    """

    def __init__(self, caller: Caller, key: str, if_match: str) -> None:
        super().__init__(caller, key)
        self._if_match = if_match

    def expect(self, version: int, *, there: bool = True) -> None:
        """Check that ``If-Match`` allows a change of this version.

        Args:
            version: current version of the target; 0: it has never been written.
            there: the target exists, so that ``*`` matches it.

        Raises:
            Refusal: ``If-Match`` names another version, because another request has changed the target.
        """
        meant = {"", f'"{version}"', "*" if there else ""}
        if self._if_match not in meant:
            state = f"the version is {version}" if there else "it does not exist"
            raise Refusal(
                HTTPStatus.PRECONDITION_FAILED,
                f"If-Match is {self._if_match}, and {state}",
                means="another request has changed it since you read it; nothing was done",
                do="read it again, then decide again",
            )


def install_refusal_audit(app: FastAPI) -> None:
    """Add every refusal for a missing right to the audit log before it is answered."""

    @app.exception_handler(NotAllowed)
    def answer_not_allowed(_: Request, error: NotAllowed) -> Response:
        caller, target = error.caller, error.target
        try:
            caller.controller.refusals.add(caller.principal, error.refused, target.team, caller.now_s)
        except StoreError as lost:
            # The answer stays the same. Another answer would show whether the target exists.
            log.error(  # noqa: TRY400 - the message is enough
                "%s (%s) was refused: %s; the audit log could not be written: %s",
                caller.principal.user,
                caller.principal.token,
                error.reason,
                lost.what,
            )
        return answer_refusal(error)


def authenticate(controller: Controller, authorization: str, address: str, now_s: float) -> Principal:
    """Return the principal of a token; failed attempts are limited by the address of the client."""
    scheme, _, secret = authorization.partition(" ")
    token = None
    # Look up the token before the address is counted: a valid token is not slowed by guesses from the same
    # address, and on loopback all clients share one.
    if scheme.lower() == "bearer" and secret.startswith(PREFIX):
        with controller.store.begin_read() as tx:
            token = tokens.find_token_by_digest(tx, compute_digest(secret), now_s)
    if token is None:
        limit_rate(
            controller.by_address.wait_s(address, now_s), "this address sends requests without a valid token"
        )
        raise Refusal(
            HTTPStatus.UNAUTHORIZED,
            "this request has no valid token",
            means="its sender is unknown; a token may have expired, or was revoked",
            do="send Authorization: Bearer ela_...; `elastane token create` makes one",
            headers={"WWW-Authenticate": "Bearer"},
        )
    limit_rate(controller.by_token.wait_s(token.id, now_s), f"token {token.id} sends requests")
    return read_principal(token)


def limit_rate(wait_s: float, sender: str) -> None:
    if wait_s:
        raise Refusal(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"{sender} too often",
            means="nothing was done; other clients are not affected",
            do=f"wait {wait_s:.1f} s, then send requests more slowly",
            headers={"Retry-After": str(max(1, round(wait_s + 0.5)))},
        )


# For the description only. `authenticate` requires the token, with error messages of our own.
_bearer = HTTPBearer(auto_error=False, description="A token: ela_...")


def identify_caller(request: Request) -> Caller:
    """Return the sender of a request."""
    controller: Controller = request.app.state.controller
    now_s = controller.clock()
    address = request.client.host if request.client else "unknown"
    principal = authenticate(controller, request.headers.get("authorization", ""), address, now_s)
    return Caller(principal=principal, controller=controller, request=request, now_s=now_s)


def _authenticate_caller(request: Request, _: Annotated[object, Depends(_bearer)]) -> Caller:
    return identify_caller(request)


CallerParameter = Annotated[Caller, Depends(_authenticate_caller)]
"""Parameter of every endpoint that needs a token and changes nothing."""

Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        pattern=PRINTABLE,
        description="A key of your choice, such as a UUID. A repetition with this key has no effect.",
    ),
]
Match = Annotated[
    str,
    Header(
        alias="If-Match", max_length=40, pattern=PRINTABLE, description="Change it only if it has this ETag."
    ),
]


def _build_changer(caller: CallerParameter, key: Key = "") -> Changer:
    return Changer(caller, key)


def _build_editor(caller: CallerParameter, key: Key = "", if_match: Match = "") -> Editor:
    return Editor(caller, key, if_match)


ChangerParameter = Annotated[Changer, Depends(_build_changer)]
"""Parameter of every endpoint that changes something."""
EditorParameter = Annotated[Editor, Depends(_build_editor)]
"""Parameter of every endpoint that changes something with an ``ETag``."""
