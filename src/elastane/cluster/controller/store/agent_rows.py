"""Agents and the attempts that they have begun: queries and changes of their rows."""

import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from elastane.cluster.controller.agents.stored_agent import StoredAgent, StoredRun
from elastane.cluster.controller.store.tables import agents, jobs, runs, turns

KEPT_S = 24 * 3600.0
"""The row of an agent is deleted this long after its end."""
CLUSTER_BYTES = 3
KEY_BYTES = 16


def get_cluster_id(tx: Connection) -> str:
    """Return the word that tells this cluster's agents from others; write it if it is new."""
    found = find_cluster_id(tx)
    if not found:
        found = f"c{secrets.token_hex(CLUSTER_BYTES)}"
        tx.execute(update(turns).values(cluster=found))
    return found


def find_cluster_id(tx: Connection) -> str:
    """Return the same word; empty: the cluster has never had an agent."""
    found: str = tx.execute(select(turns.c.cluster)).scalar_one()
    return found


def make_key() -> bytes:
    """Return the secret of a new agent's ticket."""
    return secrets.token_bytes(KEY_BYTES)


def find_agent(tx: Connection, number: int) -> StoredAgent | None:
    row = tx.execute(select(agents).where(agents.c.number == number)).one_or_none()
    return None if row is None else _decode_agent(row)


def find_last_agent(tx: Connection, job: str, attempt: int) -> StoredAgent | None:
    """Return the agent of an attempt that ended last; None: none has ended, or that was long ago."""
    here = agents.c.job == job, agents.c.attempt == attempt, agents.c.ended_s.is_not(None)
    newest = select(agents).where(*here).order_by(agents.c.ended_s.desc(), agents.c.number.desc()).limit(1)
    row = tx.execute(newest).one_or_none()
    return None if row is None else _decode_agent(row)


def list_living_agents(tx: Connection, job: str = "") -> tuple[StoredAgent, ...]:
    """Return the agents that are not gone, by number: those of a job, or of all."""
    query = select(agents).where(agents.c.ended_s.is_(None)).order_by(agents.c.number)
    if job:
        query = query.where(agents.c.job == job)
    return tuple(map(_decode_agent, tx.execute(query)))


def list_gone_members(tx: Connection, gangs: Collection[int]) -> tuple[StoredAgent, ...]:
    """Return the agents of gangs that are gone, by number."""
    if not gangs:
        return ()
    query = select(agents).where(agents.c.gang.in_(gangs), agents.c.ended_s.is_not(None))
    return tuple(map(_decode_agent, tx.execute(query.order_by(agents.c.number))))


def list_agent_numbers(tx: Connection, job: str) -> tuple[int, ...]:
    """Return the numbers of the agents of a job, in order; those that ended long ago are forgotten."""
    query = select(agents.c.number).where(agents.c.job == job).order_by(agents.c.number)
    return tuple(tx.execute(query).scalars())


def insert_agent(tx: Connection, agent: StoredAgent) -> StoredAgent:
    """Store a new agent, and return it with its number; that of a new gang is that of its first agent."""
    values = msgspec.structs.asdict(agent)
    del values["number"]
    number = tx.execute(insert(agents).values(values).returning(agents.c.number)).scalar_one()
    agent = msgspec.structs.replace(agent, number=number)
    if agent.gang_size and not agent.gang:
        agent = msgspec.structs.replace(agent, gang=number)
        tx.execute(update(agents).where(agents.c.number == number).values(gang=number))
    return agent


def write_agents(tx: Connection, changed: Iterable[StoredAgent]) -> None:
    for agent in changed:
        values = msgspec.structs.asdict(agent)
        del values["number"]
        tx.execute(update(agents).where(agents.c.number == agent.number).values(values))


def set_deadlines(tx: Connection, deadlines: Mapping[int, float]) -> None:
    """Record that agents should leave, by number; one that should leave earlier already is left so."""
    for number, leave_by_s in deadlines.items():
        later = agents.c.leave_by_s.is_(None) | (agents.c.leave_by_s > leave_by_s)
        tx.execute(update(agents).where(agents.c.number == number, later).values(leave_by_s=leave_by_s))


def record_request(tx: Connection, number: int) -> None:
    """Record that an engine has taken the request for an agent."""
    here = update(agents).where(agents.c.number == number, agents.c.state == "asked")
    tx.execute(here.values(state="pending"))


def record_refusal(tx: Connection, number: int, why: str, now_s: float) -> None:
    """Record that an engine will never start an agent."""
    here = update(agents).where(agents.c.number == number, agents.c.state == "asked")
    tx.execute(here.values(state="gone", why=why, is_replaceable=True, ended_s=now_s))


def forget_agents(tx: Connection, now_s: float) -> tuple[int, ...]:
    """Delete the rows of agents that ended long ago, and return their numbers.

    As long as others of their gang live, they say which of its places are free.
    """
    gangs = select(agents.c.gang).where(agents.c.ended_s.is_(None), agents.c.gang != 0)
    is_old = agents.c.ended_s < now_s - KEPT_S, agents.c.gang.not_in(gangs)
    old = delete(agents).where(*is_old).returning(agents.c.number)
    return tuple(tx.execute(old).scalars())


def find_agent_run(tx: Connection, job: str) -> StoredRun | None:
    """Return the newest attempt of a job that agents have begun; None: there is none."""
    row = tx.execute(select(runs).where(runs.c.job == job)).one_or_none()
    return None if row is None else _decode_run(row)


def list_agent_runs(tx: Connection) -> tuple[StoredRun, ...]:
    """Return the newest attempt of each job that has run on agents and has not been settled."""
    return tuple(map(_decode_run, tx.execute(select(runs))))


def write_agent_run(tx: Connection, run: StoredRun) -> None:
    """Store the newest attempt of a job; it replaces the one before."""
    values = {"attempt": run.attempt, "beginner": run.beginner, "answers": int(run.answers)}
    if not tx.execute(update(runs).where(runs.c.job == run.job).values(values)).rowcount:
        tx.execute(insert(runs).values(job=run.job, **values))


def forget_ended_agent_runs(tx: Connection) -> None:
    """Delete the attempts of jobs that have ended, or that were forgotten."""
    living = select(jobs.c.name).where(jobs.c.ended_s.is_(None))
    tx.execute(delete(runs).where(runs.c.job.not_in(living)))


def forget_agent_run(tx: Connection, job: str) -> None:
    tx.execute(delete(runs).where(runs.c.job == job))


def _decode_agent(row: Row[Any]) -> StoredAgent:
    return StoredAgent(**row._mapping)


def _decode_run(row: Row[Any]) -> StoredRun:
    return StoredRun(job=row.job, attempt=row.attempt, beginner=row.beginner, answers=bool(row.answers))
