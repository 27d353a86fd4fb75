"""The bodies of the REST API: requests and answers, beside the nouns that people declare.

The controller writes these values, clients read them: one definition for the server, its OpenAPI
description and the Python client. JSON is camelCase; times are seconds since 1970.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from elastane.api.bounds import LARGEST_COUNT, Amount, Count, Duration, Moment, Position, Samples, Steps
from elastane.api.jobs import JobSpec
from elastane.api.pools import Pool
from elastane.api.priorities import PriorityClass
from elastane.api.quotas import Cohort, Team
from elastane.api.reservations import Reservation
from elastane.api.rules import Rules

T = TypeVar("T")


class Served(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of answers: clients ignore fields that they do not know."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of requests: a field that is not known is an error, because it was meant to do something."""


class Page(Served, Generic[T], frozen=True, kw_only=True):
    """Some of many.

    Args:
        items: in the order of the list.
        after: where the next page begins; empty: this is the last one.
    """

    items: tuple[T, ...]
    after: str = ""


class Problem(Served, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was not done, as ``application/problem+json`` (RFC 9457).

    Args:
        type: always ``about:blank``: the status says what kind of problem it is.
        title: of the status.
        status: of HTTP.
        detail: what happened.
        means: for whoever asked.
        do: about it.
        field: which part of the request is wrong, as a path: ``elasticPolicy.minReplicas``.
    """

    type: str
    title: str
    status: int
    detail: str
    means: str = ""
    do: str = ""
    field: str = ""


# -- jobs --------------------------------------------------------------------------------------------------

State: TypeAlias = Literal["queued", "running", "paused", "finished", "failed", "cancelled"]
"""Of a job: ``queued`` holds nothing and waits; ``running`` holds devices; the last three are for ever."""

Wanted: TypeAlias = Literal["run", "pause", "cancel", "finish", "fail"]
"""What people asked for, or, of the last two, what the job's own rules say: it has reached its target, or its
time is up. The state follows as soon as it can."""

ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")


class Grant(Served, frozen=True, kw_only=True, omit_defaults=True):
    """What a job should have.

    Args:
        workers: by pool.
        drain_until_s: when workers beyond that should be gone.
    """

    workers: dict[str, Count] = {}
    drain_until_s: Moment = 0.0


class Held(Served, frozen=True, kw_only=True, omit_defaults=True):
    """What a job has in one pool.

    Args:
        workers: whose devices are in use there, or soon will be.
        leaving: how many of them are on nodes that are drained or will be taken away.
        absent: how many of them are not there: their devices are in use, or soon will be, and they do not
            train yet, or any more.
        lost: how many had been there, died, and are missed there: nobody has come in their place yet.
    """

    workers: Count
    leaving: Count = 0
    absent: Annotated[int, msgspec.Meta(ge=-LARGEST_COUNT, le=LARGEST_COUNT)] = 0
    lost: Count = 0


class Observed(Served, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine saw of a job the last time it looked.

    Args:
        seen_s: when; 0: never.
        held: by pool. A job uses the larger of this and of its grant.
        step: last committed step.
        steps: the job lasts; 0: nobody knows.
        virtual_ranks: pinned for its whole run, and the most workers that it may have; 0: none yet.
        loss: of that step; None: there was none.
        starting_since_s: since when granted workers have not arrived, of a job that crashed from its next try
            on; None: all have.
        faulty_since_s: since when granted workers are gone by a fault; None: none is.
        beyond_since_s: since when more are held than are granted, and nothing is left to be told; else None.
        speeds: ``(workers, samples per second)`` as measured.
        brief: numbers of workers whose speed was measured for too short a time to be compared with others.
        resize_s: what a resize costs, in seconds of the whole job's time.
        unsaved_s: seconds of work that a preemption would lose.
        remaining: samples still to train on; None: nobody knows.
    """

    seen_s: Moment = 0.0
    held: dict[str, Held] = {}
    step: Steps = 0
    steps: Steps = 0
    virtual_ranks: Count = 0
    loss: float | None = None
    starting_since_s: Moment | None = None
    faulty_since_s: Moment | None = None
    beyond_since_s: Moment | None = None
    speeds: tuple[tuple[Count, Amount], ...] = ()
    brief: tuple[Count, ...] = ()
    resize_s: Duration = 1.0
    unsaved_s: Duration = 0.0
    remaining: Samples | None = None

    @property
    def samples_per_s(self) -> float:
        """As last measured with the workers that train; 0: not measured yet."""
        workers = sum(held.workers - held.absent for held in self.held.values())
        return dict(self.speeds).get(workers, 0.0)


class Explanation(Served, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job has the size it has, in sentences; of one that has ended, how."""

    sentences: tuple[str, ...] = ()
    decided_s: Moment = 0.0


class JobSummary(Served, frozen=True, kw_only=True):
    """A job as a row of a list.

    Args:
        number: grows with every submission.
        name: unique in the cluster.
        team: whose quota it runs on.
        user: who submitted it.
        queue: of the team.
        priority_class: as its spec names it; empty: the cluster's default.
        state: where it is.
        wanted: where people want it.
        workers: granted, in all pools together.
        min_workers: fewest that its elastic policy allows.
        max_workers: most, likewise.
        step: last committed step.
        steps: it lasts; 0: nobody knows.
        loss: of the last step; None: there was none.
        samples_per_s: as last measured with the workers it has; 0: not measured, or it does not run.
        submitted_s: when.
        started_s: when it was first granted its minimum.
        ended_s: when it finished, failed or was cancelled.
        retry_at_s: after a crash, not before this time; one that is granted workers keeps them meanwhile.
        unreadable: what is wrong with its record, so that nothing can be decided about it: it keeps what it
            holds, and can only be cancelled. What the record does not tell is empty or 0. Empty: nothing.
    """

    number: int
    name: str
    team: str
    user: str
    queue: str
    priority_class: str
    state: State
    wanted: Wanted
    workers: int
    min_workers: int
    max_workers: int
    step: int
    steps: int
    loss: float | None
    samples_per_s: float
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    retry_at_s: float
    unreadable: str = ""


class Job(JobSummary, frozen=True, kw_only=True):
    """All that is known about a job.

    Args:
        version: grows with every change of what is asked of it; its ``ETag``.
        spec: as submitted, or as changed since.
        grant: what it should have.
        observed: what it has, as last seen.
        explained: why.
        run_dir: where its run lies, on the machines that run it; empty: it never began.
        attempts: that are over: it has crashed, was preempted or paused so often.
        crashes: of its own; these count against its retries.
        resizes: how often its grant changed while it ran.
        preemptions: how often it was stopped for others; by its own budget or limits does not count.
        resized_s: when its grant last changed.
        spent: what it has cost, in the currency of the pools' prices, before ``spending_since_s``.
        spending_per_h: what an hour of what it uses costs.
        spending_since_s: since when it uses that, at that price.
        active_s: seconds it has held devices, before ``active_since_s``.
        active_since_s: since when it holds some; None: it holds none.
        why: how it ended, why it is about to, or how its last attempt did.
        traceback: the user's own, if the script raised.
    """

    version: int
    spec: JobSpec
    grant: Grant
    observed: Observed
    explained: Explanation
    run_dir: str
    attempts: int
    crashes: int
    resizes: int
    preemptions: int
    resized_s: float | None
    spent: float
    spending_per_h: float
    spending_since_s: float
    active_s: float
    active_since_s: float | None
    why: str
    traceback: str

    def spent_by(self, now_s: float) -> float:
        """What it has cost until then."""
        return self.spent + self.spending_per_h * max(0.0, now_s - self.spending_since_s) / 3600


class Occupancy(Served, frozen=True, kw_only=True):
    """A pool, and how much of it is in use, by all teams together.

    Args:
        pool: its name.
        device: kind.
        devices: that there are, as a plan counts them.
        leaving: how many of those are on nodes that are drained or will be taken away.
        reserved: how many the calendar has, from the announcement on.
        used: by jobs, those on their way out included.
        spot: they can be taken away with a short notice.
        price: of a device for an hour, now.
        site: region or data centre.
        nodes: that engines have seen in it; 0: its devices are those that are declared.
    """

    pool: str
    device: str
    devices: int
    leaving: int
    reserved: int
    used: int
    spot: bool
    price: float
    site: str
    nodes: int

    @property
    def free(self) -> int:
        """Devices that nobody uses and that jobs may have.

        Jobs leave what goes or is reserved as soon as they can: what they use counts as if it were elsewhere.
        """
        return max(0, self.devices - self.leaving - self.reserved - self.used)


class Scale(Asked, frozen=True, kw_only=True):
    """Other limits for a job's size; None: as before.

    Args:
        min_replicas: fewest workers.
        max_replicas: most.
        replica_discrete_values: the legal sizes; empty: all between the limits. As before means those that
            are within the limits: the others are not used any more, until somebody lists them again.
    """

    min_replicas: int | None = None
    max_replicas: int | None = None
    replica_discrete_values: tuple[int, ...] | None = None


class Reprioritise(Asked, frozen=True, kw_only=True):
    """Another priority class for a job; empty: the cluster's default."""

    priority_class: str


class Bounds(Asked, frozen=True, kw_only=True):
    """Other bounds for a job; what is left out stays as it is, null takes one away. See `JobSpec`.

    ``loss``, ``throughput`` and ``by`` are those of its `elastane.api.jobs.Target`.
    """

    budget: float | msgspec.UnsetType | None = msgspec.UNSET
    deadline: datetime | msgspec.UnsetType | None = msgspec.UNSET
    loss: float | msgspec.UnsetType | None = msgspec.UNSET
    throughput: float | msgspec.UnsetType | None = msgspec.UNSET
    by: datetime | msgspec.UnsetType | None = msgspec.UNSET


class Event(Served, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. ``id`` grows; ``team`` and ``job`` are empty where it is about neither."""

    id: int
    time_s: float
    kind: str
    team: str = ""
    job: str = ""
    message: str = ""
    detail: dict[str, str | int | float | bool | None] = {}


class Decided(Served, frozen=True, kw_only=True):
    """A decision about a job, and its reason in sentences."""

    id: int
    time_s: float
    action: str
    workers: dict[str, int]
    sentences: tuple[str, ...]


class Explained(Served, frozen=True, kw_only=True):
    """Why a job has the size it has, what it waits for, and how it came to that; newest decision first."""

    job: str
    state: State
    wanted: Wanted
    workers: int
    explanation: Explanation
    decisions: tuple[Decided, ...]


# -- what operators declare --------------------------------------------------------------------------------


class Trigger(Asked, frozen=True, kw_only=True):
    """A rule that turns a reported metric into a limit.

    While it is above ``above``, or below ``below``, jobs may have no more than ``limit`` devices of the pool.
    At least one of the two is there.

    Args:
        name: unique.
        metric: as it is reported.
        above: None: does not matter.
        below: None: does not matter.
        pool: whose devices.
        limit: how many of them jobs may still have.
    """

    name: str
    metric: str
    above: float | None = None
    below: float | None = None
    pool: str
    limit: int


class Config(Asked, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that operators declare, as one document. What is None is left as it is."""

    version: Literal[1] = 1
    cohorts: tuple[Cohort, ...] | None = None
    teams: tuple[Team, ...] | None = None
    priorities: tuple[PriorityClass, ...] | None = None
    pools: tuple[Pool, ...] | None = None
    reservations: tuple[Reservation, ...] | None = None
    triggers: tuple[Trigger, ...] | None = None
    rules: Rules | None = None


class Change(Served, frozen=True, kw_only=True, omit_defaults=True):
    """One difference between two configurations; ``before`` and ``after`` are whole documents."""

    kind: str
    name: str
    change: Literal["add", "change", "remove"]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class Moved(Served, frozen=True, kw_only=True):
    """What a change of the rules would do to one job."""

    job: str
    team: str
    before: int
    after: int
    sentences: tuple[str, ...]


class Foreseen(Served, frozen=True, kw_only=True):
    """What a configuration would change, if it were applied now: documents, and the sizes of jobs."""

    documents: tuple[Change, ...]
    jobs: tuple[Moved, ...]


# -- nodes and reports -------------------------------------------------------------------------------------

NodeWanted: TypeAlias = Literal["use", "drain", "failed"]


UNSEEN_S = 300.0
"""A node that no engine has seen for so long is not there; engines say once a minute what they see."""


class Node(Served, frozen=True, kw_only=True):
    """A machine.

    Args:
        name: unique.
        pool: its devices belong to.
        devices: how many.
        wanted: ``use`` it, ``drain`` it (jobs leave), or take it as ``failed`` (they are gone already).
        why: somebody drained it.
        gone_at_s: when it will be taken away; None: nobody said so.
        heard_s: when its engine last saw it.
        version: grows with every change; its ``ETag``.
    """

    name: str
    pool: str
    devices: int
    wanted: NodeWanted
    why: str
    gone_at_s: float | None
    heard_s: float
    version: int


class NodeChange(Asked, frozen=True, kw_only=True):
    """Why a node is drained, or taken as failed."""

    why: str = ""


class Capacity(Asked, frozen=True, kw_only=True, tag="capacity", tag_field="kind"):
    """A pool has no more than so many devices, until somebody says otherwise or ``valid_s`` has passed."""

    pool: str
    devices: int
    valid_s: float = 600.0


class Notice(Asked, frozen=True, kw_only=True, tag="notice", tag_field="kind"):
    """A node will be taken away in so many seconds."""

    node: str
    in_s: float


class Metric(Asked, frozen=True, kw_only=True, tag="metric", tag_field="kind"):
    """A measurement, for `Trigger`."""

    metric: str
    value: float
    valid_s: float = 600.0


class Price(Asked, frozen=True, kw_only=True, tag="price", tag_field="kind"):
    """A device of a pool costs so much an hour, until somebody says otherwise or ``valid_s`` has passed."""

    pool: str
    price: float
    valid_s: float = 600.0


Report: TypeAlias = Capacity | Notice | Metric | Price

# -- usage, tokens, audit ----------------------------------------------------------------------------------

Terms: TypeAlias = Literal["owned", "borrowed", "spot"]
"""On which terms a device is used: the team or a cohort of it owns it, somebody else does, or it is spot."""


class Use(Served, frozen=True, kw_only=True):
    """Devices that a job uses now, and what one of them costs for an hour."""

    pool: str
    terms: Terms
    devices: Position
    price: Amount = 0.0


class UsageRow(Served, frozen=True, kw_only=True):
    """Device-seconds of one group; a column that was not grouped by is empty."""

    team: str = ""
    user: str = ""
    job: str = ""
    pool: str = ""
    owned_device_s: float = 0.0
    borrowed_device_s: float = 0.0
    spot_device_s: float = 0.0
    cost: float = 0.0


class Usage(Served, frozen=True, kw_only=True):
    """What was used between two moments."""

    from_s: float
    until_s: float
    rows: tuple[UsageRow, ...]


Role: TypeAlias = Literal["viewer", "submitter", "team-admin", "operator", "reporter"]
"""The first three are roles in a team; an operator has the cluster; a reporter may only report."""


class Me(Served, frozen=True, kw_only=True):
    """Whose token it is that asks.

    Args:
        user: whom it speaks for.
        role: what it may do.
        team: in which team; ``*``: in every one; empty for operators and reporters.
    """

    user: str
    role: Role
    team: str


class NewToken(Asked, frozen=True, kw_only=True):
    """A token to be made.

    Args:
        user: whom it speaks for.
        role: what it may do.
        team: in which team; ``*``: in every one; empty for operators and reporters.
        note: what it is for.
        valid_s: seconds until it ends; None: when it is revoked.
    """

    user: str
    role: Role
    team: str = ""
    note: str = ""
    valid_s: float | None = None


class Token(Served, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: str
    user: str
    role: Role
    team: str
    note: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None


class MadeToken(Served, frozen=True, kw_only=True):
    """A new token with its secret, which is told only this once."""

    secret: str
    token: Token


class AuditLine(Served, frozen=True, kw_only=True):
    """Who did what, or was not allowed to.

    Args:
        id: grows.
        time_s: when.
        token: that asked.
        user: whom the token speaks for.
        action: what was asked for.
        target: with what.
        team: the target belongs to; empty: to the cluster. Of several refusals: of the token.
        allowed: it was done.
        detail: what was changed, or why it was refused.
        times: so many refusals of the token are told by this line; the last one is described.
    """

    id: int
    time_s: float
    token: str
    user: str
    action: str
    target: str
    team: str
    allowed: bool
    detail: str
    times: int = 1


Check: TypeAlias = Literal["file", "integrity", "age", "reading", "writing", "turns"]
"""What a controller checks of itself: that its store's files are those that it opened, that their content is
whole, that no stored change is missing again, that the store answers, that it takes changes, and that the
loop's turns succeed."""


class HealthProblem(Served, frozen=True, kw_only=True):
    """A check that fails now.

    Args:
        check: which. While ``file``, ``integrity`` or ``age`` fails, the store is not used at all: nothing is
            planned, and every request that needs it is refused.
        what: happened.
        do: what an operator can do about it.
        since_s: when it was first found, in seconds since 1970.
    """

    check: Check
    what: str
    do: str
    since_s: float


class Health(Served, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the controller and its store work.

    Args:
        status: ``failing``: some check fails, so that some or all changes cannot be made; jobs go on as they
            are.
        problems: those checks, oldest first.
    """

    status: Literal["ok", "failing"]
    problems: tuple[HealthProblem, ...] = ()


class Version(Served, frozen=True, kw_only=True):
    """Of the controller, and of its API."""

    elastane: str
    api: Literal["v1"] = "v1"
