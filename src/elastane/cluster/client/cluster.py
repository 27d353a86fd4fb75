"""Python client of a controller.

```python
with Cluster("https://cluster:7425", token) as cluster:
    job = cluster.jobs.submit(JobSpec(name="digits", team="vision", script="/home/ada/train.py"))
    for event in cluster.watch(job=job.name, after=0):
        print(event.message)
        if event.kind in {"job.finished", "job.failed", "job.cancelled"}:
            break
```
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from elastane.cluster.nouns.agents import EngineFinding
from elastane.cluster.nouns.config import (
    Change,
    Cohort,
    Config,
    DeclaredEngine,
    EgressPrices,
    PriorityClass,
    Quota,
    Reservation,
    SchedulingRules,
    Team,
    Trigger,
)
from elastane.cluster.nouns.controller import Health
from elastane.cluster.nouns.history import AuditLine, Event
from elastane.cluster.nouns.job_records import State
from elastane.cluster.nouns.job_workers import JobWorker
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.notifications import NewNotificationTarget, Notification, NotificationTarget
from elastane.cluster.nouns.pools import Node, Pool, Report
from elastane.cluster.nouns.rest import (
    Bounds,
    Forecast,
    Job,
    JobExplanation,
    JobSummary,
    Me,
    NodeChange,
    PriorityChange,
    ReadRecord,
    ScaleRequest,
    Version,
)
from elastane.cluster.nouns.tokens import MadeToken, NewToken, Token
from elastane.cluster.nouns.usage import ClusterFigures, Occupancy, Usage
from elastane.common.bodies import Page
from elastane.common.connections.controller_connection import (
    ControllerConnection,
    NotFound,
    check_path_name,
    decode_answer,
    read_header,
)
from elastane.run.machines.claims.slots import KeptClaimList

Document = Cohort | Team | PriorityClass | DeclaredEngine | Pool | EgressPrices | Reservation | Trigger
D = TypeVar("D", Cohort, Team, PriorityClass, DeclaredEngine, Pool, EgressPrices, Reservation, Trigger)

PATHS: dict[type[Document], str] = {
    Cohort: "cohorts",
    Team: "teams",
    PriorityClass: "priorities",
    DeclaredEngine: "engines",
    Pool: "pools",
    EgressPrices: "egress",
    Reservation: "reservations",
    Trigger: "triggers",
}
PATH_OF_TARGETS = "/notification-targets"
NO_VERSION = '"0"'
"""Version of a document that does not exist."""


class Cluster(ControllerConnection):
    """A connection to a controller, for one thread at a time; see `ControllerConnection`.

    Attributes:
        jobs: ``cluster.jobs.scale("digits", max_replicas=4)``.
        documents: what operators declare: ``cluster.documents.list(Team)``.
        nodes: ``cluster.nodes.drain("gpu-07", "new disk")``.
        tokens: ``cluster.tokens.revoke("tok-0123456789ab")``.
        claims: ``for claims in cluster.claims.list(): ...``
        notifications: ``cluster.notifications.test("ntf-0123456789ab")``.
    """

    def __init__(self, url: str, token: str, *, verify: bool | str = True, timeout_s: float = 30.0) -> None:
        super().__init__(url, token, verify=verify, timeout_s=timeout_s)
        self.jobs = ClusterJobs(self)
        self.documents = ClusterDocuments(self)
        self.nodes = ClusterNodes(self)
        self.tokens = ClusterTokens(self)
        self.claims = ClusterClaims(self)
        self.notifications = ClusterNotifications(self)

    def watch(
        self, *, job: str = "", after: int | None = None, is_over: Callable[[], bool] = bool
    ) -> Iterator[Event]:
        """Yield events as they happen, without end, also across restarts of the controller.

        Args:
            job: only the events of this job; empty: all events that the token may see.
            after: number of the last known event; None: begin with the next event.
            is_over: returns whether to end. It is asked at least every quarter of a minute.

        Raises:
            RequestRefused: the token may not watch or has become invalid, or there were too many watchers for
                the whole timeout.
            ControllerUnreachable: the controller did not answer for the whole timeout.
        """
        return self.follow("/watch", Event, params={"job": job}, after=after, is_over=is_over)

    def report(self, report: Report) -> None:
        """Report a capacity, a notice, a price or a metric from outside."""
        self.send_change("POST", "/reports", body=report)

    def usage(
        self,
        *by: Literal["team", "user", "job", "pool"],
        from_s: float | None = None,
        until_s: float | None = None,
    ) -> Usage:
        """Return device-seconds and cost, grouped; by default by team, for the last 30 days."""
        return self.request("GET", "/usage", Usage, params=_build_usage_query(by, from_s, until_s))

    def usage_csv(
        self,
        *by: Literal["team", "user", "job", "pool"],
        from_s: float | None = None,
        until_s: float | None = None,
    ) -> str:
        """Return the usage as CSV."""
        return self.send(
            "GET", "/usage", params=_build_usage_query(by, from_s, until_s) | {"format": "csv"}
        ).text

    def figures(self, *, from_s: float | None = None, until_s: float | None = None) -> ClusterFigures:
        """Return queue times, utilisation, times to the end and interventions, by default of 30 days."""
        params = {"from": from_s, "until": until_s}
        return self.request("GET", "/figures", ClusterFigures, params=params)

    def examine_engine(self, name: str) -> tuple[EngineFinding, ...]:
        """Return what the controller has found out about all that an engine needs."""
        path = f"/engines/{check_path_name(name)}/findings"
        return self.request("GET", path, Page[EngineFinding]).items

    def occupancy(self) -> tuple[Occupancy, ...]:
        """Return every pool with its used devices."""
        return self.request("GET", "/occupancy", Page[Occupancy]).items

    def audit(self, *, before: int | None = None) -> Iterator[AuditLine]:
        """Yield the audit log, newest line first; with ``before`` only lines with a smaller id."""
        yield from self.list_pages("/audit", Page[AuditLine], {"after": before})

    def me(self) -> Me:
        """Return the user, role and team of the token of this connection."""
        return self.request("GET", "/me", Me)

    def health(self) -> Health:
        """Return the health of the controller."""
        return self.request("GET", "/health", Health)

    def version(self) -> Version:
        return self.request("GET", "/version", Version)


class ClusterJobs:
    """Submits, lists and changes jobs."""

    def __init__(self, connection: ControllerConnection) -> None:
        self._connection = connection

    def submit(
        self,
        spec: JobSpec,
        *,
        key: str = "",
        code: str | os.PathLike[str] | None = None,
        say: Callable[[str], object] = str,
    ) -> Job:
        """Submit a job.

        Args:
            spec: with absolute paths, because the controller does not know your directory; with ``code``,
                with paths that begin there.
            key: submissions with the same key make only one job; empty: a new key.
            code: a directory of files that are sent with the job, unless the controller has them;
                ``spec.code`` becomes their digest. None: they are where the spec says, or were sent before.
            say: takes sentences about code that is being sent.

        Raises:
            BadInput: the code cannot be sent.
            RequestRefused: the spec is wrong, its name is taken, or the token may not submit it.
        """
        if code is not None:
            from elastane.cluster.client.code_upload import send_code

            digest = send_code(self._connection, Path(code).absolute(), spec, say)
            spec = msgspec.structs.replace(spec, code=digest)
        return self._connection.request("POST", "/jobs", Job, body=spec, key=key)

    def list(
        self,
        *,
        team: str = "",
        states: tuple[State, ...] = (),
        user: str = "",
        queue: str = "",
        prefix: str = "",
        page: int = 0,
    ) -> Iterator[JobSummary]:
        """Yield the jobs that the token may see, newest first, fetched page by page.

        Args:
            team: only jobs of this team; empty: of all.
            states: only jobs in these states; empty: in all.
            user: only jobs of this user; empty: of all.
            queue: only jobs of this queue; empty: of all.
            prefix: only jobs with names that begin so.
            page: jobs of a page, at most 1,000; 0: as many as the controller sends.
        """
        params: dict[str, Any] = {
            "team": team,
            "state": list(states),
            "user": user,
            "queue": queue,
            "prefix": prefix,
        }
        params |= {"limit": page} if page else {}
        yield from self._connection.list_pages("/jobs", Page[JobSummary], params)

    def get(self, name: str) -> Job:
        return self._connection.request("GET", f"/jobs/{check_path_name(name)}", Job)

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
        return self._connection.request("POST", f"/jobs/{check_path_name(name)}/scale", Job, body=body)

    def pause(self, name: str) -> Job:
        return self._connection.request("POST", f"/jobs/{check_path_name(name)}/pause", Job)

    def resume(self, name: str) -> Job:
        return self._connection.request("POST", f"/jobs/{check_path_name(name)}/resume", Job)

    def cancel(self, name: str) -> Job:
        return self._connection.request("POST", f"/jobs/{check_path_name(name)}/cancel", Job)

    def set_priority(self, name: str, priority_class: str) -> Job:
        """Give a job another priority class."""
        body = PriorityChange(priority_class=priority_class)
        return self._connection.request("POST", f"/jobs/{check_path_name(name)}/priority", Job, body=body)

    def set_bounds(self, name: str, bounds: Bounds) -> Job:
        """Set the budget, deadline, target or priority class of a job; unset fields stay as they are."""
        return self._connection.request("POST", f"/jobs/{check_path_name(name)}/bounds", Job, body=bounds)

    def explain(self, name: str) -> JobExplanation:
        """Return the reasons for the size of a job."""
        return self._connection.request("GET", f"/jobs/{check_path_name(name)}/explain", JobExplanation)

    def events(self, name: str, *, after: int = 0) -> Iterator[Event]:
        """Yield the events of a job after the event with this number, oldest first."""
        yield from self._connection.list_pages(
            f"/jobs/{check_path_name(name)}/events", Page[Event], {"after": after or None}
        )

    def processes(self, name: str) -> tuple[str, ...]:
        """Return the processes of a job that have a log: workers by number, then the others."""
        return self._connection.request("GET", f"/jobs/{check_path_name(name)}/processes", Page[str]).items

    def workers(self, name: str) -> tuple[JobWorker, ...]:
        """Return the workers of a job by machine, and what each of them does now."""
        return self._connection.request(
            "GET", f"/jobs/{check_path_name(name)}/workers", Page[JobWorker]
        ).items

    def logs(self, name: str, process: str = "worker-0", *, offset: int = -(1 << 16)) -> tuple[bytes, int]:
        """Return a part of a log, and the offset of the next part.

        Args:
            name: of the job.
            process: ``agent``, ``coordinator``, ``fork-server`` or a worker, such as ``worker-3``.
            offset: of the first byte; negative: counted from the end.
        """
        answer = self._connection.send(
            "GET", f"/jobs/{check_path_name(name)}/logs", params={"process": process, "offset": offset}
        )
        return answer.content, int(read_header(answer, "Elastane-Next-Offset"))

    def record(self, name: str, record: ReadRecord, *, offset: int = 0) -> tuple[bytes, int]:
        """Return a part of a record of a job's run, and the offset of the next part; see `logs`."""
        path = f"/jobs/{check_path_name(name)}/records/{record}"
        answer = self._connection.send("GET", path, params={"offset": offset})
        return answer.content, int(read_header(answer, "Elastane-Next-Offset"))


