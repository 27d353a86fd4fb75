"""Gangs: the agents with which a job begins, of which a queue admits all or none. Pure.

A queue such as one of Kueue counts each agent for itself, so that a job could hold devices without ever
having its fewest workers. These are therefore a gang in each pool with a queue, and every further agent
stands alone. The rules for places are those of Kueue's groups, see
`elastane.cluster.engines.kubernetes.kueue`:

- A gang keeps its size. A member that failed leaves its place free for another one; a member that ended with
  exit code 0 has given its place back for good. So has one that the queue still counts, on a lost machine.
- A gang has ended when all its members have.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from elastane.cluster.controller.agents.agent_job import AgentJob
from elastane.cluster.controller.agents.decisions import choose_asks
from elastane.cluster.controller.agents.stored_agent import StoredAgent

SHAPE_BYTES = 8


class NewAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent to ask for.

    Args:
        workers: how many it has.
        gang: number of the gang that it joins; 0 with a size: one that begins with it and its next ones.
        gang_size: 0: it is in no gang.
    """

    pool: str
    workers: int
    gang: int = 0
    gang_size: int = 0
    shape: str = ""


def hash_shape(parts: object) -> str:
    """Return a digest of all that the agents of a pool are made of.

    A queue takes a new member into a gang only if it is like the others.
    """
    return hashlib.blake2b(msgspec.msgpack.encode(parts, order="sorted"), digest_size=SHAPE_BYTES).hexdigest()


def has_begun(agent: StoredAgent) -> bool:
    """Return whether the queue of an agent has let it go on to a machine."""
    return bool(agent.node) or any(
        seen is not None for seen in (agent.started_s, agent.arrived_s, agent.exit_code)
    )


def divide_minimum(job: AgentJob) -> dict[str, int]:
    """Return how many of the fewest workers of a job belong to each pool."""
    found, left = {}, job.limits[0]
    for pool, workers in job.wanted.items():
        found[pool] = min(left, workers)
        left -= found[pool]
    return found


def choose_new_agents(
    job: AgentJob,
    agents: Sequence[StoredAgent],
    gone: Iterable[StoredAgent],
    sizes: Mapping[str, int],
    shapes: Mapping[str, str],
) -> tuple[NewAgent, ...]:
    """Return the agents to ask for.

    In pools with a queue, agents beyond the fewest are asked for only once as many as the fewest have
    arrived: before, they could take the quota that the gang needs.

    Args:
        agents: of the job that are not gone.
        gone: members of their gangs that are gone.
        sizes: how many workers an agent of the job has in each pool.
        shapes: of the agents of each pool that has a queue.
    """
    shares = divide_minimum(job)
    arrived = sum(agent.workers for agent in agents if agent.has_arrived and agent.is_wanted)
    found: list[NewAgent] = []
    for pool, asks in choose_asks(job, agents, sizes).items():
        if pool not in shapes:
            found += (NewAgent(pool=pool, workers=workers) for workers in asks)
            continue
        covered = sum(
            agent.workers for agent in agents if agent.pool == pool and agent.is_wanted and agent.gang
        )
        missing = shares.get(pool, 0) - covered
        # The members of a gang are alike.
        for workers, count in Counter(asks).items():
            members = max(0, min(count, -(-missing // workers)))
            missing -= members * workers
            new = NewAgent(pool=pool, workers=workers, shape=_name_shape(shapes[pool], workers))
            found += _choose_members(new, members, _find_places(agents, gone, new))
            if arrived >= job.limits[0]:
                found += [NewAgent(pool=pool, workers=workers)] * (count - members)
    return tuple(found)


def _name_shape(shape: str, workers: int) -> str:
    return shape if workers == 1 else f"{shape}:{workers}"


def _choose_members(
    new: NewAgent, count: int, places: Sequence[tuple[StoredAgent, int]]
) -> Iterator[NewAgent]:
    """Yield new members for the free places of gangs, and a gang of those for which there is no place."""
    for member, free in places:
        joining = min(free, count)
        count -= joining
        yield from [msgspec.structs.replace(new, gang=member.gang, gang_size=member.gang_size)] * joining
    yield from [msgspec.structs.replace(new, gang_size=count)] * count


def _find_places(
    agents: Iterable[StoredAgent], gone: Iterable[StoredAgent], new: NewAgent
) -> list[tuple[StoredAgent, int]]:
    """Return a member of each gang with free places for a new one, and how many, the oldest first."""
    open_gangs: dict[int, StoredAgent] = {}
    taken: dict[int, int] = defaultdict(int)
    for agent in agents:
        taken[agent.gang] += 1
        if agent.gang and agent.is_wanted and (agent.pool, agent.shape) == (new.pool, new.shape):
            open_gangs.setdefault(agent.gang, agent)
    for agent in gone:
        taken[agent.gang] += not agent.is_replaceable
    free = [(member, member.gang_size - taken[gang]) for gang, member in sorted(open_gangs.items())]
    return [(member, places) for member, places in free if places > 0]


def choose_stranded(
    job: AgentJob | None, agents: Sequence[StoredAgent], gone: Iterable[StoredAgent], leaving: Collection[int]
) -> tuple[int, ...]:
    """Return which members of gangs would wait for ever, or for too few, by number; they should leave.

    No member of their gang runs, and the gang cannot begin as it is: others have run, so that it has ended;
    or one that waited leaves; or the job needs more now. The job asks for a new gang in their place.

    Args:
        job: None: it has ended, or its record cannot be read.
        agents: of the job that are not gone.
        gone: members of their gangs that are gone.
        leaving: numbers of the agents that leave from now on.
    """
    if job is None or not job.wanted:
        return ()
    shares = divide_minimum(job)
    begun = {agent.gang for agent in gone if has_begun(agent)}
    gangs: dict[int, list[StoredAgent]] = defaultdict(list)
    for agent in agents:
        if agent.gang:
            gangs[agent.gang].append(agent)

    def stays(agent: StoredAgent) -> bool:
        return agent.is_wanted and agent.number not in leaving

    running = {agent.gang for agent in agents if stays(agent) and has_begun(agent)}
    pools_at_work = {agent.pool for agent in agents if agent.gang in running}
    workers = Counter[str]()
    for members in gangs.values():
        workers[members[0].pool] += members[0].workers * members[0].gang_size
    found: list[int] = []
    for gang, members in gangs.items():
        waiting = [agent for agent in members if stays(agent) and not has_begun(agent)]
        if not waiting or gang in running:
            continue
        is_over = gang in begun or any(has_begun(agent) for agent in members)
        is_short = len(waiting) < len(members)
        pool = waiting[0].pool
        is_small = pool not in pools_at_work and workers[pool] < shares.get(pool, 0)
        if is_over or is_short or is_small:
            found += [agent.number for agent in waiting]
    return tuple(found)
