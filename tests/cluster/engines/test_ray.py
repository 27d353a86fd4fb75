"""The engine for Ray and its driver, with a small Ray in place of the real one."""

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from elastane.cluster.engines.ray.doctor import examine_ray
from elastane.cluster.engines.ray.engine import NAMESPACE, RayEngine
from elastane.cluster.engines.ray.options import RayOptions
from elastane.cluster.nouns.agents import Away
from tests.cluster.engines.contract import (
    AgentEngineContract,
    ask_for_agent,
    list_by_id,
    start,
    wait_until_gone,
)
from tests.cluster.engines.job_contract import JobContract
from tests.cluster.engines.ray_site import SmallRayHead, SmallRaySite
from tests.cluster.processes.small_cluster import SOURCES, open_cluster
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def site(event_loop_runner: asyncio.Runner) -> Iterator[SmallRaySite]:
    site = SmallRaySite(event_loop_runner)
    try:
        yield site
    finally:
        site.close()


class TestRayEngine(AgentEngineContract):
    """The contract of all engines."""


class RayJobSite:
    """A `JobSite`: the parts of its job are actors, which are killed with the agents in them."""

    notifies = False

    def __init__(self, head: SmallRayHead, home: Path, options: RayOptions) -> None:
        self._head, self._options = head, options
        self._namespace = ""
        self.home = home
        self.run_elastane: Callable

    def open_engine(self, cluster: str) -> RayEngine:
        self._namespace = f"{NAMESPACE}{cluster}"
        return RayEngine(cluster, self._options)

    def list_parts(self) -> list[str]:
        """Return the names of the actors, which end with the number of the agent."""
        names = self._head.tell("list_actors", self._namespace)
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def take_away(self, part: str) -> None:
        self._head.tell("kill", (self._namespace, part))

    def read_logs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.home / "agents").glob("*.log")}


@pytest.mark.long
class TestJobsUnderRay(JobContract):
    """The contract of all engines."""

    @pytest.fixture
    def site(self, stage, tmp_path, monkeypatch) -> Iterator[RayJobSite]:
        head = SmallRayHead()
        paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
        options = RayOptions(
            python=str(head.python),
            command=stage.build_command("elastane.cli.main"),
            setup=f"export PYTHONPATH={shlex.quote(paths)}",
            answer_s=WAIT_S,
        )
        site = RayJobSite(head, tmp_path / "home", options)
        try:
            with open_cluster(
                stage, tmp_path, monkeypatch, open_engine=site.open_engine, kind="ray"
            ) as site.run_elastane:
                yield site
        finally:
            head.close()


def test_a_driver_that_was_killed_is_replaced_and_agents_go_on(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    os.kill(find_child(site.python), signal.SIGKILL)
    wait_until(lambda: not isinstance(site.run(engine.list_agents()), Away), "the engine answers again")
    wait_until(lambda: list_by_id(site, engine)[ask.id].state == "running", "its actor has answered")
    assert site.run(engine.start_agents([ask])) == {}
    line.exit(0)
    assert wait_until_gone(site, engine, ask.id).exit_code == 0
    assert site.desk.count_starts(ask.id) == 1


def find_child(program) -> int:
    """Return the pid of the driver that runs with a program in place of Python."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"driver" in words and str(program.parent / "head").encode() in words:
                    return int(process.name)
    raise AssertionError("no driver runs")


def test_an_agent_without_room_waits_and_begins_when_there_is_some(site):
    engine = site.build_engine("here")
    first = [start(site, engine, devices=2) for _ in range(3)]
    ask = ask_for_agent(site)
    assert site.run(engine.start_agents([ask])) == {}
    seen = list_by_id(site, engine)[ask.id]
    assert (seen.state, seen.why) == ("pending", "no node of Ray has 1 CPU, 1 GPU free now")
    first[0][1].exit(0)
    wait_until(lambda: list_by_id(site, engine)[ask.id].state == "running", "it has begun")
    site.desk.meet(ask.id).exit(0)


def test_an_agent_dies_with_its_node_and_ray_says_why(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    node = list_by_id(site, engine)[ask.id].node
    site.tell("fail", node)
    line.wait_for_end()
    over = wait_until_gone(site, engine, ask.id)
    assert (over.why, over.exit_code) == ("The actor is dead because its node has died.", None)
    assert node not in {node.name for node in site.run(engine.list_nodes({"pool": {}}))}


def test_a_drained_node_is_left_and_not_listed(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    node = list_by_id(site, engine)[ask.id].node
    site.tell("drain", node, 1_800_000_000_000)
    list_by_id(site, engine)
    assert line.wait_for_line() == "SIGTERM"
    seen = list_by_id(site, engine)[ask.id]
    assert (seen.state, seen.until_s) == ("leaving", 1_800_000_000.0)
    assert node not in {node.name for node in site.run(engine.list_nodes({"pool": {}}))}
    line.exit(0)
    assert wait_until_gone(site, engine, ask.id).exit_code == 0


def test_an_agent_gets_a_notice_before_its_time_is_over(site):
    engine = site.build_engine("here")
    _, line = start(site, engine, until_s=time.time() + 65.0, grace_s=60.0)
    assert line.wait_for_line() == "SIGTERM"
    line.exit(0)


def test_an_agent_is_killed_when_its_time_is_over(site):
    engine = site.build_engine("here")
    ask = ask_for_agent(site, until_s=time.time(), grace_s=0.0)
    assert site.run(engine.start_agents([ask])) == {}
    assert wait_until_gone(site, engine, ask.id).why == "its time was over"


def test_a_command_or_a_log_that_a_node_lacks_is_named(site, tmp_path):
    engine = site.build_engine("here", command=("/nowhere/elastane",))
    ask, unwritten = ask_for_agent(site, log=str(tmp_path / "log")), ask_for_agent(site, log="/nowhere/log")
    assert site.run(engine.start_agents([ask, unwritten])) == {}
    assert wait_until_gone(site, engine, ask.id).exit_code == 127
    assert "/nowhere/elastane: No such file" in (tmp_path / "log").read_text()
    over = wait_until_gone(site, engine, unwritten.id)
    assert over.why.startswith("it cannot be started: ")
    assert "/nowhere/log" in over.why


def test_the_doctor_names_what_is_wrong(site):
    pools = {"good": {}, "typo": {"resorce": "GPU"}, "strange": {"resource": "TPU"}}
    findings = site.run(examine_ray(site.build_options(), pools))
    assert [finding.ok for finding in findings] == [True, True, True, True, False, False]
    assert all(finding.do for finding in findings if not finding.ok)
    assert findings[1].what == "Ray 2.60.0 answers at auto"
    assert findings[3].what == "pool good: 6 free devices on 3 nodes, with 1 CPU, 1 GPU for each agent"
    findings = site.run(examine_ray(site.build_options(address="10.0.0.5:6379"), pools))
    assert [finding.ok for finding in findings] == [True, False]
    assert "no connection to Ray at 10.0.0.5:6379: there is no Ray" in findings[1].what