class ClusterDocuments:
    """Reads and changes what operators declare."""

    def __init__(self, connection: ControllerConnection) -> None:
        self._connection = connection

    def list(self, kind: type[D]) -> tuple[D, ...]:
        """Return all documents of a kind: ``cluster.documents(Team)``."""
        return self._connection.request("GET", f"/{PATHS[kind]}", Page[kind]).items  # type: ignore[valid-type]

    def get(self, kind: type[D], name: str) -> D:
        return self._connection.request("GET", f"/{PATHS[kind]}/{check_path_name(name)}", kind)

    def declare(self, document: Document) -> None:
        """Declare a document; it replaces a document with the same name."""
        self._connection.send_change(
            "PUT", f"/{PATHS[type(document)]}/{check_path_name(document.name)}", body=document
        )

    def amend(self, kind: type[D], name: str, changed: Callable[[D | None], D]) -> tuple[D | None, D]:
        """Apply ``changed`` to a document, and declare the result.

        Args:
            kind: of the document.
            name: of the document.
            changed: takes the document, None: it does not exist, and returns the new one.

        Returns:
            The document before and after the change.

        Raises:
            RequestRefused: another request changed the document meanwhile, or the result is not valid.
        """
        path = f"/{PATHS[kind]}/{check_path_name(name)}"
        before: D | None = None
        version = NO_VERSION
        try:
            answer = self._connection.send("GET", path)
        except NotFound:
            pass
        else:
            before, version = decode_answer(answer, answer.content, kind), read_header(answer, "ETag")
        after = changed(before)
        if after != before:
            self._connection.send_change("PUT", path, body=after, if_match=version)
        return before, after

    def remove(self, kind: type[Document], name: str) -> None:
        self._connection.send_change("DELETE", f"/{PATHS[kind]}/{check_path_name(name)}")

    def set_quota(self, kind: type[Team] | type[Cohort], name: str, quota: Quota) -> None:
        """Set the quota of a team or a cohort in one pool; its quotas in other pools stay.

        Raises:
            RequestRefused: another request changed the document meanwhile.
        """
        path = f"/{PATHS[kind]}/{check_path_name(name)}"
        answer = self._connection.send("GET", path)
        before: Team | Cohort = decode_answer(answer, answer.content, kind)
        others = tuple(other for other in before.quotas if other.pool != quota.pool)
        after = msgspec.structs.replace(before, quotas=(*others, quota))
        self._connection.send_change("PUT", path, body=after, if_match=read_header(answer, "ETag"))

    def rules(self) -> SchedulingRules:
        return self._connection.request("GET", "/rules", SchedulingRules)

    def set_rules(self, rules: SchedulingRules) -> None:
        self._connection.send_change("PUT", "/rules", body=rules)

    def config(self) -> Config:
        """Return all declared documents as one configuration."""
        return self._connection.request("GET", "/config", Config)

    def diff(self, config: Config) -> tuple[Change, ...]:
        """Return the changes that applying a configuration would make."""
        return self._connection.request("POST", "/config/diff", Page[Change], body=config).items

    def apply(self, config: Config) -> tuple[Change, ...]:
        """Make the declared documents equal to a configuration; kinds that are None stay."""
        return self._connection.request("POST", "/config/apply", Page[Change], body=config).items

    def check(self, config: Config) -> Forecast:
        """Return the changes, of documents and jobs, that applying a configuration now would make."""
        return self._connection.request("POST", "/policy/check", Forecast, body=config)


