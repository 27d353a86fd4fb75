"""Python client of a controller.

```python
with Cluster("https://cluster:7425", token) as cluster:
    job = cluster.submit(JobSpec(name="digits", team="vision", script="/home/ada/train.py"))
    for event in cluster.watch(job=job.name, after=0):
        print(event.message)
        if event.kind in {"job.finished", "job.failed", "job.cancelled"}:
            break
```
"""

import re
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from elastane.api.config import Change, Config, Trigger
from elastane.api.errors import BadInput, ElastaneError
from elastane.api.exit_codes import ExitCode
from elastane.api.extras import require_for_import
from elastane.api.field_checks import check_name
from elastane.api.health import Health
from elastane.api.history import AuditLine, Event
from elastane.api.job_records import State
from elastane.api.jobs import JobSpec
from elastane.api.nodes import Node
from elastane.api.pools import Pool
from elastane.api.priorities import PriorityClass
from elastane.api.quotas import Cohort, Quota, Team
from elastane.api.reports import Report
from elastane.api.reservations import Reservation
from elastane.api.rest import (
    Bounds,
    Forecast,
    Job,
    JobExplanation,
    JobSummary,
    Me,
    NodeChange,
    Page,
    PriorityChange,
    Problem,
    ScaleRequest,
    Version,
)
from elastane.api.run_claims import KeptClaimList, NewSlot, SlotAnswer, SlotContent
from elastane.api.scheduling_rules import SchedulingRules
from elastane.api.tokens import MadeToken, NewToken, Token
from elastane.api.untrusted_data import Decoder, Malformed
from elastane.api.usage import Occupancy, Usage

with require_for_import("client", "to talk to a cluster"):
    import httpx

T = TypeVar("T")
Document = Cohort | Team | PriorityClass | Pool | Reservation | Trigger
D = TypeVar("D", Cohort, Team, PriorityClass, Pool, Reservation, Trigger)

PATHS: dict[type[Document], str] = {
    Cohort: "cohorts",
    Team: "teams",
    PriorityClass: "priorities",
    Pool: "pools",
    Reservation: "reservations",
    Trigger: "triggers",
}
NO_VERSION = '"0"'
"""Version of a document that does not exist."""
READING_POSTS = ("/config/diff", "/policy/check")
"""Ends of paths where a POST only reads."""
CONTROLLER_TYPES = ("application/json", "text/event-stream")
"""Content types of a controller, perhaps of another version; any other type is not from a controller."""
RETRIED_STATUSES = {429, 503}
"""Status codes after which a request is repeated later."""
PAUSE_S = 0.2
PRINTABLE = re.compile(r"[!-~]+")
FIRST_CONTACT_S = 2.0
"""How long a read is retried at an address that refuses connections and has never answered."""
QUIET_S = 60.0
"""A stream that has sent nothing for this long, not even a comment, is broken."""


