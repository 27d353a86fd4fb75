"""Orders to an engine. An order may be lost, repeated or late without harm.

Each order names its attempt; an engine touches no other attempt.
"""

from typing import TypeAlias

import msgspec

from elastane.cluster.nouns.jobs import JobSpec


class StartAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin an attempt with ``workers`` workers, unless it has begun already.

    Every attempt except the first continues from the newest checkpoint or, if there is none, from the
    beginning. A run under this name that began before ``submitted_s``, in seconds since 1970, belonged to
    another job.
    """

    job: str
    attempt: int
    workers: int
    spec: JobSpec
    submitted_s: float = 0.0


class ResizeJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Train with ``workers`` workers from now on; ``limits`` are the fewest and the most for the job."""

    job: str
    attempt: int
    workers: int
    limits: tuple[int, int]


class DrainWorker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let one worker leave at a commit, because its device will soon be taken away."""

    job: str
    attempt: int
    worker: int


class EvictWorkers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kill the workers that should have left by now; the others continue with the state that they hold.

    If part of the state is lost with them, the job goes back to its newest checkpoint.
    """

    job: str
    attempt: int


class StopAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the attempt at the next commit, with a checkpoint if the run saves any; ``why`` is a sentence."""

    job: str
    attempt: int
    why: str = ""


class KillAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Kill every process of the attempt now, including those that its agent has left behind."""

    job: str
    attempt: int


class SettleJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop observing the job, because its end is recorded."""

    job: str


Order: TypeAlias = (
    StartAttempt | ResizeJob | DrainWorker | EvictWorkers | StopAttempt | KillAttempt | SettleJob
)
