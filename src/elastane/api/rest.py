"""The bodies of the REST API: requests and answers, beside the nouns that people declare.

The controller writes these values, clients read them: one definition for the server, its OpenAPI
description and the Python client. JSON is camelCase; times are seconds since 1970.
"""

from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec

from elastane.api.bodies import AnswerBody, RequestBody
from elastane.api.config import Change
from elastane.api.history import DecisionRecord
from elastane.api.job_records import Explanation, Grant, ObservedJob, State, Wanted
from elastane.api.jobs import JobSpec
from elastane.api.tokens import Role

T = TypeVar("T")


class Page(AnswerBody, Generic[T], frozen=True, kw_only=True):
    """Some of many.

    Args:
        items: in the order of the list.
        after: where the next page begins; empty: this is the last one.
    """

    items: tuple[T, ...]
    after: str = ""


class Problem(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
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


class JobSummary(AnswerBody, frozen=True, kw_only=True):
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
    observed: ObservedJob
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


class ScaleRequest(RequestBody, frozen=True, kw_only=True):
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


class PriorityChange(RequestBody, frozen=True, kw_only=True):
    """Another priority class for a job; empty: the cluster's default."""

    priority_class: str


class Bounds(RequestBody, frozen=True, kw_only=True):
    """Other bounds for a job; what is left out stays as it is, null takes one away. See `JobSpec`.

    ``loss``, ``throughput`` and ``by`` are those of its `elastane.api.jobs.JobTarget`.
    """

    budget: float | msgspec.UnsetType | None = msgspec.UNSET
    deadline: datetime | msgspec.UnsetType | None = msgspec.UNSET
    loss: float | msgspec.UnsetType | None = msgspec.UNSET
    throughput: float | msgspec.UnsetType | None = msgspec.UNSET
    by: datetime | msgspec.UnsetType | None = msgspec.UNSET


class JobExplanation(AnswerBody, frozen=True, kw_only=True):
    """Why a job has the size it has, what it waits for, and how it came to that; newest decision first."""

    job: str
    state: State
    wanted: Wanted
    workers: int
    explanation: Explanation
    decisions: tuple[DecisionRecord, ...]


# -- what operators declare --------------------------------------------------------------------------------


class ResizedJob(AnswerBody, frozen=True, kw_only=True):
    """What a change of the rules would do to one job."""

    job: str
    team: str
    before: int
    after: int
    sentences: tuple[str, ...]


class Forecast(AnswerBody, frozen=True, kw_only=True):
    """What a configuration would change, if it were applied now: documents, and the sizes of jobs."""

    documents: tuple[Change, ...]
    jobs: tuple[ResizedJob, ...]


# -- nodes and reports -------------------------------------------------------------------------------------


class NodeChange(RequestBody, frozen=True, kw_only=True):
    """Why a node is drained, or taken as failed."""

    why: str = ""


# -- usage, tokens, audit ----------------------------------------------------------------------------------


class Me(AnswerBody, frozen=True, kw_only=True):
    """Whose token it is that asks.

    Args:
        user: whom it speaks for.
        role: what it may do.
        team: in which team; ``*``: in every one; empty for operators and reporters.
    """

    user: str
    role: Role
    team: str


class Version(AnswerBody, frozen=True, kw_only=True):
    """Of the controller, and of its API."""

    elastane: str
    api: Literal["v1"] = "v1"
