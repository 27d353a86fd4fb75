"""What the controller stores about a job, and serves: its state, its grant and what was observed."""

from typing import Annotated, Literal, TypeAlias

import msgspec

from elastane.api.bodies import AnswerBody
from elastane.api.bounds import LARGEST_COUNT, Amount, Count, Duration, Moment, Samples, Steps

State: TypeAlias = Literal["queued", "running", "paused", "finished", "failed", "cancelled"]
"""Of a job: ``queued`` holds nothing and waits; ``running`` holds devices; the last three are for ever."""


Wanted: TypeAlias = Literal["run", "pause", "cancel", "finish", "fail"]
"""What people asked for, or, of the last two, what the job's own rules say: it has reached its target, or its
time is up. The state follows as soon as it can."""


ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")


class Grant(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """What a job should have.

    Args:
        workers: by pool.
        drain_until_s: when workers beyond that should be gone.
    """

    workers: dict[str, Count] = msgspec.field(default_factory=dict)
    drain_until_s: Moment = 0.0


class HeldWorkers(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
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


class ObservedJob(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
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
    held: dict[str, HeldWorkers] = msgspec.field(default_factory=dict)
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


class Explanation(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job has the size it has, in sentences; of one that has ended, how."""

    sentences: tuple[str, ...] = ()
    decided_s: Moment = 0.0
