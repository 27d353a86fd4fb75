"""Membership: a generation is a numbered set of members.

Shares of virtual ranks and ownership of blocks are pure functions of it (`elastane.protocol`).
"""

from typing import TypeAlias

import msgspec

WorkerId: TypeAlias = int


class Member(msgspec.Struct, frozen=True):
    """A worker and where its peers reach it.

    Args:
        worker: its number; never used twice in a run.
        host: address its mesh listens on; loopback unless told otherwise.
        port: its port.
        speed: relative, 1.0 is usual; virtual ranks are dealt in proportion.
    """

    worker: WorkerId
    host: str
    port: int
    speed: float = 1.0


class Generation(msgspec.Struct, frozen=True):
    """A numbered membership.

    Args:
        number: grows with every proposal; messages of older generations are refused.
        term: of the coordinator that proposed it; a lower term than the newest heard is refused.
        members: in the order of their virtual ranks: the worker longest in the run first.
        planned: True: begins at a step boundary, once every member of the old one voted ready for it.
            False: begins at once, because a member died.
        why: in words, for events.
        leaving: members of the one before that leave with this one; they hand over what only they hold.
    """

    number: int
    term: int
    members: tuple[Member, ...]
    planned: bool
    why: str = ""
    leaving: tuple[Member, ...] = ()

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(member.worker for member in self.members)

    def __contains__(self, worker: object) -> bool:
        return worker in self.workers
