"""What agents ask and say; each proves itself with the key of its own ticket, and speaks of itself only."""

import hmac
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import HTTPBearer
from sqlalchemy import Connection

from elastane.cluster.controller.agents.agent_job import read_agent_job
from elastane.cluster.controller.agents.decisions import choose_instruction
from elastane.cluster.controller.agents.stored_agent import StoredAgent, StoredRun, format_agent_id
from elastane.cluster.controller.rest.bodies import build_response, parse_body, respond
from elastane.cluster.controller.rest.caller import limit_rate
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import Agent
from elastane.cluster.controller.rest.problems import Refusal
from elastane.cluster.controller.store import agent_rows, documents, jobs
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.arrivals import AgentDeparture, Arrival, Begin, Instruction, Join
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.job_tickets import encode_credentials
from elastane.cluster.nouns.pools import Pool
from elastane.common.safe_text import escape_line, escape_text

router = APIRouter(prefix="/v1/agents", tags=["agents"])
LONGEST_WHY = 4000


class AgentCaller(NamedTuple):
    """An agent that has proven itself, at a time in seconds since 1970."""

    controller: Controller
    number: int
    now_s: float

    def read(self, tx: Connection) -> StoredAgent:
        """Return the agent as it is stored now."""
        found = agent_rows.find_agent(tx, self.number)
        if found is None or found.is_gone:
            raise _make_refusal()
        return found

    def read_own(self, tx: Connection, process: str) -> StoredAgent:
        """Return the agent as it is stored now, unless another process has arrived with its ticket before."""
        found = self.read(tx)
        if found.process in ("", process):
            return found
        raise Refusal(
            HTTPStatus.CONFLICT,
            f"another process has arrived with this ticket on {found.node or 'another machine'}",
            means="a ticket serves one agent; two of one name would train the same part of a run",
            do="end this agent; the controller asks for as many as its job needs",
        )


# For the description only; see `elastane.cluster.controller.rest.caller`.
_ticket = HTTPBearer(auto_error=False, scheme_name="JobTicket", description="The key of a job ticket.")


def _authenticate_agent(
    request: Request, agent: Agent, _: Annotated[object, Depends(_ticket)]
) -> AgentCaller:
    """Return the agent of a request that has the key of its ticket."""
    controller: Controller = request.app.state.controller
    now_s, number = controller.clock(), int(agent.rpartition("-")[2])
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    with controller.store.begin_read() as tx:
        found, id_ = (
            agent_rows.find_agent(tx, number),
            format_agent_id(agent_rows.find_cluster_id(tx), number),
        )
    is_proven = (
        found is not None
        and not found.is_gone
        and id_ == agent
        and scheme.lower() == "bearer"
        and hmac.compare_digest(encode_credentials(found.key).encode(), key.encode())
    )
    if not is_proven:
        address = request.client.host if request.client else "unknown"
        wait_s = controller.by_address.wait_s(address, now_s)
        limit_rate(wait_s, "this address sends requests without a valid ticket")
        raise _make_refusal()
    limit_rate(controller.by_token.wait_s(agent, now_s), f"agent {agent} sends requests")
    return AgentCaller(controller, number, now_s)


def _make_refusal() -> Refusal:
    return Refusal(
        HTTPStatus.UNAUTHORIZED,
        "this request has no valid job ticket",
        means="the ticket is not of this cluster, or its agent has ended; a ticket serves one agent",
        do="end this agent; the controller asks for another one if its job needs it",
    )


AgentParameter = Annotated[AgentCaller, Depends(_authenticate_agent)]
"""Parameter of every endpoint for agents."""


