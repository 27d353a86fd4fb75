"""Tokens: make, list, revoke. A secret is shown once, when it is made."""

import re
from http import HTTPStatus
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import EVERY_TEAM, Target
from elastane.cluster.controller.rest import team_limits
from elastane.cluster.controller.rest.bodies import build_reply, parse_body, respond
from elastane.cluster.controller.rest.caller import CallerParameter, ChangerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import TOKENS, USER
from elastane.cluster.controller.rest.problems import make_missing_error
from elastane.cluster.controller.store import tokens
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.controller.store.tokens import compute_digest, generate_secret, generate_token_id
from elastane.cluster.nouns.tokens import MadeToken, NewToken, Role, Token
from elastane.common.bodies import Page
from elastane.common.errors import BadField
from elastane.common.field_checks import check_name, check_remark

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
OF_THE_CLUSTER: tuple[Role, ...] = ("operator", "reporter", "scraper")
LONGEST_S = 10 * 366 * 24 * 3600.0


@router.post("", **describe_route(MadeToken, takes=NewToken, status=HTTPStatus.CREATED))
def post_token(caller: ChangerParameter, new: Annotated[NewToken, parse_body(NewToken)]) -> Response:
    """Make a token. Only this answer has its secret; the answer to a repeated request lacks it."""
    _check_new_token(new)
    secret = generate_secret()
    what = f"team {new.team}" if new.team else f"token of {new.user}"
    target = Target(name=what, team=new.team, user=new.user, role=new.role)
    made: list[Token] = []

    def do(tx: Connection) -> Reply:
        caller.require_right("tokens.write", target)
        team_limits.check_tokens(tx, new.team, caller.now_s)
        token = tokens.insert_token(tx, generate_token_id(), compute_digest(secret), new, caller.now_s)
        made.append(token)
        # The reply that is stored for repeated requests must not hold the secret.
        return build_reply(MadeToken(secret="", token=token), status=HTTPStatus.CREATED)

    answer = caller.change("token.make", f"{new.role} token of {new.user}", do)
    if made:
        answer.body = msgspec.json.encode(MadeToken(secret=secret, token=made[0]))
        answer.headers["content-length"] = str(len(answer.body))
    answer.headers["cache-control"] = "no-store"
    return answer


@router.get("", **describe_route(Page[Token]))
def get_tokens(caller: CallerParameter) -> Response:
    """List the tokens of your team without their secrets. An operator gets all tokens."""
    caller.require_right("tokens.read", Target(name="tokens", team=caller.principal.team))
    with caller.begin_read() as tx:
        found = tokens.list_tokens(tx, caller.teams, of_none=caller.of_the_cluster)
    return respond(Page(items=found))


@router.delete("/{token}", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def delete_token(caller: ChangerParameter, token: Annotated[str, Path(pattern=TOKENS)]) -> Response:
    """Revoke a token at once."""
    name = f"token {token}"

    def do(tx: Connection) -> Reply:
        # First refuse callers that may revoke no token at all, without looking this one up.
        caller.require_right("tokens.write", Target(name=name, team=caller.principal.team))
        found = tokens.find_token(tx, token)
        if found is None:
            raise make_missing_error(name)
        caller.require_right("tokens.write", Target(name=name, team=found.team, role=found.role, hidden=True))
        tokens.revoke_token(tx, token, caller.now_s)
        return Reply(status=HTTPStatus.NO_CONTENT)

    return caller.change("token.revoke", name, do)


def _check_new_token(new: NewToken) -> None:
    if not re.fullmatch(USER, new.user):
        raise BadField(
            "user",
            f"{new.user!r} is not a valid user name",
            do="write at most 100 letters, digits, '.', '_', '@', '+' and '-'",
        )
    check_remark("note", new.note)
    if new.role in OF_THE_CLUSTER and new.team:
        raise BadField("team", f"the role {new.role} belongs to no team", do="leave the team out")
    if new.role not in OF_THE_CLUSTER and new.team != EVERY_TEAM:
        if not new.team:
            raise BadField(
                "team", f"the role {new.role} needs a team", do=f"name one, or {EVERY_TEAM} for all"
            )
        check_name("team", new.team)
    if new.valid_s is not None and not 0 < new.valid_s <= LONGEST_S:
        raise BadField(
            "validS",
            f"{new.valid_s:g} is not between 0 and {LONGEST_S:g}",
            do="write seconds in this range, or leave it out",
        )
