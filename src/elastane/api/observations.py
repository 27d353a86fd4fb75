"""What an engine observes of jobs and nodes."""

import msgspec

from elastane.api.attempts import AttemptOutcome

RECENT_STEPS = 20
"""Over which a loss is averaged where one lucky step must not count."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is and what it can do, for the scheduler's goodput.

    Args:
        step: last committed; 0: none.
        loss: of that step; None: there was none.
        recent_loss: mean over the last `RECENT_STEPS` steps; None: fewer were made, or some had none.
        steps: the job lasts; 0: unknown.
        samples_per_step: the global batch; 0: unknown so far.
        virtual_ranks: pinned for its whole run, so that more workers would find nothing to do; 0: none yet.
        speeds: ``(workers, samples per second)`` of the latest steps with each number of workers.
        brief: numbers of workers whose speed was measured for too short a time to be compared with others.
        resize_s: what a change of its workers lately cost: the longest wait of a healthy one, in seconds;
            None: there was no change.
        saved_s: when its state was last kept, in seconds since 1970; None: never in what was read.
    """

    step: int = 0
    loss: float | None = None
    recent_loss: float | None = None
    steps: int = 0
    samples_per_step: int = 0
    virtual_ranks: int = 0
    speeds: tuple[tuple[int, float], ...] = ()
    brief: tuple[int, ...] = ()
    resize_s: float | None = None
    saved_s: float | None = None

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
        present: some process of the job exists, an attempt that is about to begin included. Only when none
            does are its devices free.
        agent: the agent of ``attempt`` is running.
        outcome: how ``attempt`` ended; None: it has not, or left no word.
        workers: worker processes that exist, starting and leaving ones included; None: no answer.
        members: of ``workers``, those that take part in the training; None: the engine counts processes
            only.
        target: workers that its agent keeps running; None: no answer.
        fixed: its number of workers is not the controller's to change now: a human has set it, or the run
            makes its last step.
        lingering_s: seconds since processes were first seen whose agent is gone, or not there yet.
        progress: None: nothing was read.
        run_dir: where its run lies; empty: it never began.
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
        """Workers that have arrived; None: no answer.

        Before training begins, processes count: a large model or dataset takes long to load, and no worker
        waits for them. Later, a joiner has arrived once it is a member.
        """
        return self.members or self.workers


class ObservedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, as its engine sees it.

    Args:
        name: unique.
        pool: its devices belong to.
        devices: how many.
    """

    name: str
    pool: str
    devices: int
