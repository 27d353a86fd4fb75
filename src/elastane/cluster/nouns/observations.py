"""The observations of jobs and nodes that an engine reports."""

import msgspec

from elastane.run.nouns.attempts import AttemptOutcome

RECENT_STEPS = 20
"""A mean loss covers this many steps, so that one unusually good step does not count."""


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


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one moment, as its engine sees it.

    Args:
        job: its name.
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
        lingering_s: seconds since the engine first saw processes of the job without a running agent.
        progress: None: no progress could be read.
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
    lingering_s: float = 0.0
    progress: JobProgress | None = None
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
