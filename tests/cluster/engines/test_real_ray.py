"""The engine for Ray, with a real Ray on this machine."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastane.cluster.engines.ray.doctor import examine_ray
from elastane.cluster.engines.ray.engine import RayEngine
from elastane.cluster.engines.ray.options import RayOptions
from elastane.cluster.nouns.agents import AgentEnd
from elastane.common.process_identity import read_start_time
from tests.cluster.engines.agent_desk import COMMAND, AgentDesk
from tests.cluster.engines.contract import (
    AgentEngineContract,
    ask_for_agent,
    list_by_id,
    start,
    wait_until_gone,
)
from tests.cluster.engines.ray_daemons import RayDaemons, open_ray
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.alone, pytest.mark.timeout(600)]
POOL = {"cpusPerDevice": "1"}


@pytest.fixture(scope="module")
def ray() -> Iterator[RayDaemons]:
    with open_ray() as daemons:
        yield daemons


class RealRaySite:
    """An `EngineSite`."""

    pool = POOL

    def __init__(self, ray: RayDaemons, runner: asyncio.Runner) -> None:
        self.ray = ray
        self.desk = AgentDesk()
        self.run = runner.run
        self.engines: list[RayEngine] = []

    def build_options(self, **changes) -> RayOptions:
        fields = {"address": self.ray.address, "python": self.ray.python, "command": COMMAND}
        return RayOptions(**fields | {"answer_s": WAIT_S} | changes)

    def build_engine(self, cluster: str, *, answer_s: float = WAIT_S, **changes) -> RayEngine:
        engine = RayEngine(cluster, self.build_options(answer_s=answer_s, **changes))
        self.engines.append(engine)
        return engine

    def silence(self):
        return self.ray.pause_head()

    def close(self) -> None:
        for engine in self.engines:
            self.run(engine.close())
        self.desk.close()


@pytest.fixture
def site(ray: RayDaemons, event_loop_runner: asyncio.Runner) -> Iterator[RealRaySite]:
    site = RealRaySite(ray, event_loop_runner)
    try:
        yield site
    finally:
        site.close()


class TestRealRayEngine(AgentEngineContract):
    """The contract of all engines."""


def test_an_agent_has_its_setup_and_its_output_and_no_variables_of_ray(site, tmp_path):
    engine = site.build_engine("here", setup="export TEST_SETUP=ready")
    ask, line = start(site, engine, log=str(tmp_path / "agent.log"))
    assert line.setup == "ready"
    entries = Path(f"/proc/{line.pid}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in entries}
    assert not [name for name in names if name.startswith(("RAY_", "PYTHON"))]
    assert "CUDA_VISIBLE_DEVICES" in names
    line.exit(0)
    assert wait_until_gone(site, engine, ask.id).exit_code == 0
    assert (tmp_path / "agent.log").read_text() == f"agent {ask.id} begins\n"


def test_an_agent_without_room_waits_and_is_ended_before_it_begins(site):
    engine = site.build_engine("here")
    ask = ask_for_agent(site, devices=9)
    assert site.run(engine.start_agents([ask])) == {}
    seen = list_by_id(site, engine)[ask.id]
    assert (seen.state, seen.why) == ("pending", "no node of Ray has 9 CPU, 9 GPU: it waits for a new node")
    assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
    wait_until_gone(site, engine, ask.id)
    assert site.desk.count_starts(ask.id) == 0


def test_the_doctor_names_what_is_wrong_with_a_pool(site):
    pools = {"good": POOL, "typo": {"resorce": "GPU"}, "strange": {"resource": "TPU"}}
    findings = site.run(examine_ray(site.build_options(), pools))
    assert [finding.ok for finding in findings] == [True, True, True, True, False, False], findings
    assert "Ray has 3 nodes" in findings[2].what
    assert "4 free devices on 2 nodes" in findings[3].what


def test_an_agent_dies_with_its_actor_and_its_node_is_named(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    node = list_by_id(site, engine)[ask.id].node
    os.kill(site.ray.find_raylet(node), signal.SIGKILL)
    line.wait_for_end()
    wait_until(lambda: read_start_time(line.pid) is None, "the agent has ended")
    over = wait_until_gone(site, engine, ask.id)
    assert (over.state, over.exit_code) == ("gone", None)
    assert over.why
    site.ray.start(node)


def test_a_drained_node_is_left_and_not_listed(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    node = list_by_id(site, engine)[ask.id].node
    site.ray.drain(node, 300)
    wait_until(lambda: list_by_id(site, engine)[ask.id].state == "leaving", "it was asked to leave")
    assert line.wait_for_line() == "SIGTERM"
    seen = list_by_id(site, engine)[ask.id]
    assert seen.why == f"Ray drains its node {node}"
    assert 0 < seen.until_s - time.time() <= 300
    assert node not in {node.name for node in site.run(engine.list_nodes({"pool": POOL}))}
    line.exit(0)
    assert wait_until_gone(site, engine, ask.id).exit_code == 0
