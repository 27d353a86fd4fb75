"""Tokens and their roles."""

from typing import Literal, TypeAlias, get_args

from elastane.common.bodies import AnswerBody, RequestBody

Role: TypeAlias = Literal["viewer", "submitter", "team-admin", "operator", "reporter", "scraper"]
ROLES: dict[Role, str] = {
    "viewer": "sees the jobs, logs, usage and events of its team",
    "submitter": "as a viewer; also submits jobs, and changes its own",
    "team-admin": "as a submitter; also changes all jobs and tokens of the team",
    "operator": "does everything in the whole cluster",
    "reporter": "only reports capacity, prices, notices and metrics",
    "scraper": "only reads the metrics of the cluster, for Prometheus",
}
"""The roles in short, for help. ``controller/access/roles.py`` has the rights, docs/api.md explains them."""

assert tuple(ROLES) == get_args(Role)


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
        role: one of `ROLES`.
        team: the team in which the role holds; ``*``: every team; empty for roles of no team.
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
