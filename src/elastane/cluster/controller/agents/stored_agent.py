"""An agent, and the attempt that agents have begun, as the controller stores them. Pure."""

from typing import Literal, TypeAlias

import msgspec

AgentPhase: TypeAlias = Literal["asked", "pending", "running", "arrived", "leaving", "gone"]
"""``asked``: its row is written, and its engine has not shown it yet; ``arrived``: it has spoken to the
controller; ``gone``: it has ended. The others are as in `elastane.cluster.nouns.agents`."""


class StoredAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that the controller has asked an engine for.

    Args:
        number: grows with every agent of the cluster, and is never used again.
        workers: the most workers on its machine.
        devices: how many it holds, for all its workers together.
        key: secret of its ticket.
        gang: number of the first agent of its gang; 0: it is in none. See `elastane.cluster.nouns.agents`.
        is_replaceable: it is gone, and another agent may take its place in its gang.
        process: the word of the process that has arrived with its ticket; empty: none has.
        shape: of the gang: a digest of all that its agents are made of, see `hash_shape` in ``gangs.py``.
        why: a sentence: why it waits, or how it ended; empty: nothing is known.
        exit_code: None: it has not ended, or its end was not seen.
        attempt: of its job in which it takes part; 0: it has not arrived.
        asked_s: when its row was written, in seconds since 1970.
        leave_by_s: it should leave, and be gone by then; None: the job wants it.
        ended_s: when it was found gone.
    """

    number: int = 0
    job: str
    engine: str
    pool: str
    workers: int
    devices: int
    key: bytes
    gang: int = 0
    gang_size: int = 0
    shape: str = ""
    is_replaceable: bool = False
    process: str = ""
    state: AgentPhase = "asked"
    node: str = ""
    why: str = ""
    exit_code: int | None = None
    attempt: int = 0
    asked_s: float
    started_s: float | None = None
    arrived_s: float | None = None
    leave_by_s: float | None = None
    ended_s: float | None = None

    @property
    def is_gone(self) -> bool:
        return self.state == "gone"

    @property
    def is_wanted(self) -> bool:
        return self.leave_by_s is None and not self.is_gone

    @property
    def has_arrived(self) -> bool:
        """Whether it may have processes of the job."""
        return self.arrived_s is not None and not self.is_gone


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt of a job that agents have begun.

    Args:
        beginner: number of the agent that has begun it.
        answers: its coordinator has answered, so that others can join.
    """

    job: str
    attempt: int
    beginner: int
    answers: bool = False


def format_agent_id(cluster: str, number: int) -> str:
    """Return the id of an agent; see `elastane.cluster.nouns.agents.AGENT_ID`."""
    return f"{cluster}-{number}"