class RequestRefused(BadInput):
    """The controller refused the request; ``problem`` has its reason."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.detail, means=problem.means, do=problem.do)


class NotFound(RequestRefused):
    """The object does not exist, or the token may not see it."""

    exit_code = ExitCode.NOT_FOUND


class ControllerUnreachable(ElastaneError):
    """The controller did not answer in time."""


class IncompatibleAnswer(ElastaneError):
    """The answer does not have the format of this version."""


class Cluster:
    """A connection to a controller, for one thread at a time.

    Args:
        url: of the controller.
        token: ``ela_...``.
        verify: whether to verify certificates, or the path of the certificate to trust.
        timeout_s: for a request with all its retries, in seconds. Requests are retried while the controller
            restarts. Requests that change something carry a key, so that the controller runs them once. Reads
            from an address that refuses connections and has never answered fail after `FIRST_CONTACT_S`.

    Raises:
        BadInput: the token is malformed, or ``verify`` is not a certificate.
    """

    def __init__(self, url: str, token: str, *, verify: bool | str = True, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._answered = False
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/v1",
            headers={"Authorization": f"Bearer {_check_token(token)}"},
            verify=_load_trust(url, verify),
            # A proxy could read an unencrypted request with its token, and cannot reach this loopback.
            trust_env=not url.startswith("http://"),
            timeout=timeout_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # -- jobs ----------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, *, key: str = "") -> Job:
        """Submit a job.

        Args:
            spec: of the job.
            key: submissions with the same key make only one job; empty: a new key.

        Raises:
            RequestRefused: the spec is wrong, its name is taken, or the token may not submit it.
        """
        return self._request("POST", "/jobs", Job, body=spec, key=key)

    def jobs(
        self,
        *,
        team: str = "",
        states: tuple[State, ...] = (),
        user: str = "",
        queue: str = "",
        prefix: str = "",
    ) -> Iterator[JobSummary]:
        """Yield the jobs that the token may see, newest first, fetched page by page."""
        params = {"team": team, "state": list(states), "user": user, "queue": queue, "prefix": prefix}
        yield from self._list_pages("/jobs", Page[JobSummary], params)

    def job(self, name: str) -> Job:
        return self._request("GET", f"/jobs/{_check_path_name(name)}", Job)

    def scale(
        self,
        name: str,
        *,
        min_replicas: int | None = None,
        max_replicas: int | None = None,
        replica_discrete_values: tuple[int, ...] | None = None,
    ) -> Job:
        """Set the limits of the size of a job; None: as before."""
        body = ScaleRequest(
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            replica_discrete_values=replica_discrete_values,
        )
        return self._request("POST", f"/jobs/{_check_path_name(name)}/scale", Job, body=body)

    def pause(self, name: str) -> Job:
        return self._request("POST", f"/jobs/{_check_path_name(name)}/pause", Job)

    def resume(self, name: str) -> Job:
        return self._request("POST", f"/jobs/{_check_path_name(name)}/resume", Job)

    def cancel(self, name: str) -> Job:
        return self._request("POST", f"/jobs/{_check_path_name(name)}/cancel", Job)

    def set_priority(self, name: str, priority_class: str) -> Job:
        """Give a job another priority class."""
        body = PriorityChange(priority_class=priority_class)
        return self._request("POST", f"/jobs/{_check_path_name(name)}/priority", Job, body=body)

    def set_bounds(self, name: str, bounds: Bounds) -> Job:
        """Set the budget, deadline, target or priority class of a job; unset fields stay as they are."""
        return self._request("POST", f"/jobs/{_check_path_name(name)}/bounds", Job, body=bounds)

    def explain(self, name: str) -> JobExplanation:
        """Return the reasons for the size of a job."""
        return self._request("GET", f"/jobs/{_check_path_name(name)}/explain", JobExplanation)

    def events(self, name: str, *, after: int = 0) -> Iterator[Event]:
        """Yield the events of a job after the event with this number, oldest first."""
        yield from self._list_pages(
            f"/jobs/{_check_path_name(name)}/events", Page[Event], {"after": after or None}
        )

    def watch(self, *, job: str = "", after: int | None = None) -> Iterator[Event]:
        """Yield events as they happen, without end, also across restarts of the controller.

        Args:
            job: only the events of this job; empty: all events that the token may see.
            after: number of the last known event; None: begin with the next event.

        Raises:
            RequestRefused: the token may not watch or has become invalid, or there were too many watchers for
                the whole timeout.
            ControllerUnreachable: the controller did not answer for the whole timeout.
        """
        broken_since: float | None = None
        while True:
            try:
                for seen, event in self._read_stream(job, after):
                    after, broken_since = seen, None
                    if event is not None:
                        yield event
            except RequestRefused as refusal:
                broken_since = broken_since or time.monotonic()
                tried_s = time.monotonic() - broken_since
                if refusal.problem.status not in RETRIED_STATUSES or tried_s > self._timeout_s:
                    raise
            except httpx.TransportError as error:
                if _is_about_trust(error):
                    raise self._make_untrusted(error) from error
                broken_since = broken_since or time.monotonic()
                if time.monotonic() - broken_since > self._get_patience_s(error, changes=False):
                    raise self._make_unreachable(error, changes=False) from error
            time.sleep(PAUSE_S)

    def _read_stream(self, job: str, after: int | None) -> Iterator[tuple[int | None, Event | None]]:
        """Yield the events of one stream until it ends.

        Each comes with the number to continue after. None in place of an event: the stream is alive.
        """
        params: dict[str, Any] = {"job": job} | ({} if after is None else {"after": after})
        timeout = httpx.Timeout(self._timeout_s, read=QUIET_S)
        with self._http.stream("GET", "/watch", params=params, timeout=timeout) as answer:
            self._answered = True
            if not answer.is_success:
                answer.read()
                raise _decode_refusal(answer)
            event = None
            for line in _iterate_lines(answer):
                if line.startswith(b"id: "):
                    after = _decode_answer(answer, line.removeprefix(b"id: "), int)
                elif line.startswith(b"data: "):
                    event = _decode_answer(answer, line.removeprefix(b"data: "), Event)
                elif not line:
                    # Yield an event only when it is whole: if a stream breaks within one, the next stream
                    # sends it again. The first block has a number only, so that no later event is missed.
                    yield after, event
                    event = None

    def processes(self, name: str) -> tuple[str, ...]:
        """Return the processes of a job that have a log: workers by number, then the others."""
        return self._request("GET", f"/jobs/{_check_path_name(name)}/processes", Page[str]).items

    def logs(self, name: str, process: str = "worker-0", *, offset: int = -(1 << 16)) -> tuple[bytes, int]:
        """Return a part of a log, and the offset of the next part.

        Args:
            name: of the job.
            process: ``agent``, ``coordinator``, ``fork-server`` or a worker, such as ``worker-3``.
            offset: of the first byte; negative: counted from the end.
        """
        answer = self._send(
            "GET", f"/jobs/{_check_path_name(name)}/logs", params={"process": process, "offset": offset}
        )
        return answer.content, int(_read_header(answer, "Elastane-Next-Offset"))

    # -- declared documents --------------------------------------------------------------------------------

    def documents(self, kind: type[D]) -> tuple[D, ...]:
        """Return all documents of a kind: ``cluster.documents(Team)``."""
        return self._request("GET", f"/{PATHS[kind]}", Page[kind]).items  # type: ignore[valid-type]

    def document(self, kind: type[D], name: str) -> D:
        return self._request("GET", f"/{PATHS[kind]}/{_check_path_name(name)}", kind)

    def declare(self, document: Document) -> None:
        """Declare a document; it replaces a document with the same name."""
        self._send_change("PUT", f"/{PATHS[type(document)]}/{_check_path_name(document.name)}", body=document)

    def amend(self, kind: type[D], name: str, changed: Callable[[D | None], D]) -> tuple[D | None, D]:
        """Apply ``changed`` to a document, and declare the result.

        Args:
            kind: of the document.
            name: of the document.
            changed: takes the document, or None if there is none, and returns the new one.

        Returns:
            The document before and after the change.

        Raises:
            RequestRefused: another request changed the document meanwhile, or the result is not valid.
        """
        path = f"/{PATHS[kind]}/{_check_path_name(name)}"
        before: D | None = None
        version = NO_VERSION
        try:
            answer = self._send("GET", path)
        except NotFound:
            pass
        else:
            before, version = _decode_answer(answer, answer.content, kind), _read_header(answer, "ETag")
        after = changed(before)
        if after != before:
            self._send_change("PUT", path, body=after, if_match=version)
        return before, after

    def undeclare(self, kind: type[Document], name: str) -> None:
        self._send_change("DELETE", f"/{PATHS[kind]}/{_check_path_name(name)}")

    def set_quota(self, kind: type[Team] | type[Cohort], name: str, quota: Quota) -> None:
        """Set the quota of a team or a cohort in one pool; its quotas in other pools stay.

        Raises:
            RequestRefused: another request changed the document meanwhile.
        """
        path = f"/{PATHS[kind]}/{_check_path_name(name)}"
        answer = self._send("GET", path)
        before: Team | Cohort = _decode_answer(answer, answer.content, kind)
        others = tuple(one for one in before.quotas if one.pool != quota.pool)
        after = msgspec.structs.replace(before, quotas=(*others, quota))
        self._send_change("PUT", path, body=after, if_match=_read_header(answer, "ETag"))

    def rules(self) -> SchedulingRules:
        return self._request("GET", "/rules", SchedulingRules)

    def set_rules(self, rules: SchedulingRules) -> None:
        self._send_change("PUT", "/rules", body=rules)

    def config(self) -> Config:
        """Return all declared documents as one configuration."""
        return self._request("GET", "/config", Config)

    def diff(self, config: Config) -> tuple[Change, ...]:
        """Return the changes that applying a configuration would make."""
        return self._request("POST", "/config/diff", Page[Change], body=config).items

    def apply(self, config: Config) -> tuple[Change, ...]:
        """Make the declared documents equal to a configuration; kinds that are None stay."""
        return self._request("POST", "/config/apply", Page[Change], body=config).items

    def check_policy(self, config: Config) -> Forecast:
        """Return the changes, of documents and jobs, that applying a configuration now would make."""
        return self._request("POST", "/policy/check", Forecast, body=config)

    # -- nodes, reports, usage, tokens -----------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        return self._request("GET", "/nodes", Page[Node]).items

    def set_node(self, name: str, action: Literal["drain", "fail", "use"], why: str = "") -> Node:
        """Drain a node, count it as failed, or use it again."""
        body = None if action == "use" else NodeChange(why=why)
        return self._request("POST", f"/nodes/{_check_path_name(name)}/{action}", Node, body=body)

    def forget_node(self, name: str) -> None:
        """Remove a node that no engine sees any more from the list.

        Raises:
            RequestRefused: an engine still sees the node.
        """
        self._send_change("DELETE", f"/nodes/{_check_path_name(name)}")

    def report(self, report: Report) -> None:
        """Report a capacity, a notice, a price or a metric from outside."""
        self._send_change("POST", "/reports", body=report)

    def usage(
        self,
        *by: Literal["team", "user", "job", "pool"],
        from_s: float | None = None,
        until_s: float | None = None,
    ) -> Usage:
        """Return device-seconds and cost, grouped; by default by team, for the last 30 days."""
        return self._request("GET", "/usage", Usage, params=_build_usage_query(by, from_s, until_s))

    def usage_csv(
        self,
        *by: Literal["team", "user", "job", "pool"],
        from_s: float | None = None,
        until_s: float | None = None,
    ) -> str:
        """Return the usage as CSV."""
        return self._send(
            "GET", "/usage", params=_build_usage_query(by, from_s, until_s) | {"format": "csv"}
        ).text

    def make_token(self, new: NewToken) -> MadeToken:
        """Create a token; its secret is only in this answer, and empty if the first answer was lost."""
        return self._request("POST", "/tokens", MadeToken, body=new)

    def tokens(self) -> tuple[Token, ...]:
        return self._request("GET", "/tokens", Page[Token]).items

    def revoke_token(self, id_: str) -> None:
        self._send_change("DELETE", f"/tokens/{_check_path_name(id_)}")

    def claim(self, team: str, run: str, slot: int, content: bytes) -> bool:
        """Claim the next slot of a claim list; return False if it had a content, perhaps this one."""
        body = NewSlot(slot=slot, content=content)
        path = f"/claims/{_check_path_name(team)}/{_check_path_name(run)}"
        return self._request("POST", path, SlotAnswer, body=body).written

    def check_claim_right(self, team: str, run: str) -> None:
        """Check that the token may claim in a claim list; nothing is claimed."""
        self._send("GET", f"/claims/{_check_path_name(team)}/{_check_path_name(run)}/right")

    def claims(self, team: str, run: str, *, after: int = 0) -> Iterator[SlotContent]:
        """Yield the held slots of a claim list after the slot with this number, in order."""
        path = f"/claims/{_check_path_name(team)}/{_check_path_name(run)}"
        yield from self._list_pages(path, Page[SlotContent], {"after": after or None})

    def claim_lists(self) -> Iterator[KeptClaimList]:
        """Yield the claim lists that the token may see, by team and name."""
        yield from self._list_pages("/claims", Page[KeptClaimList], {})

    def forget_claims(self, team: str, run: str) -> None:
        """Delete the claim list of a run that will never go on."""
        self._send_change("DELETE", f"/claims/{_check_path_name(team)}/{_check_path_name(run)}")

    def audit(self) -> Iterator[AuditLine]:
        """Yield the audit log, newest line first."""
        yield from self._list_pages("/audit", Page[AuditLine], {})

    def occupancy(self) -> tuple[Occupancy, ...]:
        """Return every pool with its used devices."""
        return self._request("GET", "/occupancy", Page[Occupancy]).items

    def me(self) -> Me:
        """Return the user, role and team of the token of this connection."""
        return self._request("GET", "/me", Me)

    def health(self) -> Health:
        """Return the health of the controller."""
        return self._request("GET", "/health", Health)

    def version(self) -> Version:
        return self._request("GET", "/version", Version)

    # -- HTTP ------------------------------------------------------------------------------------------------

    def _list_pages(self, path: str, kind: type[Page[T]], params: dict[str, Any]) -> Iterator[T]:
        after = ""
        while True:
            page = self._request("GET", path, kind, params=params | ({"after": after} if after else {}))
            yield from page.items
            if not (after := page.after):
                return

    def _request(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: dict[str, Any] | None = None,
        body: object = None,
        key: str = "",
    ) -> T:
        answer = self._send(method, path, params=params, body=body, key=key)
        return _decode_answer(answer, answer.content, kind)

    def _send_change(self, method: str, path: str, *, body: object = None, if_match: str = "") -> None:
        """Send a change; check only that its answer comes from a controller."""
        answer = self._send(method, path, body=body, if_match=if_match)
        if answer.status_code != httpx.codes.NO_CONTENT:
            _decode_answer(answer, answer.content, dict)

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: object = None,
        key: str = "",
        if_match: str = "",
    ) -> httpx.Response:
        """Send a request, with retries while the controller is away or busy, and return the response.

        Raises:
            BadInput: the key or a text in the body cannot be sent.
            RequestRefused: the controller refused the request.
            ControllerUnreachable: the controller did not answer in time, or its certificate is not trusted.
        """
        changes = _is_change(method, path)
        if key and not PRINTABLE.fullmatch(key):
            raise BadInput(
                f"{key!r} is not a valid key",
                means="nothing was sent",
                do="use ASCII characters without spaces",
            )
        headers = {"Idempotency-Key": key or str(uuid.uuid4())} if changes else {}
        headers |= {"If-Match": if_match} if if_match else {}
        content = None if body is None else _encode_body(body)
        headers |= {} if body is None else {"Content-Type": "application/json"}
        began = time.monotonic()
        while True:
            pause_s = PAUSE_S
            try:
                answer = self._http.request(
                    method, path, params=_drop_empty(params), content=content, headers=headers
                )
            except httpx.TransportError as error:
                if _is_about_trust(error):
                    raise self._make_untrusted(error) from error
                if time.monotonic() + pause_s > began + self._get_patience_s(error, changes=changes):
                    raise self._make_unreachable(error, changes=changes) from error
            else:
                self._answered = True
                # Redirects are not followed, because the token is only for this address.
                if answer.is_success:
                    return answer
                pause_s = _read_retry_after_s(answer)
                if (
                    answer.status_code not in RETRIED_STATUSES
                    or time.monotonic() + pause_s > began + self._timeout_s
                ):
                    raise _decode_refusal(answer)
            time.sleep(pause_s)

    def _get_patience_s(self, error: httpx.TransportError, *, changes: bool) -> float:
        """Return how long a request is retried after this error, in seconds."""
        # A controller that has answered before is restarting. One that has never answered does not exist or
        # is starting. A change waits in both cases, so that the user does not have to repeat it.
        first_contact = not changes and not self._answered and isinstance(error, httpx.ConnectError)
        return min(FIRST_CONTACT_S, self._timeout_s) if first_contact else self._timeout_s

    def _make_unreachable(self, error: httpx.TransportError, *, changes: bool) -> ControllerUnreachable:
        unsure = "; your request may or may not have taken effect" if changes else ""
        return ControllerUnreachable(
            f"the controller at {self._http.base_url} does not answer ({error})",
            means=f"jobs continue without it{unsure}",
            do="check that it runs (`elastane up`) and that the address is correct, then try again",
        )

    def _make_untrusted(self, error: httpx.TransportError) -> ControllerUnreachable:
        return ControllerUnreachable(
            f"the certificate of {self._http.base_url} is not trusted ({error})",
            means="another server may be answering; nothing was sent, not even your token",
            do="name its authority (`elastane login URL --ca FILE`), and use the host of the certificate",
        )


def _check_token(token: str) -> str:
    """Return a token if a header can hold it.

    Raises:
        BadInput: the token is malformed; the error does not quote it, because part of it may be a secret.
    """
    if not PRINTABLE.fullmatch(token):
        raise BadInput(
            "the token is empty"
            if not token
            else "the token has spaces, line breaks or other invalid characters",
            means="nothing was sent",
            do="copy the whole token, which begins with ela_, and nothing else",
        )
    return token


def _encode_body(body: object) -> bytes:
    """Return a body as JSON.

    Raises:
        BadInput: a text in the body is not valid Unicode.
    """
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{error.object[:40]!r} is not valid text",
            means="a file name or a variable may contain such bytes; nothing was sent",
            do="encode it as UTF-8",
        ) from error


def _read_retry_after_s(answer: httpx.Response) -> float:
    """Return the seconds of ``Retry-After``; a default if it is missing or, as proxies send it, a date."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else PAUSE_S


