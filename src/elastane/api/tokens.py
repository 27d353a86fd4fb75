"""Tokens and their roles."""

from typing import Literal, TypeAlias

from elastane.api.bodies import AnswerBody, RequestBody

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


class NewToken(RequestBody, frozen=True, kw_only=True):
    """A token to be made.

    Args:
        user: whom it speaks for.
        role: what it may do.
        team: in which team; ``*``: in every one; empty for operators and reporters.
        note: what it is for.
        valid_s: seconds until it ends; None: when it is revoked.
    """

    user: str
    role: Role
    team: str = ""
    note: str = ""
    valid_s: float | None = None


class MadeToken(AnswerBody, frozen=True, kw_only=True):
    """A new token with its secret, which is told only this once."""

    secret: str
    token: Token