class ClusterNodes:
    """Lists nodes, and says whether jobs may use them."""

    def __init__(self, connection: ControllerConnection) -> None:
        self._connection = connection

    def list(self) -> tuple[Node, ...]:
        return self._connection.request("GET", "/nodes", Page[Node]).items

    def drain(self, name: str, why: str = "") -> Node:
        """Let jobs leave a node without losing a step, and place no new workers there."""
        return self._change(name, "drain", NodeChange(why=why))

    def fail(self, name: str, why: str = "") -> Node:
        """Count the devices of a node as lost, at once."""
        return self._change(name, "fail", NodeChange(why=why))

    def use(self, name: str) -> Node:
        """Use a node again."""
        return self._change(name, "use")

    def forget(self, name: str) -> None:
        """Remove a node that no engine sees any more from the list.

        Raises:
            RequestRefused: an engine still sees the node.
        """
        self._connection.send_change("DELETE", f"/nodes/{check_path_name(name)}")

    def _change(
        self, name: str, action: Literal["drain", "fail", "use"], body: NodeChange | None = None
    ) -> Node:
        return self._connection.request("POST", f"/nodes/{check_path_name(name)}/{action}", Node, body=body)


class ClusterTokens:
    """Makes, lists and revokes tokens."""

    def __init__(self, connection: ControllerConnection) -> None:
        self._connection = connection

    def make(self, new: NewToken) -> MadeToken:
        """Create a token; its secret is only in this answer, and empty if the first answer was lost."""
        return self._connection.request("POST", "/tokens", MadeToken, body=new)

    def list(self) -> tuple[Token, ...]:
        return self._connection.request("GET", "/tokens", Page[Token]).items

    def revoke(self, id_: str) -> None:
        self._connection.send_change("DELETE", f"/tokens/{check_path_name(id_)}")


