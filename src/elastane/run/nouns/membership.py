"""The members of a run; a generation is a numbered set of them.

Shares of virtual ranks and ownership of blocks are pure functions of a generation (`elastane.run.protocol`).
"""

from functools import cached_property
from typing import Annotated, TypeAlias

import msgspec

WorkerId: TypeAlias = int

NUMBERS_AT_ONCE = 100
"""The workers' numbers that a node gets at once: workers 200 to 299 are on the third node of a young run."""

FIRST_NODE_WORD = "first"
"""The word for the machine without a name in commands."""
NODE_NAME = rf"(?!(?:{FIRST_NODE_WORD}|[0-9]+)\Z)[a-z0-9]([a-z0-9.-]{{0,61}}[a-z0-9])?"
"""The pattern of the name that a machine gives itself. Commands take a number for a worker."""
NodeName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^({NODE_NAME})?\Z")]
"""The name of a machine in a run, of at most 63 characters; empty: the machine on which the run began."""


SITE_NAME = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
SiteName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{SITE_NAME}\Z")]
"""The name of a site: a place with data of its own."""
MOST_SITES = 64
"""The most sites of a machine, and of a ticket."""

MOST_NODES = 1024
"""The machines of a run whose addresses a client gets, and the most that ``--hosts`` names."""
LARGEST_NODE_BYTES = 384
"""The size limit of a `NodeAddress` as JSON, with a name of 63 characters and a host of 253."""

Host: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.:-]{0,253}\Z")]
Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class NodeAddress(msgspec.Struct, frozen=True):
    """A machine of a run, and where its agent answers the agents of the others.

    Args:
        host: numeric address; empty: the run stays on this machine.
        port: TCP port; 0 without a host.
    """

    name: NodeName
    host: Host = ""
    port: Port = 0


class Member(msgspec.Struct, frozen=True):
    """A worker and the address at which its peers reach it.

    Args:
        worker: its number, never used twice in a run.
        host: address on which its mesh listens; loopback by default.
        port: port on which its mesh listens.
        speed: relative to the usual 1.0; virtual ranks are assigned in proportion.
        since: the number of the first generation that was proposed with it; 0: none was yet.
        sites: those of which it may read the data.
    """

    worker: WorkerId
    host: str
    port: int
    speed: float = 1.0
    node: NodeName = ""
    since: int = 0
    sites: tuple[SiteName, ...] = ()


class GenerationId(msgspec.Struct, frozen=True):
    """What identifies a generation in its run: a coordinator proposes no number twice."""

    term: int
    number: int


class Generation(msgspec.Struct, frozen=True, dict=True):
    """A numbered membership.

    Args:
        number: grows with every proposal; workers refuse messages of older generations.
        term: term of the coordinator that proposed it; workers refuse a term below the newest they know.
        members: in the order of their virtual ranks, one node after the other; the worker that has been in
            the run longest comes first.
        planned: True: it begins at a step boundary, once every member of the old generation has voted ready
            for it. False: it begins at once, because a member died.
        why: in words, for events.
        leaving: members of the previous generation that leave with this one; they hand over the state that
            only they hold.
        absent: the sites that its rounds leave out.
    """

    number: int
    term: int
    members: tuple[Member, ...]
    planned: bool
    why: str = ""
    leaving: tuple[Member, ...] = ()
    absent: tuple[SiteName, ...] = ()

    @property
    def id(self) -> GenerationId:
        return GenerationId(self.term, self.number)

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(member.worker for member in self.members)

    def __contains__(self, worker: object) -> bool:
        return worker in self.workers
