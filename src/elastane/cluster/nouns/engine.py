"""The engines of jobs: the orders to them, their observations, and the interface of all of them.

An order may be lost, repeated or late without harm. Each order names its attempt; an engine touches no other
attempt.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from elastane.cluster.nouns.jobs import JobSpec
from elastane.run.nouns.attempts import AttemptOutcome

RECENT_STEPS = 20
"""A mean loss covers this many steps, so that one unusually good step does not count."""


class StartAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin an attempt with ``workers`` workers, unless it has begun already.

    Every attempt except the first continues from the newest checkpoint or, without a checkpoint, from the
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


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress and the measured speed of a job, from which the scheduler computes goodput.

    Args:
        step: last committed; 0: none.
        loss: of that step; None: it had none.
        recent_loss: mean over the last `RECENT_STEPS` steps; None: the job has made fewer steps, or some had
            no loss.
        steps: planned steps of the job; 0: unknown.
        samples_per_step: the global batch; 0: unknown so far.
        virtual_ranks: pinned for the whole run; more workers than this would have nothing to do. 0: not
            pinned yet.
        speeds: ``(workers, samples per second)`` of the latest steps with each number of workers.
        weights: how much each of these counts beside the others, from 0 to 1, less with its age; 0: it was
            measured too briefly for a comparison.
        resize_s: the cost of a recent change of the number of workers: the longest wait of a healthy worker,
            in seconds; None: there was no change.
        saved_s: when the last checkpoint was saved, in seconds since 1970; None: the events that were read
            mention none.
        parameters: number of trained elements of the model; 0: unknown so far.
    """

    step: int = 0
    loss: float | None = None
    recent_loss: float | None = None
    steps: int = 0
    samples_per_step: int = 0
    virtual_ranks: int = 0
    speeds: tuple[tuple[int, float], ...] = ()
    weights: tuple[float, ...] = ()
    resize_s: float | None = None
    saved_s: float | None = None
    parameters: int = 0

    @property
    def trained(self) -> int:
        """Samples it has trained on."""
        return self.step * self.samples_per_step

    @property
    def remaining(self) -> int | None:
        """Samples still to train on; None: unknown, for example of a stream."""
        if not self.steps or not self.samples_per_step:
            return None
        return max(0, self.steps - self.step) * self.samples_per_step


class Crossing(msgspec.Struct, frozen=True):
    """What one worker of an attempt has sent from its own site to workers at another one since it began."""

    worker: int
    source: str
    target: str
    sent_bytes: int


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one moment, as its engine sees it.

    Args:
        attempt: number of the newest attempt that has begun; 0: none.
        present: some process of the job exists, or an attempt is about to begin. Otherwise the job's devices
            are free.
        agent: the agent of ``attempt`` is running.
        outcome: how ``attempt`` ended; None: it has not ended, or recorded no outcome.
        workers: worker processes that exist, starting and leaving ones included; None: the coordinator gave
            no answer.
        members: how many of ``workers`` take part in the training; None: the engine counts processes only.
        target: workers that its agent keeps running; None: the coordinator gave no answer.
        fixed: the controller may not change the number of workers now: a user has set it, or the run is
            making its last step.
        held: workers that use devices, or soon will, by pool; None: the engine counts workers only.
        lingering_s: seconds since the engine first saw processes of the job without a running agent.
        progress: None: no progress could be read.
        crossings: the bytes between sites, as the workers that report some have counted them.
        run_dir: directory of its run; empty: it never began.
    """

    job: str
    attempt: int = 0
    present: bool = False
    agent: bool = False
    outcome: AttemptOutcome | None = None
    workers: int | None = None
    members: int | None = None
    target: int | None = None
    fixed: bool = False
    held: Mapping[str, int] | None = None
    lingering_s: float = 0.0
    progress: JobProgress | None = None
    crossings: tuple[Crossing, ...] = ()
    run_dir: str = ""

    @property
    def arrived(self) -> int | None:
        """The number of workers that have arrived; None: the coordinator gave no answer.

        Before training begins, every process counts: a large model or dataset takes long to load, and no
        other worker waits for it. Later, a joiner has arrived once it is a member.
        """
        return self.members or self.workers


class ObservedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, as its engine sees it.

    Args:
        name: unique.
        pool: the pool that its devices belong to.
        devices: how many.
    """

    name: str
    pool: str
    devices: int


class JobEngine(Protocol):
    """A job engine observes jobs and carries out orders. It keeps no state that it could not observe again.

    The engine of a restarted controller therefore sees the same jobs and continues with them.
    """

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """Observe these jobs, and all others that have not been settled.

        Args:
            jobs: all jobs that are unfinished for the controller; a job that the engine does not know is
                reported as absent.
        """

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out the orders as far as possible now; the controller repeats an order that had no effect.

        Args:
            orders: at most one per job; an empty list comes in cycles in which no job needs one.

        Returns:
            The reason for each failed order, by job.
        """

    async def observe_nodes(self) -> Sequence[ObservedNode]:
        """Return the machines that are available now."""

    async def close(self) -> None:
        """Release the engine's own resources; jobs continue."""
