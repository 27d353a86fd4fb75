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
    """A request for a new token.

    Args:
        user: the user that it belongs to.
        role: the user's rights.
        team: the team in which the role holds; ``*``: every team; empty for operators and reporters.
        note: its purpose.
        valid_s: seconds until it expires; None: it is valid until it is revoked.
    """

    user: str
    role: Role
    team: str = ""
    note: str = ""
    valid_s: float | None = None


class MadeToken(AnswerBody, frozen=True, kw_only=True):
    """A new token with its secret, which is shown only once."""

    secret: str
    token: Token
