"""Nodes: the machines of a cluster."""

from typing import Literal, TypeAlias

from elastane.api.bodies import AnswerBody

NodeWanted: TypeAlias = Literal["use", "drain", "failed"]


UNSEEN_S = 300.0
"""A node that no engine has seen for so long is not there; engines say once a minute what they see."""


class Node(AnswerBody, frozen=True, kw_only=True):
    """A machine.

    Args:
        name: unique.
        pool: its devices belong to.
        devices: how many.
        wanted: ``use`` it, ``drain`` it (jobs leave), or take it as ``failed`` (they are gone already).
        why: somebody drained it.
        gone_at_s: when it will be taken away; None: nobody said so.
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
