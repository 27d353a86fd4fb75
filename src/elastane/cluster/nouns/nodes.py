"""The nodes of a cluster: its machines."""

from typing import Literal, TypeAlias

from elastane.common.bodies import AnswerBody

NodeWanted: TypeAlias = Literal["use", "drain", "failed"]


UNSEEN_S = 300.0
"""A node that no engine has seen for this long counts as gone; engines report once a minute."""


class Node(AnswerBody, frozen=True, kw_only=True):
    """A machine.

    Args:
        name: unique.
        pool: the pool that its devices belong to.
        devices: how many.
        wanted: ``use`` it, ``drain`` it (jobs leave), or treat it as ``failed`` (its workers are gone
            already).
        why: the reason given for a drain or a failure.
        gone_at_s: when it will be taken away; None: no notice was given.
        heard_s: when its engine last saw it.
        version: grows with every change; its ``ETag``.
    """

    name: str
    pool: str
    devices: int
    wanted: NodeWanted
    why: str
    gone_at_s: float | None
    heard_s: float
    version: int
