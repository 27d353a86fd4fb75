"""One job while a plan is made: what it may have, what it has, and what it has been given so far."""

from dataclasses import dataclass, field

from elastane.api.cluster import JobState
from elastane.api.plans import NoRoom, Why
from elastane.scheduler.accounts import Path
from elastane.scheduler.eligibility import Group
from elastane.scheduler.goodput import Curve


@dataclass(slots=True, eq=False)
class Grant:
    """Workers given in one go.

    Args:
        claimant: to whom.
        node: on whose quota.
        parts: ``(pool, workers)``.
        growth: beyond the minimum.
        rank: of the grants of a plan, an earlier one has the better right.
        taken_back: it does not count any more.
    """

    claimant: "Claimant"
    node: int
    parts: tuple[tuple[int, int], ...]
    growth: bool
    rank: int
    taken_back: bool = False


@dataclass(slots=True, eq=False)
class Claimant:
    """A job and what becomes of it.

    Args:
        state: the job.
        number: of the job; decides between equals.
        path: from its team to the cluster.
        level: place in ``path`` of the highest node on whose quota it may run: its team's if it must not
            borrow.
        priority: of its class.
        groups: pools it may use, best first; of a job with workers, the group they are in. Without any it is
            barred.
        devices: of a worker.
        curve: how fast it is.
        minimum: its claim, in workers.
        limit: the most workers it may have, whatever is idle; 0 bars it.
        limited_by: why no more.
        yields: while it waits, it keeps nothing from others but on the last quota it may use: what it kept
            further down, others borrow.
        stop: why it is entitled to no more; a `NoRoom` for want of devices, else a reason of its own.
        given_up: why workers it has are waited for no longer; None: none are given up.
        held: workers by pool that may stay where they are.
        draining: workers by pool that were asked to leave and have not, those on nodes that go away left out;
            under -1 those in pools that were removed.
        size: workers it has, wherever; 0 while it waits.
        stays: workers in ``held``.
        lives: those of them that are not known to be dead.
        cooling: it was resized a moment ago.
        protected: it was started a moment ago, so that no better right but an owner's preempts it.
        patient: it has waited long enough, since it was submitted or stopped, to hold its place.
        reserved: it waits, and beside what is reserved its minimum would not fit even if nobody else had any.
        needed: workers it takes to be done by its deadline, or those it has if they will do; 0 without one.
        resize_log: what a resize costs, as a part of the horizon; comparable to `Curve.gain`.
        waits: why its minimum does not fit.
        grants: what it is entitled to, oldest first.
        given: the same, in workers by pool.
        entitled: the same, in workers.
        placed: how many of ``held`` are among them.
        lost: the others of ``held`` cannot stay.
    """

    state: JobState
    number: int
    path: Path
    level: int
    priority: int
    groups: tuple[Group, ...]
    devices: int
    curve: Curve
    minimum: int
    limit: int
    limited_by: Why
    given_up: Why | None
    held: dict[int, int]
    draining: dict[int, int]
    size: int
    stays: int
    lives: int
    cooling: bool
    protected: bool
    patient: bool
    reserved: bool
    needed: float
    resize_log: float
    yields: bool = False
    stop: Why | None = None
    waits: NoRoom | None = None
    grants: list[Grant] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    entitled: int = 0
    placed: int = 0
    lost: bool = False

    @property
    def running(self) -> bool:
        return self.size > 0

    @property
    def busy(self) -> bool:
        """Some of its own workers are still leaving: it goes neither up nor down before they are gone."""
        return bool(self.draining)

    @property
    def has_minimum(self) -> bool:
        return self.entitled >= self.minimum

    @property
    def preemption_loses(self) -> float:
        """Device-seconds of work."""
        return (self.state.unsaved_s + self.state.resize_s) * self.size * self.devices
