"""Claim lists of runs: claim a slot, read the held ones, delete a list; see `run.machines.claims`."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

import msgspec
from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.rest import team_limits
from elastane.cluster.controller.rest.bodies import build_reply, build_response, parse_body, respond
from elastane.cluster.controller.rest.caller import CallerParameter, ChangerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import After, AfterList, Limit, Name
from elastane.cluster.controller.rest.problems import Refusal, make_missing_error
from elastane.cluster.controller.store import claim_lists
from elastane.cluster.controller.store.claim_lists import StoredClaimList
from elastane.cluster.controller.store.replies import Reply
from elastane.common.bodies import Page
from elastane.run.machines.claims.place import Content
from elastane.run.machines.claims.records import Unreadable
from elastane.run.machines.claims.slots import MOST_SLOTS, KeptClaimList, NewSlot, SlotAnswer, SlotContent

router = APIRouter(prefix="/v1/claims", tags=["claims"])
PAGE_SLOTS = 64
"""The most slots of an answer, so that it has a few megabytes at most."""
RECORD_USE_S = 24 * 3600.0
"""A read is recorded as a use of the list after this time, so that few reads write."""


@router.get("", **describe_route(Page[KeptClaimList]))
def get_claim_lists(caller: CallerParameter, after: AfterList = "", limit: Limit = 100) -> Response:
    """List the claim lists of your team. An operator gets those of all teams."""
    caller.require_right("claims.read", Target(name="claim lists", team=caller.principal.team))
    with caller.begin_read() as tx:
        # One list more, to tell whether another page follows.
        found = claim_lists.list_claim_lists(tx, caller.teams, after=after, limit=limit + 1)
    items = tuple(
        KeptClaimList(
            team=claim_list.team,
            name=claim_list.run.removeprefix(f"{claim_list.team}/"),
            user=claim_list.user,
            content_bytes=claim_list.content_bytes,
            used_s=claim_list.used_s,
        )
        for claim_list in found[:limit]
    )
    return respond(Page(items=items, after=found[limit - 1].run if len(found) > limit else ""))


@router.get("/{team}/{run}", **describe_route(Page[SlotContent]))
def get_claims(caller: CallerParameter, team: Name, run: Name, after: After = None) -> Response:
    """List the held slots of a run's claim list, in order. A list without a claim is empty."""
    caller.require_right("claims.read", _describe_target(team, run))
    key, begin = f"{team}/{run}", min(after or 0, MOST_SLOTS)
    with caller.begin_read() as tx:
        known = claim_lists.find_claim_list(tx, key)
        # One slot more, to tell whether another page follows.
        found = claim_lists.list_claims(tx, key, begin + 1, PAGE_SLOTS + 1)
    if known is not None and caller.now_s - known.used_s > RECORD_USE_S:
        with caller.controller.store.begin_write() as tx:
            claim_lists.record_use(tx, key, caller.now_s)
    return respond(build_slot_page(found, begin + 1, PAGE_SLOTS))


def build_slot_page(found: Sequence[Content], first_slot: int, most: int) -> Page[SlotContent]:
    """Return the contents of slots from ``first_slot`` on, at most this many."""
    items = tuple(
        SlotContent(slot=slot, damage=content.why)
        if isinstance(content, Unreadable)
        else SlotContent(slot=slot, content=content)
        for slot, content in enumerate(found[:most], start=first_slot)
    )
    return Page(items=items, after=str(items[-1].slot) if len(found) > most else "")


def make_gap_refusal(slot: int, where: str = "") -> Refusal:
    """Return the refusal of a claim in a slot after one that is not held."""
    return Refusal(
        HTTPStatus.CONFLICT,
        f"slot {slot}{where} cannot be claimed: slot {slot - 1} is not held",
        means="the list would have a gap, at which readers stop; nothing was claimed",
        do="read the list to its end, and claim the slot after it",
    )


@router.post(
    "/{team}/{run}",
    **describe_route(SlotAnswer, takes=NewSlot, status=HTTPStatus.CREATED, also=HTTPStatus.OK),
)
def post_claim(
    caller: ChangerParameter, team: Name, run: Name, new: Annotated[NewSlot, parse_body(NewSlot)]
) -> Response:
    """Claim the next slot of a run's claim list. The first content of a slot stays for ever."""
    key = f"{team}/{run}"

    def do(tx: Connection) -> Reply:
        known = claim_lists.find_claim_list(tx, key)
        user = caller.principal.user if known is None else known.user
        caller.require_right("claims.write", _describe_target(team, run, user))
        caller.set_detail(f"slot {new.slot}")
        if claim_lists.has_claim(tx, key, new.slot):
            return build_reply(SlotAnswer(written=False))
        if new.slot > 1 and not claim_lists.has_claim(tx, key, new.slot - 1):
            raise make_gap_refusal(new.slot, f" of claim list {run}")
        team_limits.check_claims(tx, team, len(new.content))
        if known is None:
            made = StoredClaimList(run=key, team=team, user=user, content_bytes=0, used_s=caller.now_s)
            claim_lists.insert_claim_list(tx, made)
        claim_lists.insert_claim(tx, key, new.slot, new.content)
        claim_lists.record_use(tx, key, caller.now_s, len(new.content))
        return build_reply(SlotAnswer(written=True), status=HTTPStatus.CREATED)

    return caller.change("claims.write", f"claim list {key}", do)


@router.get("/{team}/{run}/right", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def get_claim_right(caller: CallerParameter, team: Name, run: Name) -> Response:
    """Check that you may claim in a run's claim list; nothing is claimed."""
    with caller.begin_read() as tx:
        known = claim_lists.find_claim_list(tx, f"{team}/{run}")
    user = caller.principal.user if known is None else known.user
    caller.require_right("claims.write", _describe_target(team, run, user))
    return build_response(Reply(status=HTTPStatus.NO_CONTENT))


@router.delete("/{team}/{run}", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def delete_claims(caller: ChangerParameter, team: Name, run: Name) -> Response:
    """Delete the claim list of a run that will never go on."""
    key = f"{team}/{run}"

    def do(tx: Connection) -> Reply:
        target = _describe_target(team, run)
        # First refuse callers that may not even read the list, without looking it up.
        caller.require_right("claims.read", target)
        known = claim_lists.find_claim_list(tx, key)
        if known is None:
            raise make_missing_error(target.name)
        caller.require_right("claims.write", msgspec.structs.replace(target, user=known.user))
        claim_lists.forget_claim_list(tx, key)
        return Reply(status=HTTPStatus.NO_CONTENT)

    return caller.change("claims.delete", f"claim list {key}", do)


def _describe_target(team: str, run: str, user: str = "") -> Target:
    return Target(name=f"claim list {run}", team=team, user=user)