@router.post("/{agent}/arrival", **describe_route(Instruction, takes=Arrival))  # noqa: FAST003 - of the caller
def post_arrival(caller: AgentParameter, arrival: Annotated[Arrival, parse_body(Arrival)]) -> Response:
    """Say that an agent has begun on a machine, and ask what it should do; ask again as often as needed."""
    _check_version(caller, arrival)
    with caller.controller.store.begin_read() as tx:
        here, told = _find_instruction(caller, tx, arrival.process)
    # Many agents may wait at once. Only what changes something takes the one turn for writing.
    if here.arrived_s is None or isinstance(told, Begin | Join):
        with caller.controller.store.begin_write() as tx:
            here = caller.read_own(tx, arrival.process)
            agent_rows.write_agents(tx, [_record_arrival(here, arrival, caller.now_s)])
            here, told = _find_instruction(caller, tx, arrival.process)
            if isinstance(told, Begin):
                run = StoredRun(job=here.job, attempt=told.attempt, beginner=here.number)
                agent_rows.write_agent_run(tx, run)
            if isinstance(told, Begin | Join):
                agent_rows.write_agents(tx, [msgspec.structs.replace(here, attempt=told.attempt)])
    return respond(told)


def _check_version(caller: AgentCaller, arrival: Arrival) -> None:
    """Refuse an agent with another version of Elastane: the messages of a run have no common form."""
    own, theirs = version("elastane"), arrival.version
    if theirs == own:
        return
    with caller.controller.store.begin_read() as tx:
        here = caller.read_own(tx, arrival.process)
        found = jobs.find_jobs(tx, [here.job])
    image = found[0].spec.image if found else ""
    place = f"image {image}" if image else f"environment of engine {here.engine}"
    raise Refusal(
        HTTPStatus.CONFLICT,
        f"the {place} has Elastane {escape_line(theirs)}, and the controller has {own}",
        means="agents of another version cannot take part in a run; nothing has been trained there",
        do=f"install elastane=={own} there",
    )


def _record_arrival(agent: StoredAgent, arrival: Arrival, now_s: float) -> StoredAgent:
    if agent.arrived_s is not None:
        return agent
    return msgspec.structs.replace(
        agent,
        state="arrived",
        process=arrival.process,
        arrived_s=now_s,
        started_s=now_s if agent.started_s is None else agent.started_s,
        node=agent.node or escape_text(arrival.host, LONGEST_WHY),
    )


def _find_instruction(caller: AgentCaller, tx: Connection, process: str) -> tuple[StoredAgent, Instruction]:
    """Return an agent, and what it should do as things are in this transaction."""
    here = caller.read_own(tx, process)
    found = jobs.find_jobs(tx, [here.job])
    job = read_agent_job(found[0], caller.controller.home) if found else None
    run, living = agent_rows.find_agent_run(tx, here.job), agent_rows.list_living_agents(tx, here.job)
    told = choose_instruction(
        here, job, run, living, is_shared=_shares_home(tx, here.engine), site=_find_site(tx, here.pool)
    )
    return here, told


def _find_site(tx: Connection, pool: str) -> str:
    """Return the site of a pool; empty: it has none, or its record is gone."""
    found = documents.find_document(tx, "pools", pool)
    document = None if found is None else found.value
    return document.site if isinstance(document, Pool) else ""


def _shares_home(tx: Connection, engine: str) -> bool:
    """Return whether the machines of an engine share the home of the controller."""
    found = documents.find_document(tx, "engines", engine)
    document = None if found is None else found.value
    return not isinstance(document, DeclaredEngine) or document.shares_home


@router.post(
    "/{agent}/departure",  # noqa: FAST003 - of the caller
    **describe_route(None, takes=AgentDeparture, status=HTTPStatus.NO_CONTENT),
)
def post_departure(
    caller: AgentParameter, departure: Annotated[AgentDeparture, parse_body(AgentDeparture)]
) -> Response:
    """Say that an agent ends, and why."""
    with caller.controller.store.begin_write() as tx:
        why = escape_text(departure.why, LONGEST_WHY)
        here = caller.read_own(tx, departure.process)
        here = msgspec.structs.replace(here, exit_code=departure.code, why=why)
        agent_rows.write_agents(tx, [here])
    caller.controller.wake()
    return build_response(Reply(status=HTTPStatus.NO_CONTENT))
