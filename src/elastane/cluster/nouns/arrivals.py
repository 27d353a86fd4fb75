"""What an agent and the controller say to each other: an agent arrives, gets an instruction, and departs."""

from typing import Annotated, TypeAlias

import msgspec

from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.bodies import AnswerBody, RequestBody
from elastane.run.nouns.membership import SiteName

ProcessWord: TypeAlias = Annotated[str, msgspec.Meta(max_length=100)]
"""A word that the process of an agent has drawn; it tells it from others with the same ticket."""


class Arrival(RequestBody, frozen=True, kw_only=True):
    """An agent has begun on a machine and asks what to do; after `AskAgain`, and after a lost answer, again.

    Args:
        host: the name of the machine, for people.
        version: of Elastane there.
        process: names the process of the agent, another one each time that it begins.
    """

    host: Annotated[str, msgspec.Meta(max_length=255)]
    version: Annotated[str, msgspec.Meta(max_length=100)]
    process: ProcessWord


class Begin(AnswerBody, frozen=True, kw_only=True, tag="begin"):
    """Begin an attempt of the job; other agents join it.

    Args:
        run_dir: absolute path of the run directory, which all machines of the job share.
        workers: the most workers on this machine.
        limits: fewest and most workers of the job.
        submitted_s: when the job was submitted, in seconds since 1970; a run that began before is another's.
        is_shared: otherwise this machine uses a directory of its own, and the controller keeps the records.
        sites: of this machine, if the job has data at several sites.
    """

    run_dir: str
    attempt: int
    workers: int
    limits: tuple[int, int]
    spec: JobSpec
    submitted_s: float
    is_shared: bool = True
    sites: tuple[SiteName, ...] = ()


class Join(AnswerBody, frozen=True, kw_only=True, tag="join"):
    """Join the attempt that another agent has begun; see `Begin` for the fields."""

    run_dir: str
    attempt: int
    workers: int
    spec: JobSpec
    is_shared: bool = True
    sites: tuple[SiteName, ...] = ()


class AskAgain(AnswerBody, frozen=True, kw_only=True, tag="ask-again"):
    """Ask again after ``seconds``, because ``why``."""

    seconds: float
    why: str


class NotWanted(AnswerBody, frozen=True, kw_only=True, tag="not-wanted"):
    """End without an error, because ``why``."""

    why: str


Instruction: TypeAlias = Begin | Join | AskAgain | NotWanted


class AgentDeparture(RequestBody, frozen=True, kw_only=True):
    """An agent ends.

    Args:
        code: its exit code; 0: it has left the run or the run has ended well.
        why: a sentence.
        process: as in `Arrival`.
    """

    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    why: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    process: ProcessWord
