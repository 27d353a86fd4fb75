"""``elastane login``: choose the cluster that the commands use."""

import getpass
import sys
from http import HTTPStatus
from typing import Annotated

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.options import argument, flag, option
from elastane.cluster.client.context import EVERY_TEAM, connect, find_own_team
from elastane.cluster.nouns.rest import Me
from elastane.common.connections.controller_context import Context, check_url, save_context
from elastane.common.errors import BadInput
from elastane.common.home import find_home
from elastane.common.local_paths import make_absolute


def login(
    url: Annotated[str, argument("URL", "Address of the controller: https://cluster:7425")],
    *,
    token_stdin: Annotated[
        bool, flag("Read the token from stdin in place of a prompt.", "--token-stdin")
    ] = False,
    ca: Annotated[str, option("FILE", "Certificate file to trust.", "--ca")] = "",
    as_json: AsJson = False,
) -> None:
    """Save the address of a cluster and your token for it.

    All commands then use that cluster. The token cannot be an argument, because
    other users of the machine can read arguments. It is saved in
    $ELASTANE_HOME/cluster.json, which only you can read.

      $ elastane login https://cluster:7425 --token-stdin < token

    With --json, an object with the keys url, user, role and team.
    """
    check_url(url)
    token = sys.stdin.readline().strip() if token_stdin else prompt_token()
    if not token:
        raise BadInput("no token was given", do="ask an operator for a token: elastane token create")
    certificate = make_absolute(ca or "")
    context = Context(url=url.rstrip("/"), token=token, certificate=certificate)
    me = check_token(context)
    save_context(Context(url=context.url, token=token, certificate=certificate, team=find_own_team(me)))
    if as_json:
        print_json({"url": context.url, "user": me.user, "role": me.role, "team": me.team})
        return
    open_console().print(
        f"{format_user(me)} at {context.url}; saved in {find_home() / 'cluster.json'}", markup=False
    )


def check_token(context: Context) -> Me:
    """Ask the controller for the user, role and team of a token."""
    with connect(context) as cluster:
        from elastane.common.connections.controller_connection import RequestRefused

        try:
            return cluster.me()
        except RequestRefused as error:
            if error.problem.status != HTTPStatus.UNAUTHORIZED:
                raise
            raise BadInput(
                f"{context.url} does not know this token",
                means="it has expired, was revoked, or belongs to another cluster; nothing was saved",
                do="ask an operator for a token: elastane token create",
            ) from error


def format_user(me: Me) -> str:
    team = "in every team" if me.team == EVERY_TEAM else f"in team {me.team}" if me.team else ""
    return " ".join(filter(None, (f"logged in as {me.user}, {me.role}", team)))


def prompt_token() -> str:
    if not sys.stdin.isatty():
        raise BadInput("cannot prompt for the token without a terminal", do="give --token-stdin")
    return getpass.getpass("token: ").strip()
