"""The bodies of the REST API's requests and answers; other modules of this package define the rest.

The server, its OpenAPI description and the Python client share these definitions. JSON is camelCase; times
are seconds since 1970.
"""

from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

import msgspec

from elastane.cluster.nouns.config import Change
from elastane.cluster.nouns.history import DecisionRecord
from elastane.cluster.nouns.job_records import Explanation, Grant, ObservedJob, State, Wanted
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.tokens import Role
from elastane.common.bodies import AnswerBody, RequestBody

T = TypeVar("T")

ReadRecord: TypeAlias = Literal["run.json", "ledger.jsonl", "events.jsonl"]
"""A record of a run that may be read by all that may see its job."""

# -- jobs --------------------------------------------------------------------------------------------------


class JobSummary(AnswerBody, frozen=True, kw_only=True):
    """A job as a row of a list.

    Args:
        number: grows with every submission.
        name: unique in the cluster.
        team: the team that owns it and that provides its quota.
        user: its submitter.
        queue: of the team.
        priority_class: as its spec names it; empty: the cluster's default.
        state: its state.
        wanted: the state that users, or its own rules, want.
        workers: granted workers, in all pools together.
        min_workers: fewest that its elastic policy allows.
        max_workers: most that its elastic policy allows.
        processes: of each worker of a script that calls `elastane.join`.
        step: last committed step.
        steps: planned steps; 0: unknown.
        loss: of the last step; None: it had none.
        samples_per_s: speed as last measured with the workers it has; 0: not measured, or it does not run.
        submitted_s: when it was submitted.
        started_s: when it was first granted its minimum.
        ended_s: when it finished, failed or was cancelled.
        retry_at_s: after a crash it does not start before this time; it keeps the workers that it was
            granted.
        unreadable: the damage of its record; empty: none. The controller decides nothing about a damaged job:
            it keeps its workers and can only be cancelled. Fields that cannot be read are empty or 0.
        next_decision: why its size stays as it is, and what would change it, as the newest plan says; empty:
            nothing is known, or it has ended.
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
    processes: int = 1
    step: int
    steps: int
    loss: float | None
    samples_per_s: float
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    retry_at_s: float
    unreadable: str = ""
    next_decision: str = ""


class JobAgent(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """An agent that works for a job, on a machine of a declared engine.

    Args:
        node: the machine that it runs on; empty: unknown.
        state: ``asked``, ``pending``, ``running`` (its machine has it), ``arrived`` (it has spoken to the
            controller) or ``leaving``.
        why: a sentence about this state; empty: nothing is known.
        asked_s: when its engine was asked for it, in seconds since 1970.
    """

    id: str
    engine: str
    pool: str
    workers: int
    state: str
    node: str = ""
    why: str = ""
    asked_s: float


class Job(JobSummary, frozen=True, kw_only=True):
    """All facts about a job.

    Args:
        version: grows with every change of its spec or its wanted state; its ``ETag``.
        spec: as submitted or changed later.
        grant: the workers that it should have.
        observed: the latest observation of it.
        explained: the reasons for its size.
        run_dir: directory of its run, on the machines that run it; empty: it never began.
        attempts: number of attempts that have ended, by a crash, a preemption or a pause.
        crashes: number of crashes of its own, which count against its retries.
        resizes: how often its grant changed while it ran.
        preemptions: how often it was stopped for other jobs; stops by its own budget or limits do not count.
        resized_s: when its grant last changed.
        spent: its cost before ``spending_since_s``, with that of all bytes between sites, in the currency of
            the pools' prices.
        egress_spent: the part of ``spent`` that bytes between sites have caused.
        spending_per_h: cost of an hour of the devices it uses now.
        spending_since_s: since when it uses these devices at this price.
        active_s: seconds for which it held devices before ``active_since_s``.
        active_since_s: since when it holds devices; None: it holds none.
        why: how it ended, why it is ending, or how its last attempt ended.
        traceback: of the user's code, if the script raised.
        agents: those on declared engines that have not ended, oldest first.
    """

    version: int
    spec: JobSpec
    grant: Grant
    observed: ObservedJob
    explained: Explanation
    run_dir: str
    attempts: int
    crashes: int
    resizes: int
    preemptions: int
    resized_s: float | None
    spent: float
    egress_spent: float = 0.0
    spending_per_h: float
    spending_since_s: float
    active_s: float
    active_since_s: float | None
    why: str
    traceback: str
    agents: tuple[JobAgent, ...] = ()

    def compute_spent(self, now_s: float) -> float:
        """Return the job's cost until a time."""
        return self.spent + self.spending_per_h * max(0.0, now_s - self.spending_since_s) / 3600


