"""The inputs of `elastane.run.scripts.worlds.decisions.advance`, and the actions that it decides on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elastane.run.nouns.control import AskDrain, AskEvict, AskResize, AskStop
from elastane.run.nouns.membership import WorkerId
from elastane.run.scripts.worlds.state import LocalRank, Over

# -- inputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The fork server has imported the modules of the script."""


@dataclass(frozen=True, slots=True)
class ServerLost:
    """The fork server has died, and every process that it had forked has ended."""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A process has ended; ``code`` is negative for a signal."""

    generation: int
    rank: LocalRank
    code: int


@dataclass(frozen=True, slots=True)
class OutputSeen:
    """Some process of a world has printed something."""

    generation: int


@dataclass(frozen=True, slots=True)
class WorldGone:
    """No process of a world is left, nor any process that those have started."""

    generation: int


WorldRequest: TypeAlias = AskResize | AskDrain | AskStop | AskEvict
"""Requests that change a run. `AskEvict` ends at once what was announced, or a world that must change."""
WorldInput: TypeAlias = ServerReady | ServerLost | RankExited | OutputSeen | WorldGone | WorldRequest

# -- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorld:
    """Start all processes of a new world; ``workers`` are in the order of their ranks."""

    generation: int
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class AnnounceStop:
    """Send SIGTERM to every process of the world."""


@dataclass(frozen=True, slots=True)
class KillWorld:
    """Send SIGKILL to every process of the world, and to those that they have started."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """Write an event of the run."""

    kind: str
    who: str = ""
    why: str = ""
    workers: tuple[WorkerId, ...] = ()
    detail: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndRun:
    """End the run with this outcome."""

    over: Over


WorldAction: TypeAlias = StartWorld | AnnounceStop | KillWorld | RecordChange | EndRun
