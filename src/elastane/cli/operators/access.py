"""``elastane token`` and ``audit``: the tokens of a controller, and the actions of their users."""

import time
from itertools import islice
from typing import Annotated

from elastane.cli.command import AsJson, make_group, open_console, print_json, print_outcome
from elastane.cli.operators.tables import print_rows
from elastane.cli.option_values import read_duration_s
from elastane.cli.options import argument, flag, option
from elastane.cli.teams import warn_undeclared_team
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.history import AuditLine
from elastane.cluster.nouns.tokens import ROLES, NewToken, Role, Token


def create_token(
    *,
    user: Annotated[str, option("USER", "User that the token acts for.")],
    role: Annotated[Role, flag("Role of the token; see elastane token --help.")],
    team: Annotated[
        str,
        option(
            "TEAM",
            "Team in which the role holds; '*': every team. Not for operators, reporters and scrapers.",
        ),
    ] = "",
    note: Annotated[str, option("TEXT", "A note, shown in the list of tokens.")] = "",
    valid: Annotated[
        str,
        option("DURATION", "The token is valid for this long, such as 30d. Default: until it is revoked."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, which is shown only once."""
    valid_s = read_duration_s("--valid", valid) if valid else None
    with connect() as cluster:
        made = cluster.tokens.make(NewToken(user=user, role=role, team=team, note=note, valid_s=valid_s))
        strange = warn_undeclared_team(team, cluster.documents.list(Team))
    if strange:
        open_console(as_json=True).print(f"note: {strange}", markup=False)
    if as_json:
        print_json(made)
        return
    console = open_console()
    token = made.token
    until = f", until {format_minute(token.expires_s)}" if token.expires_s is not None else ""
    console.print(f"token   {token.id}: {_format_role(token)}, for {token.user}{until}", markup=False)
    if not made.secret:
        console.print(
            f"secret  lost with an earlier answer; elastane token revoke {token.id}, then create another",
            markup=False,
        )
        return
    console.print(f"secret  {made.secret}", markup=False)
    console.print(f"        shown only once; {token.user} sets ELASTANE_TOKEN to it", markup=False)


def show_tokens(
    every: Annotated[
        bool, flag("Also list tokens that have expired or were revoked.", "--all", "-a")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List tokens, without their secrets."""
    with connect() as cluster:
        found = cluster.tokens.list()
    now_s = time.time()
    shown = [token for token in found if every or find_token_state(token, now_s) == "valid"]
    print_rows(
        shown,
        {
            "token": lambda token: token.id,
            "user": lambda token: token.user,
            "role": lambda token: token.role,
            "team": lambda token: token.team,
            "created": lambda token: format_minute(token.created_s),
            "expires": lambda token: format_minute(token.expires_s),
            "state": lambda token: find_token_state(token, now_s),
            "note": lambda token: token.note,
        },
        as_json=as_json,
    )


def revoke(
    token: Annotated[str, argument("TOKEN", "Id of the token: tok-...")], as_json: AsJson = False
) -> None:
    """Revoke TOKEN. The controller refuses it from now on."""
    with connect() as cluster:
        cluster.tokens.revoke(token)
    print_outcome({"revoked": token}, f"{token} revoked", as_json=as_json)


def find_token_state(token: Token, now_s: float) -> str:
    if token.revoked_s is not None:
        return "revoked"
    return "expired" if token.expires_s is not None and token.expires_s <= now_s else "valid"


def _format_role(token: Token) -> str:
    if not token.team:
        return token.role
    return f"{token.role} in every team" if token.team == "*" else f"{token.role} in team {token.team}"


def format_roles() -> str:
    """Return the roles and what they allow, one per line of the help."""
    width = max(map(len, ROLES)) + 2
    return "\n".join(f"  [bold]{role:<{width}}[/bold]{words}" for role, words in ROLES.items())


token = make_group(
    "token",
    f"""
Manage tokens, which give their users the right to use the controller.

[bold]Roles[/bold]

{format_roles()}

A role does not limit what the script of a job does: by default jobs run as
the user of the controller and can read the operator's token. To run them as
other users, see --run-as in elastane up --help.

  $ elastane token create --user ada --role submitter --team vision --valid 30d
""",
    {"create": create_token, "list": show_tokens, "revoke": revoke},
)


def audit(
    limit: Annotated[int, option("N", "At most N lines.", "--limit", "-n", min=1)] = 50,
    refused: Annotated[bool, flag("Only actions that were refused.", "--refused")] = False,
    as_json: AsJson = False,
) -> None:
    """List the actions of users, allowed and refused, newest first.

    A team-admin sees the actions in their team, an operator sees all.

    With --json, one object per line.
    """
    with connect() as cluster:
        found = list(islice((line for line in cluster.audit() if not (refused and line.allowed)), limit))
    if as_json:
        for line in found:
            print_json(line)
        return
    print_rows(
        found,
        {
            "time": lambda line: format_minute(line.time_s),
            "user": lambda line: line.user,
            "team": lambda line: line.team,
            "action": lambda line: line.action,
            "result": _format_result,
            "target": lambda line: f"{line.target}: {line.detail}" if line.detail else line.target,
        },
        as_json=False,
    )


def _format_result(line: AuditLine) -> str:
    return "" if line.allowed else "refused" + (f" {line.times} times" if line.times > 1 else "")