class ScaleRequest(RequestBody, frozen=True, kw_only=True):
    """New limits for a job's size; None: unchanged.

    Args:
        min_replicas: fewest workers.
        max_replicas: most.
        replica_discrete_values: the legal sizes; empty: all between the limits. If unchanged, sizes outside
            the new limits are removed and do not return by themselves.
    """

    min_replicas: int | None = None
    max_replicas: int | None = None
    replica_discrete_values: tuple[int, ...] | None = None


class PriorityChange(RequestBody, frozen=True, kw_only=True):
    """A new priority class for a job; empty: the cluster's default."""

    priority_class: str


class Bounds(RequestBody, frozen=True, kw_only=True):
    """New bounds for a job. An omitted field stays unchanged, null removes a bound. See `JobSpec`.

    ``loss``, ``throughput`` and ``by`` are those of its `elastane.cluster.nouns.jobs.JobTarget`.
    ``priority_class`` is here too, so that one request changes all of them or none.
    """

    priority_class: str | msgspec.UnsetType = msgspec.UNSET
    budget: float | msgspec.UnsetType | None = msgspec.UNSET
    deadline: datetime | msgspec.UnsetType | None = msgspec.UNSET
    loss: float | msgspec.UnsetType | None = msgspec.UNSET
    throughput: float | msgspec.UnsetType | None = msgspec.UNSET
    by: datetime | msgspec.UnsetType | None = msgspec.UNSET


class JobExplanation(AnswerBody, frozen=True, kw_only=True):
    """The reasons for a job's size or its waiting, and the decisions about it, newest first."""

    job: str
    state: State
    wanted: Wanted
    workers: int
    explanation: Explanation
    decisions: tuple[DecisionRecord, ...]


# -- configuration -----------------------------------------------------------------------------------------


class ResizedJob(AnswerBody, frozen=True, kw_only=True):
    """The effect of a new configuration on one job's size."""

    job: str
    team: str
    before: int
    after: int
    sentences: tuple[str, ...]


class Forecast(AnswerBody, frozen=True, kw_only=True):
    """The documents and the sizes of jobs that a configuration would change if it were applied now."""

    documents: tuple[Change, ...]
    jobs: tuple[ResizedJob, ...]


# -- nodes and reports -------------------------------------------------------------------------------------


class NodeChange(RequestBody, frozen=True, kw_only=True):
    """The reason for draining a node, or for treating it as failed."""

    why: str = ""


# -- usage, tokens, audit ----------------------------------------------------------------------------------


class Me(AnswerBody, frozen=True, kw_only=True):
    """The owner of the token that made the request.

    Args:
        user: owner of the token.
        role: the user's rights.
        team: the team in which the role holds; ``*``: every team; empty for roles of no team.
    """

    user: str
    role: Role
    team: str


class Version(AnswerBody, frozen=True, kw_only=True):
    """The versions of the controller and of its API."""

    elastane: str
    api: Literal["v1"] = "v1"


# -- metrics -----------------------------------------------------------------------------------------------


class ScrapeTarget(AnswerBody, frozen=True, kw_only=True):
    """A group of pages of metrics, as Prometheus reads it from an HTTP service discovery.

    Args:
        targets: host and port of each.
        labels: of all their series; names with two underscores in front say how to scrape.
    """

    targets: tuple[str, ...]
    labels: dict[str, str]
