"""The rights of roles: one table and one function."""

from typing import Literal, TypeAlias

import msgspec

from elastane.cluster.nouns.tokens import Role, Token

EVERY_TEAM = "*"

Action: TypeAlias = Literal[
    "job.read",
    "job.submit",
    "job.change",
    "usage.read",
    "documents.read",
    "documents.write",
    "engines.read",
    "config.read",
    "nodes.read",
    "nodes.write",
    "events.read",
    "tokens.read",
    "tokens.write",
    "audit.read",
    "reports.write",
    "claims.read",
    "claims.write",
    "metrics.read",
    "notifications.read",
    "notifications.write",
    "notifications.anywhere",
]

DEEDS: dict[Action, str] = {
    "job.read": "read jobs",
    "job.submit": "submit jobs",
    "job.change": "change jobs",
    "usage.read": "read usage",
    "documents.read": "read declarations",
    "documents.write": "change declarations",
    "engines.read": "read engines",
    "config.read": "read the whole configuration",
    "nodes.read": "read nodes",
    "nodes.write": "change nodes",
    "events.read": "read events",
    "tokens.read": "read tokens",
    "tokens.write": "make or revoke tokens",
    "audit.read": "read the audit log",
    "reports.write": "send reports",
    "claims.read": "read claim lists",
    "claims.write": "change claim lists",
    "metrics.read": "read metrics",
    "notifications.read": "read notification targets",
    "notifications.write": "change notification targets",
    "notifications.anywhere": "add a notification target with a host of their choice",
}
"""The actions in words, for messages of refusals."""

READS: frozenset[Action] = frozenset(
    {"job.read", "usage.read", "documents.read", "events.read", "claims.read"}
)
CHANGES: frozenset[Action] = frozenset({"job.submit", "job.change", "claims.write"})
OF_ONE_USER: frozenset[Action] = frozenset({"job.change", "claims.write"})
"""A submitter does these only to things of its own user."""
IN_TEAM: dict[Role, frozenset[Action]] = {
    "viewer": READS,
    "submitter": READS | CHANGES,
    "team-admin": READS
    | CHANGES
    | {"tokens.read", "tokens.write", "audit.read", "notifications.read", "notifications.write"},
    "operator": frozenset(),
    "reporter": frozenset(),
    "scraper": frozenset(),
}
"""The actions of a role in its team."""

EVERYWHERE: dict[Role, frozenset[Action]] = {
    "viewer": frozenset({"documents.read"}),
    "submitter": frozenset({"documents.read"}),
    "team-admin": frozenset({"documents.read"}),
    "operator": READS
    | CHANGES
    | {
        "documents.write",
        "engines.read",
        "config.read",
        "nodes.read",
        "nodes.write",
        "tokens.read",
        "tokens.write",
        "audit.read",
        "reports.write",
        "metrics.read",
        "notifications.read",
        "notifications.write",
        "notifications.anywhere",
    },
    "reporter": frozenset({"reports.write"}),
    "scraper": frozenset({"metrics.read"}),
}
"""The actions of a role on things of no team, such as pools. For an operator: on everything."""

OPERATORS, ADMINS = "an operator", "an admin of your team or an operator"
"""People to ask for an action that needs more rights."""

GIVEN_BY_TEAM_ADMINS: frozenset[Role] = frozenset({"viewer", "submitter", "team-admin"})


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a token in a role, which counts in a team; ``*``: in every one; empty: it is of no team."""

    token: str
    user: str
    role: Role
    team: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The target of an action.

    Args:
        name: in words: ``job train``.
        team: owner; empty: the cluster.
        user: owner; empty: the whole team. For a new token, the user of the token.
        role: of a token that is made or revoked; None: the target is something else.
        hidden: its existence is shown only if the action is allowed.
    """

    name: str
    team: str = ""
    user: str = ""
    role: Role | None = None
    hidden: bool = False


class Allowed(msgspec.Struct, frozen=True):
    pass