def _check_path_name(name: str) -> str:
    """Return a name if it can be a part of a path; another text could change the path.

    Raises:
        BadField: the text is not a name.
    """
    check_name("name", name)
    return name


def _is_change(method: str, path: str) -> bool:
    """Return whether a request may change something; otherwise it is a read."""
    return method != "GET" and not path.endswith(READING_POSTS)


@lru_cache(maxsize=64)
def _get_decoder(kind: Any) -> Decoder[Any]:
    return Decoder(kind)


def _iterate_lines(answer: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of a stream, split at line feeds only, because texts may hold other line breaks."""
    rest = b""
    for part in answer.iter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        yield from whole


def _decode_answer(answer: httpx.Response, content: bytes | str, kind: type[T]) -> T:
    """Return the content of an answer.

    Raises:
        IncompatibleAnswer: the content does not have the format of this version.
    """
    try:
        decoded: T = _get_decoder(kind)(content)  # type: ignore[arg-type]
    except Malformed as error:
        raise _make_incompatible(answer, str(error)) from error
    return decoded


def _read_header(answer: httpx.Response, name: str) -> str:
    """Return a header of an answer.

    Raises:
        IncompatibleAnswer: the answer does not have this header.
    """
    if name not in answer.headers:
        raise _make_incompatible(answer, f"it has no {name}")
    found: str = answer.headers[name]
    return found


def _make_incompatible(answer: httpx.Response, why: str) -> IncompatibleAnswer:
    done = "your request was done, but " if _is_change(answer.request.method, answer.url.path) else ""
    if not answer.headers.get("Content-Type", "").startswith(CONTROLLER_TYPES):
        return IncompatibleAnswer(
            f"{answer.url} gave an answer that does not come from a controller ({why})",
            means="another server has answered; your request may not have been done",
            do="check the address, and any proxies on the way",
        )
    return IncompatibleAnswer(
        f"{answer.url} gave an answer that this version does not understand ({why})",
        means=f"{done}the controller runs another version of elastane",
        do="install the version of the controller; compare elastane --version and GET /v1/version",
    )


def _is_about_trust(error: BaseException | None) -> bool:
    """Return whether an error is about a certificate that is not trusted; a retry would not help."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _load_trust(url: str, verify: bool | str) -> bool | ssl.SSLContext:
    """Return the certificates to trust, as httpx takes them.

    Raises:
        BadInput: ``verify`` is a path, but not of a certificate.
    """
    if url.startswith("http://"):
        # Nothing to verify: loading the certificates of the machine takes 70 ms, most of a short command.
        return False
    if not isinstance(verify, str):
        return verify
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise BadInput(
            f"{verify} cannot be read as a certificate ({error})",
            means="the controller cannot be authenticated; nothing was sent",
            do="name a PEM file with the cluster's certificate authority or its certificate",
        ) from error


def _drop_empty(params: dict[str, Any] | None) -> dict[str, Any]:
    """Return the parameters that have a value."""
    return {name: value for name, value in (params or {}).items() if value not in ("", None, [])}


def _build_usage_query(by: tuple[str, ...], from_s: float | None, until_s: float | None) -> dict[str, Any]:
    return {"by": list(by), "from": from_s, "until": until_s}


def _decode_refusal(answer: httpx.Response) -> RequestRefused:
    try:
        problem: Problem = _get_decoder(Problem)(answer.content)
    except Malformed:
        # A proxy between here and the controller has answered.
        problem = Problem(
            type="about:blank",
            title=answer.reason_phrase,
            status=answer.status_code,
            detail=f"{answer.url} answered {answer.status_code} {answer.reason_phrase}",
            means="this answer does not come from the controller",
            do="check the address, and any proxies on the way",
        )
    return (NotFound if problem.status == httpx.codes.NOT_FOUND else RequestRefused)(problem)
