"""What every engine of agents keeps: tests of an `EngineSite`, which a class for each engine inherits.

```
class TestMyEngine(AgentEngineContract):
    @pytest.fixture
    def site(self): ...
```
"""

import itertools
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, AgentEngine, Away, SeenAgent
from tests.cluster.engines.agent_desk import AgentDesk
from tests.waiting import WAIT_S, wait_until

Found = TypeVar("Found")
HASTY_S = 0.5
"""How long an engine waits for an answer that does not come."""
GRACE_S = 60.0
numbers = itertools.count(1)


class EngineSite(Protocol):
    """A place where an engine works.

    Attributes:
        pool: options of a pool with at least two machines that have a free device.
    """

    pool: Mapping[str, str]
    desk: AgentDesk

    def build_engine(self, cluster: str, *, answer_s: float = WAIT_S) -> AgentEngine:
        """Return an engine with `listening_agent` as its agents.

        Args:
            answer_s: how long it waits for an answer.
        """

    def silence(self) -> AbstractContextManager[object]:
        """Let the engine get no answer until the context ends."""

    def run(self, coroutine: Coroutine[Any, Any, Found]) -> Found:
        """Run a coroutine to its end, always in the same event loop."""


def ask_for_agent(site: EngineSite, cluster: str = "here", **changes: Any) -> AgentAsk:
    """Return the request for a new agent."""
    fields = {
        "id": f"{cluster}-{next(numbers)}",
        "job": "demo",
        "pool": site.pool,
        "devices": 1,
        "grace_s": GRACE_S,
    } | changes
    ticket = f"{site.desk.ticket},{fields['id']},{fields['devices']}"
    return AgentAsk(**{"ticket": ticket} | fields)


def start(site: EngineSite, engine: AgentEngine, **changes: Any):
    """Start an agent, and return its request and its line."""
    ask = ask_for_agent(site, **changes)
    assert site.run(engine.start_agents([ask])) == {}
    return ask, site.desk.meet(ask.id)


def list_by_id(site: EngineSite, engine: AgentEngine) -> dict[str, SeenAgent]:
    seen = site.run(engine.list_agents())
    assert not isinstance(seen, Away), seen.why
    assert len({agent.id for agent in seen}) == len(seen)
    return {agent.id: agent for agent in seen}


def wait_until_gone(site: EngineSite, engine: AgentEngine, agent: str) -> SeenAgent | None:
    """Wait until an agent is gone; return how it ended, or None."""

    def is_gone() -> bool:
        return (seen := list_by_id(site, engine).get(agent)) is None or seen.state == "gone"

    wait_until(is_gone, f"{agent} is gone", state=lambda: list_by_id(site, engine))
    return list_by_id(site, engine).get(agent)


def count_devices(site: EngineSite, engine: AgentEngine) -> int:
    nodes = site.run(engine.list_nodes({"pool": site.pool}))
    assert not isinstance(nodes, Away), nodes.why
    assert {node.pool for node in nodes} == {"pool"}
    return sum(node.devices for node in nodes)


