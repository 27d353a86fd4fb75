"""The records of a job that the controller stores and serves: state, grant and observations."""

from typing import Annotated, Literal, TypeAlias

import msgspec

from elastane.common.bodies import AnswerBody
from elastane.common.bounds import LARGEST_COUNT, Amount, Count, Duration, Moment, Position, Samples, Steps

State: TypeAlias = Literal["queued", "running", "paused", "finished", "failed", "cancelled"]
"""A job's state: ``queued`` waits without devices; ``running`` holds devices; the last three are final."""


Wanted: TypeAlias = Literal["run", "pause", "cancel", "finish", "fail"]
"""The wanted state of a job; its actual state follows as soon as it can. Users set the first three. The job's
own rules set the last two: it has reached its target, or its time is up."""


UNMEASURED_RESIZE_S = 1.0
"""Stands for the cost of a resize until one was observed."""


ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")


class Grant(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """The workers that a job should have.

    Args:
        workers: how many, by pool.
        drain_until_s: when workers beyond that should be gone.
    """

    workers: dict[str, Count] = msgspec.field(default_factory=dict)
    drain_until_s: Moment = 0.0


class HeldWorkers(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """The workers that a job has in one pool.

    Args:
        workers: how many use devices of the pool, or soon will.
        leaving: how many of them are on nodes that are drained or will be taken away.
        absent: how many of them do not train, because they have not arrived or have gone; their devices count
            as used.
        lost: how many had arrived and died, and have no replacement yet.
    """

    workers: Count
    leaving: Count = 0
    absent: Annotated[int, msgspec.Meta(ge=-LARGEST_COUNT, le=LARGEST_COUNT)] = 0
    lost: Count = 0


class ObservedJob(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """The latest observation of a job by its engine.

    Args:
        seen_s: when; 0: never.
        held: the workers it has, by pool. A job uses the larger of this and its grant.
        step: last committed step.
        stepped_s: when it was first observed; 0: unknown.
        steps: planned steps of the job; 0: unknown.
        virtual_ranks: pinned for the whole run, and the most workers that the job may have; 0: not pinned
            yet.
        loss: of that step; None: it had none.
        starting_since_s: since when granted workers have not arrived, counted after a crash from the next
            try; None: all have.
        faulty_since_s: since when granted workers are missing because of a fault; None: none is.
        beyond_since_s: since when the job holds more workers than granted, although its agent knows the
            grant; None: it does not.
        speeds: ``(workers, samples per second)`` as measured.
        weights: how much each of these counts beside the others, from 0 to 1, less with its age; 0: it was
            measured too briefly for a comparison. Empty: all count
            fully.
        prior: speeds of an earlier job of the same team with the same program.
        resize_s: cost of a resize, in seconds of the whole job's time.
        unsaved_s: seconds of work that a preemption would lose.
        trained: samples it has trained on.
        remaining: samples still to train on; None: unknown.
        parameters: number of trained elements of its model; 0: unknown.
    """

    seen_s: Moment = 0.0
    held: dict[str, HeldWorkers] = msgspec.field(default_factory=dict)
    step: Steps = 0
    stepped_s: Moment = 0.0
    steps: Steps = 0
    virtual_ranks: Count = 0
    loss: float | None = None
    starting_since_s: Moment | None = None
    faulty_since_s: Moment | None = None
    beyond_since_s: Moment | None = None
    speeds: tuple[tuple[Count, Amount], ...] = ()
    weights: tuple[Annotated[float, msgspec.Meta(ge=0, le=1)], ...] = ()
    prior: tuple[tuple[Count, Amount], ...] = ()
    resize_s: Duration = UNMEASURED_RESIZE_S
    unsaved_s: Duration = 0.0
    trained: Samples = 0.0
    remaining: Samples | None = None
    parameters: Position = 0

    @property
    def samples_per_s(self) -> float:
        """The speed last measured with the number of workers that train now; 0: not measured yet."""
        workers = sum(held.workers - held.absent for held in self.held.values())
        return dict(self.speeds).get(workers, 0.0)


class Explanation(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """The reasons for a job's size, in sentences; for a job that has ended, how it ended."""

    sentences: tuple[str, ...] = ()
    decided_s: Moment = 0.0