class ClusterClaims:
    """Lists and deletes claim lists."""

    def __init__(self, connection: ControllerConnection) -> None:
        self._connection = connection

    def list(self) -> Iterator[KeptClaimList]:
        """Yield the claim lists that the token may see, by team and name."""
        yield from self._connection.list_pages("/claims", Page[KeptClaimList], {})

    def forget(self, team: str, run: str) -> None:
        """Delete the claim list of a run that will never go on."""
        self._connection.send_change("DELETE", f"/claims/{check_path_name(team)}/{check_path_name(run)}")


class ClusterNotifications:
    """Adds, lists, tests and removes notification targets."""

    def __init__(self, connection: ControllerConnection) -> None:
        self._connection = connection

    def list(self) -> tuple[NotificationTarget, ...]:
        return self._connection.request("GET", PATH_OF_TARGETS, Page[NotificationTarget]).items

    def add(self, new: NewNotificationTarget) -> NotificationTarget:
        return self._connection.request("POST", PATH_OF_TARGETS, NotificationTarget, body=new)

    def remove(self, target: str) -> None:
        self._connection.send_change("DELETE", f"{PATH_OF_TARGETS}/{check_path_name(target)}")

    def test(self, target: str) -> Notification:
        """Have a test message sent to a target, and return it as it waits; see `newest`."""
        path = f"{PATH_OF_TARGETS}/{check_path_name(target)}/test"
        return self._connection.request("POST", path, Notification)

    def newest(self, target: str) -> tuple[Notification, ...]:
        """Return the newest messages of a target, newest first."""
        path = f"{PATH_OF_TARGETS}/{check_path_name(target)}/notifications"
        return self._connection.request("GET", path, Page[Notification]).items


def _build_usage_query(by: tuple[str, ...], from_s: float | None, until_s: float | None) -> dict[str, Any]:
    return {"by": list(by), "from": from_s, "until": until_s}