class AgentEngineContract:
    """The tests; a subclass has the fixture ``site``.

    Attributes:
        repeats_notices: an agent gets each notice that the engine is asked for, and not only the first one.
    """

    repeats_notices = True

    def test_an_agent_runs_with_its_name_its_slots_and_its_ticket(self, site: EngineSite) -> None:
        engine = site.build_engine("here")
        ask, line = start(site, engine, devices=2)
        assert line.slots == 2
        seen = list_by_id(site, engine)[ask.id]
        assert (seen.state, seen.exit_code, seen.ended_s) == ("running", None, None)
        assert seen.node
        # On one machine other users could read the words of a process, and its own user the environment.
        for name in ("cmdline", "environ"):
            assert site.desk.ticket.encode() not in Path(f"/proc/{line.pid}/{name}").read_bytes()
        line.exit(0)
        over = wait_until_gone(site, engine, ask.id)
        assert over is None or (over.state, over.exit_code) == ("gone", 0)

    def test_an_agent_begins_once_however_often_it_is_asked_for(self, site: EngineSite) -> None:
        engine = site.build_engine("here")
        ask, other = ask_for_agent(site), ask_for_agent(site)
        assert site.run(engine.start_agents([ask])) == {}
        # The second engine stands for a controller that has replaced the first one.
        engine = site.build_engine("here")
        assert site.run(engine.start_agents([ask, other])) == {}
        line, _ = site.desk.meet(ask.id), site.desk.meet(other.id)
        assert site.run(engine.start_agents([ask, other])) == {}
        line.exit(0)
        wait_until_gone(site, engine, ask.id)
        assert site.run(engine.start_agents([ask])) == {}
        seen = list_by_id(site, engine)
        assert ask.id not in seen or seen[ask.id].state == "gone"
        assert site.desk.count_starts(ask.id) == site.desk.count_starts(other.id) == 1
        site.desk.meet(other.id).exit(0)

    def test_a_notice_reaches_the_agent_and_leaves_it_time(self, site: EngineSite) -> None:
        engine = site.build_engine("here")
        ask, line = start(site, engine)
        for is_first in (True, False):
            assert site.run(engine.end_agents([AgentEnd(ask.id, GRACE_S)])) == {}
            if is_first or self.repeats_notices:
                assert line.wait_for_line() == "SIGTERM"
        assert list_by_id(site, engine)[ask.id].state in ("running", "leaving")
        line.exit(0)
        over = wait_until_gone(site, engine, ask.id)
        assert over is None or over.exit_code == 0

    def test_without_grace_an_agent_that_does_not_leave_is_killed(self, site: EngineSite) -> None:
        engine = site.build_engine("here")
        ask, line = start(site, engine)
        assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
        line.wait_for_end()
        over = wait_until_gone(site, engine, ask.id)
        assert over is None or over.exit_code is None
        # It may be repeated, and an agent that never was is gone too.
        ends = [AgentEnd(agent, grace_s) for agent in (ask.id, "here-999999") for grace_s in (0.0, GRACE_S)]
        for end in ends:
            assert site.run(engine.end_agents([end])) == {}

    def test_an_agent_that_fails_is_seen_with_its_exit_code(self, site: EngineSite) -> None:
        engine = site.build_engine("here")
        ask, line = start(site, engine)
        line.exit(3)
        over = wait_until_gone(site, engine, ask.id)
        if over is not None:
            assert over.exit_code == 3
            assert "3" in over.why
            assert over.ended_s is not None

    def test_agents_of_another_cluster_are_neither_seen_nor_ended_nor_started(self, site: EngineSite) -> None:
        here, there = site.build_engine("here"), site.build_engine("there")
        ask, line = start(site, there, cluster="there")
        assert ask.id not in list_by_id(site, here)
        for grace_s in (0.0, GRACE_S):
            assert site.run(here.end_agents([AgentEnd(ask.id, grace_s)])) == {}
        other = ask_for_agent(site, cluster="there")
        assert site.run(here.start_agents([other]))[other.id].for_ever
        # A signal would have come before this one.
        assert site.run(there.end_agents([AgentEnd(ask.id, GRACE_S)])) == {}
        assert line.wait_for_line() == "SIGTERM"
        assert list_by_id(site, there).keys() == {ask.id}
        line.exit(0)
        wait_until_gone(site, there, ask.id)

    def test_only_devices_of_others_are_not_for_the_cluster(self, site: EngineSite) -> None:
        here, there = site.build_engine("here"), site.build_engine("there")
        free = count_devices(site, here)
        ask, line = start(site, here)
        assert (count_devices(site, here), count_devices(site, there)) == (free, free - 1)
        line.exit(0)
        wait_until_gone(site, here, ask.id)
        wait_until(lambda: count_devices(site, there) == free, "the device is free again")

    def test_what_cannot_be_asked_for_is_refused_and_the_rest_begins(self, site: EngineSite) -> None:
        engine = site.build_engine("here")
        good = ask_for_agent(site)
        bad = [
            ask_for_agent(site, pool={"no such option": "1"}),
            ask_for_agent(site, ticket="two\nlines"),
            ask_for_agent(site, ticket=""),
            ask_for_agent(site, devices=0),
            ask_for_agent(site, id="here-1; reboot"),
        ]
        refusals = site.run(engine.start_agents([*bad, good]))
        assert refusals.keys() == {ask.id for ask in bad}
        assert all(refusal.for_ever and refusal.why for refusal in refusals.values())
        assert not any(ask.ticket in refusals[ask.id].why for ask in bad if ask.ticket)
        site.desk.meet(good.id).exit(0)
        assert list_by_id(site, engine).keys() & refusals.keys() == set()

    def test_without_an_answer_nothing_is_concluded_and_everything_can_be_repeated(
        self, site: EngineSite
    ) -> None:
        engine, hasty = site.build_engine("here"), site.build_engine("here", answer_s=HASTY_S)
        running, line = start(site, engine)
        ask = ask_for_agent(site)
        with site.silence():
            assert isinstance(site.run(hasty.list_agents()), Away)
            assert isinstance(site.run(hasty.list_nodes({"pool": site.pool})), Away)
            refusal = site.run(hasty.start_agents([ask]))[ask.id]
            assert refusal.why
            assert not refusal.for_ever
            assert site.run(hasty.end_agents([AgentEnd(running.id, GRACE_S)]))[running.id]
        assert site.run(engine.start_agents([ask])) == {}
        site.desk.meet(ask.id).exit(0)
        assert list_by_id(site, engine)[running.id].state == "running"
        assert site.run(engine.end_agents([AgentEnd(running.id, GRACE_S)])) == {}
        assert line.wait_for_line() == "SIGTERM"
        line.exit(0)
        wait_until_gone(site, engine, running.id)
        assert site.desk.count_starts(ask.id) == 1
