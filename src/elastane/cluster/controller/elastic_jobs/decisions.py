"""What the controller does next about one `ElasticJob`. Pure.

Each step may be repeated, and each cycle takes one. A controller that ends between two of them is followed by
one that sees the same, and goes on.
"""

from enum import Enum

import msgspec

from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import GROUP, ElasticJob

FINALIZER_PREFIX = f"{GROUP}/"


class Step(Enum):
    """One step for a resource."""

    CLAIM = "add the finalizer, so that the resource stays until its job has ended"
    SUBMIT = "make its job"
    CHANGE = "give its job what its spec says now"
    CANCEL = "end its job, because the resource is deleted"
    RELEASE = "remove the finalizer, because the job has ended"
    REMOVE = "delete it, because its job is forgotten"
    FORGET = "forget a resource that is gone"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one resource.

    Args:
        resource: as it is shown; None: it is gone.
        kept: as the store knows it; None: it does not.
        job: that was made of it; None: none was, or it is forgotten.
        has_agents: some agents of the job are not gone.
    """

    resource: ElasticJob | None
    kept: StoredElasticJob | None
    job: StoredJob | None = None
    has_agents: bool = False
    finalizer: str

    @property
    def is_over(self) -> bool:
        """Whether its job has ended, and holds nothing any more."""
        return (self.job is None or self.job.has_ended) and not self.has_agents

    @property
    def must_cancel(self) -> bool:
        return self.job is not None and not self.job.has_ended and self.job.wanted != "cancel"


def choose_step(situation: Situation) -> Step | None:
    """Return the next step; None: there is nothing to do now."""
    resource, kept = situation.resource, situation.kept
    if resource is None:
        if situation.must_cancel:
            return Step.CANCEL
        return Step.FORGET if kept is not None and situation.is_over else None
    if belongs_to_another(resource, situation.finalizer):
        return None
    is_claimed = situation.finalizer in resource.finalizers
    if resource.is_deleting:
        if situation.must_cancel:
            return Step.CANCEL
        return Step.RELEASE if is_claimed and situation.is_over else None
    if not is_claimed:
        return Step.CLAIM
    if kept is None:
        return Step.SUBMIT
    if situation.job is None:
        return Step.REMOVE
    if not situation.job.has_ended and resource.generation != kept.generation:
        return Step.CHANGE
    return None


def belongs_to_another(resource: ElasticJob, finalizer: str) -> bool:
    """Return whether a controller of another cluster has claimed a resource."""
    ours = {name for name in resource.finalizers if name.startswith(FINALIZER_PREFIX)}
    return bool(ours) and finalizer not in ours


def make_finalizer(cluster: str) -> str:
    """Return the finalizer with which the controller of a cluster claims resources."""
    return f"{FINALIZER_PREFIX}{cluster}"
