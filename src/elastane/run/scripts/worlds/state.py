"""The state of a run under the contract of torchrun, and the rules that it follows.

A *world* is the set of processes that train together; its generation numbers it. Its number of workers never
changes: a resize or a death ends the world, and the next one starts once no process of it is left.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.records import RunEnd

StopCause: TypeAlias = Literal["resize", "death", "failure", "stop"]
"""Why a world stops. After ``resize`` and ``death`` another one follows, after ``failure`` perhaps."""


class LocalRank(NamedTuple):
    """One process of a world: its worker, and its number in that worker."""

    worker: WorkerId
    local: int


class RankFailure(NamedTuple):
    """The first process of a world that failed, and its exit code, negative for a signal."""

    generation: int
    rank: LocalRank
    code: int


@dataclass(frozen=True, slots=True)
class WorldRules:
    """The rules of a run.

    Args:
        processes: of each worker.
        grace_s: seconds between the announcement of a stop and its enforcement.
        max_restarts: restarts after failures of the script.
        stall_s: seconds without output after which the script has failed; None: never.
    """

    processes: int = 1
    grace_s: float = 30.0
    max_restarts: int = 0
    stall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """No process runs. The next world starts at ``not_before_s`` or later, once the fork server is ready."""

    not_before_s: float = 0.0
    why: str = "the fork server imports the modules of the script"


@dataclass(frozen=True, slots=True)
class Running:
    """A world trains.

    Args:
        began_s: when its processes were requested.
        living: the processes that have not ended.
        heard_s: when one of them was last known to have printed something; at first, when the world began.
        finishing_s: when the first process ended with exit code 0; None: none has.
        reported: an event has said that the others take long to follow.
    """

    began_s: float
    living: frozenset[LocalRank]
    heard_s: float
    finishing_s: float | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """A world ends; its processes have got SIGTERM, unless they had ended by themselves.

    Args:
        cause: the reason, for the next decision.
        why: the reason in words.
        began_s: when the stop was announced.
        deadline_s: when the remaining processes get SIGKILL.
        living: the processes that have not ended.
        lived_s: the time from the start of the world to the announcement.
        killed: the deadline has passed.
    """

    cause: StopCause
    why: str
    began_s: float
    deadline_s: float
    living: frozenset[LocalRank]
    lived_s: float
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """The run has ended and no process of it is left.

    Args:
        kind: of the last event: ``run.finished``, ``run.failed`` or ``run.stopped``.
        why: the reason in words.
        failure: the failure that explains it; None: there is none.
    """

    kind: RunEnd
    why: str
    failure: RankFailure | None = None


Phase: TypeAlias = Waiting | Running | Stopping | Over


@dataclass(frozen=True, slots=True)
class World:
    """The newest world of a run, and the wishes for the next one.

    Args:
        rules: of the run.
        target: number of workers that the next world should have.
        phase: of the newest world.
        workers: of the newest world, in the order of their ranks: the oldest worker comes first.
        next_worker: the number of the next new worker; no number is used twice.
        leaving: workers that the next world must not contain.
        by_hand: a user has set the target.
        generation: the number of the newest world; 0 before the first.
        ready: the fork server accepts requests.
        failures: failures of the script so far.
        quick_deaths: worlds in a row that were killed from outside shortly after their start.
        failure: the newest failure of the script.
        stop_why: why the run must end; empty: it continues.
        stop_who: requested that.
        stopped_s: when the stop of the last world was announced; None once the next one has started.
    """

    rules: WorldRules
    target: int
    phase: Phase = Waiting()
    workers: tuple[WorkerId, ...] = ()
    next_worker: WorkerId = 0
    leaving: frozenset[WorkerId] = frozenset()
    by_hand: bool = False
    generation: int = 0
    ready: bool = False
    failures: int = 0
    quick_deaths: int = 0
    failure: RankFailure | None = None
    stop_why: str = ""
    stop_who: str = ""
    stopped_s: float | None = None

    @property
    def living(self) -> frozenset[LocalRank]:
        """The processes of the newest world that have not ended."""
        return self.phase.living if isinstance(self.phase, Running | Stopping) else frozenset()

    @property
    def ranks(self) -> tuple[LocalRank, ...]:
        """All processes of the newest world in the order of their ranks."""
        return tuple(
            LocalRank(worker, local) for worker in self.workers for local in range(self.rules.processes)
        )
