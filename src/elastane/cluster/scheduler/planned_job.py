"""One job during a plan: its limits, its workers, and its grants so far."""

from dataclasses import dataclass, field

from elastane.cluster.nouns.cluster import JobState
from elastane.cluster.nouns.plans import NoRoom, Why
from elastane.cluster.scheduler.eligibility import PoolGroup
from elastane.cluster.scheduler.quota_tree import Path
from elastane.cluster.scheduler.sizes import Sizes
from elastane.cluster.scheduler.speed_model import SpeedModel


@dataclass(slots=True, eq=False)
class WorkerGrant:
    """Workers that a job was granted in one go.

    Args:
        node: the node of the quota tree that pays for them.
        parts: ``(pool, workers)``.
        growth: the workers are beyond the minimum.
        rank: position among the grants of the plan; an earlier grant has the better right.
        taken_back: the grant no longer counts.
    """

    job: "PlannedJob"
    node: int
    parts: tuple[tuple[int, int], ...]
    growth: bool
    rank: int
    taken_back: bool = False


@dataclass(slots=True, eq=False)
class PlannedJob:
    """A job during a plan.

    Args:
        number: the job's number; decides between equals.
        path: nodes of the quota tree from its team to the cluster.
        level: index in ``path`` of the highest node that may pay for the job; its team if the job
            must not borrow.
        priority: value of its priority class.
        groups: groups of pools it may use, best first. A job with workers has only the group they are in. A
            job without any group cannot run.
        devices: devices of one worker.
        minimum: smallest legal size, in workers.
        max_workers: most workers it may have, however much is idle; 0: it may not run now.
        limit_reason: why ``max_workers`` is not larger.
        written_off: why the plan waits for some of its workers no longer; None: it waits for all.
        held: workers by pool that may stay where they are.
        draining: workers by pool that were asked to leave and have not left, without those on nodes that
            leave; under -1 those in pools that were removed.
        size: workers it has anywhere; 0 while it waits.
        held_workers: sum of ``held``.
        held_minimum: those of ``held`` that make up its minimum, by pool.
        live_workers: those of ``held`` that are not known to be dead.
        promised: the size that the last plan promised it, if that is legal and more than it has; else 0.
        cooling_down: it was resized less than its cooldown ago.
        protected: it was started less than ``minRunTimeS`` ago, so only an owner may stop it.
        out_of_patience: it has waited for longer than ``patienceS``, and so holds its place.
        awaits_reservation: it waits, and its minimum does not fit beside the reservations even in an
            otherwise empty cluster.
        needed_workers: workers that meet its deadline, or those it has if these meet it; 0: it has no
            deadline.
        work_s: work that is left, or expected, in seconds of one worker.
        resize_log: cost of a resize as a part of the horizon; comparable to `SpeedModel.compute_gain`.
        holds_last_quota_only: while it waits, it holds its place only on the last quota it may use: others
            borrowed the places that it held further down (`holds.find_futile_holders`).
        weight: of its speedup, by its work (`cluster_index`).
        held_weight: the same, for workers that it holds.
        stop_reason: why it is not granted more; a `NoRoom` if devices are missing.
        wait_reason: why its minimum does not fit.
        grants: what it is granted, oldest first.
        granted: the same, in workers by pool.
        entitled: the same, in workers.
        granted_in_place: how many of ``held`` are among them.
        loses_rest: the part of ``held`` that is not granted cannot stay.
    """

    state: JobState
    number: int
    path: Path
    level: int
    priority: int
    groups: tuple[PoolGroup, ...]
    devices: int
    sizes: Sizes
    speed_model: SpeedModel
    minimum: int
    max_workers: int
    limit_reason: Why
    written_off: Why | None
    held: dict[int, int]
    draining: dict[int, int]
    size: int
    held_workers: int
    held_minimum: dict[int, int]
    live_workers: int
    promised: int
    cooling_down: bool
    protected: bool
    out_of_patience: bool
    awaits_reservation: bool
    needed_workers: float
    work_s: float
    resize_log: float
    holds_last_quota_only: bool = False
    weight: float = 1.0
    held_weight: float = 1.0
    stop_reason: Why | None = None
    wait_reason: NoRoom | None = None
    grants: list[WorkerGrant] = field(default_factory=list)
    granted: dict[int, int] = field(default_factory=dict)
    entitled: int = 0
    granted_in_place: int = 0
    loses_rest: bool = False

    @property
    def is_running(self) -> bool:
        return self.size > 0

    @property
    def is_draining(self) -> bool:
        """Some of its own workers are still leaving, so it neither starts nor grows."""
        return bool(self.draining)

    @property
    def has_minimum(self) -> bool:
        return self.entitled >= self.minimum

    @property
    def lost_work(self) -> float:
        """Work that a preemption would lose, in device-seconds."""
        return (self.state.unsaved_s + self.state.resize_s) * self.size * self.devices