class Denied(msgspec.Struct, frozen=True):
    """Not allowed.

    Args:
        visible: the sender may see the target; otherwise the answer is that it does not exist.
        ask: people to ask for it; empty: there are none, or the sender must not learn of them.
    """

    reason: str
    visible: bool
    ask: str = ""


def read_principal(token: Token) -> Principal:
    return Principal(token=token.id, user=token.user, role=token.role, team=token.team)


def authorize(principal: Principal, action: Action, target: Target) -> Allowed | Denied:
    """Decide whether a principal may do this. All rights are decided here.

    `EVERYWHERE` holds for things of no team, `IN_TEAM` for things of a team, and an operator may do
    everything. A new token never has more rights than the token that makes it. Only an operator makes a
    token in another user's name.
    """
    verdict = _authorize(principal, action, target)
    if target.hidden and isinstance(verdict, Denied):
        return msgspec.structs.replace(verdict, visible=False)
    return verdict


def is_service_user(user: str, team: str) -> bool:
    """Return whether a user is a service user of this team, such as ``vision+nightly``."""
    return team not in {"", EVERY_TEAM} and user.startswith(f"{team}+")


def _authorize(principal: Principal, action: Action, target: Target) -> Allowed | Denied:
    if principal.role == "operator":
        if action in EVERYWHERE["operator"]:
            return Allowed()
        return Denied(f"no role may {DEEDS[action]}", visible=True)
    if not target.team:
        if action in EVERYWHERE[principal.role]:
            return Allowed()
        return Denied(_explain_cluster_denial(principal.role, action), visible=True, ask=OPERATORS)
    if not has_role_in(principal, target.team):
        return Denied(f"{target.name} belongs to another team", visible=False)
    if action not in IN_TEAM[principal.role]:
        return Denied(
            f"a {principal.role} of team {target.team} may not {DEEDS[action]}",
            visible=True,
            ask=ADMINS if action in IN_TEAM["team-admin"] else OPERATORS,
        )
    if action in OF_ONE_USER and principal.role == "submitter" and target.user != principal.user:
        return Denied(
            f"{target.name} belongs to {target.user}; only this user and an admin of team {target.team} may "
            "change it",
            visible=True,
            ask=ADMINS,
        )
    if action == "tokens.write" and target.role is not None and target.role not in GIVEN_BY_TEAM_ADMINS:
        return Denied(
            f"a {principal.role} of team {target.team} cannot give the role {target.role}",
            visible=True,
            ask=OPERATORS,
        )
    if action == "tokens.write" and not _may_make_token_for(principal, target):
        return Denied(
            f"a {principal.role} may make tokens for its own user, {principal.user}, and for service users "
            f"of the team, such as {target.team}+nightly; {target.user} is neither",
            visible=True,
            ask=OPERATORS,
        )
    return Allowed()


def _may_make_token_for(principal: Principal, target: Target) -> bool:
    """Return whether a team admin may make a token for this user. The audit log will have the user's name."""
    return target.user in {"", principal.user} or is_service_user(target.user, target.team)


def _explain_cluster_denial(role: Role, action: Action) -> str:
    """Explain why this role may not do this with things of no team."""
    if role == "reporter":
        return f"a reporter may not {DEEDS[action]}: its token may only report"
    if role == "scraper":
        return f"a scraper may not {DEEDS[action]}: its token may only read metrics"
    others = [f"a {role}" for role in EVERYWHERE if role != "operator" and action in EVERYWHERE[role]]
    return f"only {' or '.join(['an operator', *others])} may {DEEDS[action]}"


def has_role_in(principal: Principal, team: str) -> bool:
    """Return whether the principal's role counts in this team."""
    return bool(team) and principal.team in {team, EVERY_TEAM}


def list_visible_teams(principal: Principal) -> tuple[str, ...] | None:
    """Return the teams that the principal may list things of; None: all teams."""
    if principal.role == "operator" or principal.team == EVERY_TEAM:
        return None
    return (principal.team,) if principal.team else ()
