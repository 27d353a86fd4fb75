"""Orders to an engine. Every order may be lost, repeated or late without harm.

Each names its attempt; an engine does not touch any other attempt.
"""

from typing import TypeAlias

import msgspec

from elastane.api.jobs import JobSpec


class StartAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin an attempt with ``workers`` workers, unless it has begun already.

    Any but the first goes on from the newest checkpoint, or, if there is none, from the beginning. What has
    lived under the job's name before it was submitted, in seconds since 1970, was another job.
    """

    job: str
    attempt: int
    workers: int
    spec: JobSpec
    submitted_s: float = 0.0


class ResizeJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Train with ``workers`` workers from now on; ``limits`` are the fewest and most for the job."""

    job: str
    attempt: int
    workers: int
    limits: tuple[int, int]


class DrainWorker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let one worker leave at a commit, because its device will not be there for long."""

    job: str
    attempt: int
    worker: int


class EvictWorkers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End now, with SIGKILL, the workers that should have left by now; the others go on with what they hold.

    If no other worker holds some of the state, the job goes back to its newest checkpoint.
    """

    job: str
    attempt: int


class StopAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the attempt at the next commit, with a checkpoint if the run keeps any; ``why`` is a sentence."""

    job: str
    attempt: int
    why: str = ""


class KillAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End every process of the attempt now, those its agent has left behind included."""

    job: str
    attempt: int


class SettleJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job's end is recorded: it need not be observed again."""

    job: str


Order: TypeAlias = (
    StartAttempt | ResizeJob | DrainWorker | EvictWorkers | StopAttempt | KillAttempt | SettleJob
)
