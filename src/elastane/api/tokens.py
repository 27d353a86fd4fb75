"""Tokens and their roles."""

from typing import Literal, TypeAlias

from elastane.api.bodies import AnswerBody

Role: TypeAlias = Literal["viewer", "submitter", "team-admin", "operator", "reporter"]
"""The first three are roles in a team; an operator has the cluster; a reporter may only report."""


class Token(AnswerBody, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: str
    user: str
    role: Role
    team: str
    note: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None
