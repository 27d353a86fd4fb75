"""The claims and the records of a job's run, for its agents on machines without a shared directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from elastane.cluster.controller.agents.decisions import takes_part
from elastane.cluster.controller.agents.kept_records import KeptRecords, RecordsRefused
from elastane.cluster.controller.rest.agents import AgentCaller, AgentParameter
from elastane.cluster.controller.rest.bodies import build_reply, build_response, parse_body, respond
from elastane.cluster.controller.rest.claims import build_slot_page, make_gap_refusal
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import After, Record
from elastane.cluster.controller.rest.problems import Refusal
from elastane.cluster.controller.store import agent_rows
from elastane.cluster.controller.store.replies import Reply
from elastane.common.bodies import Page
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable
from elastane.run.machines.claims.slots import NewSlot, SlotAnswer, SlotContent
from elastane.run.nouns.record_parts import ENDPOINT, KeptRecord, NewRecords, RecordContent

router = APIRouter(prefix="/v1/agents/{agent}", tags=["agents"])
ATTEMPT = "attempt.json"
PAGE_SLOTS = 32
"""The most slots of an answer, so that it has a few megabytes at most."""


@contextmanager
def _open_records(caller: AgentCaller, *, changes: bool) -> Iterator[KeptRecords]:
    """Yield the records of an agent's job."""
    with caller.controller.store.begin_read() as tx:
        here = caller.read(tx)
        run = agent_rows.find_agent_run(tx, here.job)
    if changes and not takes_part(here, run):
        raise Refusal(
            HTTPStatus.CONFLICT,
            f"agent {caller.number} does not take part in the newest attempt of job {here.job}",
            means="the records of another attempt count; nothing was changed",
            do="end what it runs, and let it ask what to do",
        )
    try:
        yield caller.controller.records.open(here.job)
    except (RecordsRefused, ClaimsUnusable) as error:
        raise Refusal(HTTPStatus.CONFLICT, error.what, means=error.means, do=error.do) from error
    except (OSError, ClaimsUnavailable) as error:
        raise Refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the controller cannot use the run directory of job {here.job} now: {error}",
            means="the run goes on; its records are kept on its machines until then",
            do="make room on the disk of the controller, if it is full",
        ) from error


@router.get("/records", **describe_route(Page[KeptRecord]))
def get_records(caller: AgentParameter) -> Response:
    """List the records that are kept of the run of the agent's job."""
    with _open_records(caller, changes=False) as records:
        return respond(Page(items=records.list_records()))


@router.get("/records/{record}", **describe_route(RecordContent))
def get_record(
    caller: AgentParameter,
    record: Record,
    offset: Annotated[int, Query(ge=0, le=2**50, description="Of the first byte.")] = 0,
) -> Response:
    """Read a part of a record."""
    with _open_records(caller, changes=False) as records:
        found = records.read(record, offset)
    if found is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"no record {record} is kept of this run")
    return respond(found)


@router.post("/records", **describe_route(None, takes=NewRecords, status=HTTPStatus.NO_CONTENT))
def post_records(caller: AgentParameter, new: Annotated[NewRecords, parse_body(NewRecords)]) -> Response:
    """Send parts of records. Those of the run are taken from the machine of the newest term only."""
    with _open_records(caller, changes=True) as records:
        records.write(new)
    if any(part.name == ATTEMPT or (part.name == ENDPOINT and not part.content) for part in new.parts):
        caller.controller.wake()
    return build_response(Reply(status=HTTPStatus.NO_CONTENT))


@router.get("/claims", **describe_route(Page[SlotContent]))
def get_agent_claims(caller: AgentParameter, after: After = None) -> Response:
    """List the held slots of the claim list of the run, in order."""
    begin = (after or 0) + 1
    with _open_records(caller, changes=False) as records:
        found = records.place.read(begin)
    return respond(build_slot_page(found, begin, PAGE_SLOTS))


@router.post(
    "/claims", **describe_route(SlotAnswer, takes=NewSlot, status=HTTPStatus.CREATED, also=HTTPStatus.OK)
)
def post_agent_claim(caller: AgentParameter, new: Annotated[NewSlot, parse_body(NewSlot)]) -> Response:
    """Claim the next slot of the claim list of the run. The first content of a slot stays for ever."""
    with _open_records(caller, changes=True) as records:
        if new.slot > 1 and not records.place.read(new.slot - 1):
            raise make_gap_refusal(new.slot)
        written = records.place.create(new.slot, new.content)
    status = HTTPStatus.CREATED if written else HTTPStatus.OK
    return build_response(build_reply(SlotAnswer(written=written), status=status))


@router.get("/claims/right", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def get_agent_claim_right(caller: AgentParameter) -> Response:
    """Check that the agent may claim in the claim list of the run; nothing is claimed."""
    with _open_records(caller, changes=True):
        return build_response(Reply(status=HTTPStatus.NO_CONTENT))
