"""The engine for Slurm, with real daemons on this machine."""

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from elastane.cluster.engines.slurm.doctor import examine_slurm
from elastane.cluster.engines.slurm.engine import SlurmEngine
from elastane.cluster.engines.slurm.options import SlurmOptions, decode_slurm_pool
from elastane.cluster.engines.slurm.programs import SlurmPrograms
from elastane.cluster.engines.slurm.submission import build_submission
from elastane.cluster.nouns.agents import AgentEnd, AgentEngine
from tests.cluster.engines.agent_desk import COMMAND, AgentDesk
from tests.cluster.engines.contract import (
    GRACE_S,
    HASTY_S,
    AgentEngineContract,
    ask_for_agent,
    count_devices,
    list_by_id,
    start,
    wait_until_gone,
)
from tests.cluster.engines.slurm_daemons import DEVICES, NODES, SlurmDaemons
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes

POOL = {"partition": "main", "gres": "gpu", "cpusPerDevice": "1"}
TIMED = "timed"
"""The cluster of the one agent that outlives a test."""


class SlurmSite:
    """An `EngineSite`."""

    pool = POOL

    def __init__(self, slurm: SlurmDaemons, runner: asyncio.Runner) -> None:
        self.slurm = slurm
        self.desk = AgentDesk()
        self.run = runner.run

    def build_options(self, **changes) -> SlurmOptions:
        fields = {
            "command": COMMAND,
            "conf": str(self.slurm.conf),
            "answer_s": WAIT_S,
            "setup": "export TEST_SETUP=ready",
        }
        return SlurmOptions(**fields | changes)

    def build_engine(self, cluster: str, *, answer_s: float = WAIT_S, **changes) -> AgentEngine:
        return SlurmEngine(cluster, self.build_options(answer_s=answer_s, **changes))

    def silence(self):
        return self.slurm.pause("slurmctld")

    def close(self) -> None:
        """End the agents of a test, and wait until their devices are free."""
        self.desk.close()
        wait_until(lambda: not self.list_living(), "all jobs have ended", state=self.list_living)

    def list_living(self) -> list[str]:
        names = self.slurm.run("squeue", "-h", "-o", "%j").split()
        return [name for name in names if f"-{TIMED}-" not in name]


@pytest.fixture
def site(slurm: SlurmDaemons, event_loop_runner: asyncio.Runner) -> Iterator[SlurmSite]:
    site = SlurmSite(slurm, event_loop_runner)
    try:
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module", autouse=True)
def timed_agent(slurm: SlurmDaemons, event_loop_runner: asyncio.Runner):
    """An agent with a time limit, begun before the other tests: Slurm looks at limits twice a minute."""
    site = SlurmSite(slurm, event_loop_runner)
    engine = site.build_engine(TIMED)
    changes = {"until_s": time.time() + 119, "grace_s": 59.0, "pool": POOL | {"constraint": "three"}}
    ask, line = start(site, engine, cluster=TIMED, **changes)
    try:
        yield site, engine, ask, line, list_by_id(site, engine)[ask.id]
    finally:
        site.desk.close()


class TestSlurmEngine(AgentEngineContract):
    """The contract of all engines."""


def find_node(site, engine, agent: str) -> str:
    return list_by_id(site, engine)[agent].node


def list_names(site, engine, pool) -> set[str]:
    return {node.name for node in site.run(engine.list_nodes({"pool": pool}))}


def test_the_lines_of_the_setup_run_before_the_command_and_the_output_goes_to_its_file(site, tmp_path):
    engine = site.build_engine("here", output=f"{tmp_path}/%x.out")
    ask, line = start(site, engine)
    assert line.setup == "ready"
    line.exit(0)
    wait_until_gone(site, engine, ask.id)
    assert (tmp_path / f"elastane-{ask.id}.out").read_text() == f"agent {ask.id} begins\n"


def test_an_agent_without_devices_of_a_kind_gets_processors(site):
    engine = site.build_engine("here")
    pool = {"constraint": "one", "cpusPerDevice": "2"}
    ask, line = start(site, engine, pool=pool, devices=2)
    assert site.slurm.run("squeue", "-h", f"--name=elastane-{ask.id}", "-o", "%C") == "4"
    assert [node.devices for node in site.run(engine.list_nodes({"pool": pool}))] == [2]
    line.exit(0)


@pytest.mark.parametrize(
    ("pool", "devices", "why"),
    [
        ({"partition": "nowhere"}, 1, "no such partition"),
        ({"constraint": "seven"}, 1, "no machine has the features"),
        ({"gres": "tpu"}, 1, "no such generic resource"),
        ({"reservation": "none"}, 1, "no such reservation"),
        ({"gres": "gpu"}, DEVICES + 1, "no machine of the partition meets the request"),
    ],
)
def test_what_slurm_does_not_have_is_refused_for_ever(site, pool, devices, why):
    engine = site.build_engine("here")
    ask = ask_for_agent(site, pool=pool, devices=devices)
    for _ in range(2):
        refusal = site.run(engine.start_agents([ask]))[ask.id]
        assert refusal.for_ever
        assert why in refusal.why
    # Slurm keeps some of these jobs as failed ones, but they have never been agents.
    assert ask.id not in list_by_id(site, engine)


def test_a_waiting_agent_says_why_and_is_cancelled_without_a_notice(site):
    engine = site.build_engine("here")
    pool = POOL | {"constraint": "one"}
    start(site, engine, pool=pool, devices=2)
    waiting = ask_for_agent(site, pool=pool)
    late = ask_for_agent(site, pool=POOL | {"partition": "short", "time": "2h"})
    assert site.run(engine.start_agents([waiting, late])) == {}

    def read_reasons():
        return [list_by_id(site, engine)[ask.id].why for ask in (waiting, late)]

    wait_until(
        lambda: read_reasons()[0].endswith("(Resources)") and "PartitionTimeLimit" in read_reasons()[1],
        "both have a reason",
        state=read_reasons,
    )
    assert {list_by_id(site, engine)[ask.id].state for ask in (waiting, late)} == {"pending"}
    assert site.run(engine.end_agents([AgentEnd(waiting.id, GRACE_S), AgentEnd(late.id, 0.0)])) == {}
    for ask in (waiting, late):
        over = wait_until_gone(site, engine, ask.id)
        assert (over.why, over.exit_code) == ("its job was cancelled before it began", None)
    assert site.desk.count_starts(waiting.id) == 0


def test_a_job_that_a_user_cancels_is_gone_and_says_so(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    site.slurm.run("scancel", f"--name=elastane-{ask.id}", f"--user={os.geteuid()}")
    assert line.wait_for_line() == "SIGTERM"
    line.exit(0)
    assert wait_until_gone(site, engine, ask.id).why == "its job was cancelled"


def test_a_command_or_a_folder_that_a_machine_lacks_is_named(site, tmp_path):
    engine = site.build_engine("here", command=("/nowhere/elastane",))
    other = site.build_engine("here", output=f"{tmp_path}/nowhere/%x.out")
    ask, unwritten = ask_for_agent(site), ask_for_agent(site)
    assert site.run(engine.start_agents([ask])) == site.run(other.start_agents([unwritten])) == {}
    over = wait_until_gone(site, engine, ask.id)
    assert over.exit_code == 127
    assert "could not start the command of Elastane" in over.why
    over = wait_until_gone(site, engine, unwritten.id)
    assert "perhaps the folder of its output is missing" in over.why


def test_a_job_that_slurm_accepts_after_the_time_for_an_answer_is_found_by_its_name(site):
    engine, hasty = site.build_engine("here"), site.build_options(answer_s=HASTY_S)
    ask = ask_for_agent(site)
    submission = build_submission(ask, decode_slurm_pool(ask.pool), hasty, time.time())
    with site.silence():
        refusal = site.run(SlurmPrograms(hasty).submit(submission))
    assert refusal.why == "sbatch did not end within 0.5 s"
    assert not refusal.for_ever
    wait_until(lambda: ask.id in list_by_id(site, engine), "Slurm has accepted the job")
    assert site.run(engine.start_agents([ask])) == {}
    assert site.slurm.run("squeue", "-h", f"--name=elastane-{ask.id}", "-o", "%j") == f"elastane-{ask.id}"
    site.desk.meet(ask.id).exit(0)


def test_a_job_that_slurm_accepted_late_beside_a_second_one_is_cancelled(site):
    engine = site.build_engine("here")
    ask = ask_for_agent(site)
    options = site.build_options()
    submission = build_submission(ask, decode_slurm_pool(ask.pool), options, time.time())
    for _ in range(2):
        assert site.run(SlurmPrograms(options).submit(submission)) is None
    assert site.run(engine.start_agents([ask])) == {}
    name = f"elastane-{ask.id}"

    def list_jobs():
        return site.slurm.run("squeue", "-h", f"--name={name}", "-o", "%i").split()

    wait_until(lambda: len(list_jobs()) == 1, "one job is left", state=list_jobs)
    first = min(site.slurm.run("squeue", "-h", "-t", "all", f"--name={name}", "-o", "%i").split(), key=int)
    assert list_jobs() == [first]
    assert list_by_id(site, engine)[ask.id].state != "gone"


def test_drained_and_reserved_machines_are_not_listed(site):
    engine = site.build_engine("here")
    assert list_names(site, engine, POOL) == set(NODES)
    assert list_names(site, engine, POOL | {"constraint": "one|three"}) == {"n1", "n3"}
    assert list_names(site, engine, POOL | {"exclude": "n2"}) == {"n1", "n3"}
    assert list_names(site, engine, {"partition": "nowhere"}) == set()
    site.slurm.run("scontrol", "update", "NodeName=n1", "State=drain", "Reason=test")
    reservation = (
        "ReservationName=held",
        "StartTime=now",
        "Duration=60",
        f"Users={os.geteuid()}",
        "Nodes=n2",
    )
    assert site.slurm.run("scontrol", "create", "reservation", *reservation)
    try:
        wait_until(lambda: list_names(site, engine, POOL) == {"n3"}, "n3 alone is listed")
        assert list_names(site, engine, POOL | {"reservation": "held"}) == {"n2"}
        _, line = start(site, engine, pool=POOL | {"reservation": "held"})
        line.exit(0)
    finally:
        wait_until(
            # Slurm refuses to delete it as long as its job has not ended.
            lambda: (
                not site.slurm.run("scontrol", "delete", "ReservationName=held")
                and "ReservationName=held" not in site.slurm.run("scontrol", "show", "reservation")
            ),
            "the reservation is removed",
        )
        site.slurm.run("scontrol", "update", "NodeName=n1", "State=resume")
    assert list_names(site, engine, POOL | {"reservation": "held"}) == set()
    wait_until(lambda: list_names(site, engine, POOL) == set(NODES), "all machines are back")


def test_a_job_of_higher_priority_preempts_an_agent(site):
    engine = site.build_engine("here")
    victim, line = start(site, engine, pool=POOL | {"constraint": "one"}, devices=2)
    pool = POOL | {"partition": "urgent", "constraint": "one"}
    urgent = ask_for_agent(site, pool=pool, devices=2)
    assert site.run(engine.start_agents([urgent])) == {}
    assert line.wait_for_line() == "SIGTERM"
    line.exit(0)
    assert wait_until_gone(site, engine, victim.id).why == "Slurm preempted it for another job"
    site.desk.meet(urgent.id).exit(0)


def test_a_machine_that_fails_is_not_listed_and_its_agent_is_gone(site):
    engine = site.build_engine("here")
    pool = POOL | {"constraint": "two"}
    ask, line = start(site, engine, pool=pool)
    site.slurm.kill("n2")
    # Slurm finds it out by itself after a while (SlurmdTimeout); this is quicker.
    site.slurm.run("scontrol", "update", "NodeName=n2", "State=down", "Reason=test")
    try:
        over = wait_until_gone(site, engine, ask.id)
        assert (over.why, over.exit_code) == ("its machine failed", None)
        assert list_names(site, engine, pool) == set()
        # It goes on until the machine is back: what Slurm says about its devices is not enough.
        os.kill(line.pid, 0)
    finally:
        site.slurm.start("n2")
    line.wait_for_end()
    wait_until(lambda: list_names(site, engine, pool) == {"n2"}, "n2 is back")


def test_the_doctor_names_what_is_wrong_with_a_pool(site):
    pools = {
        "good": POOL,
        "nowhere": POOL | {"partition": "nowhere"},
        "strange": POOL | {"gres": "tpu"},
        "typo": {"partion": "main"},
    }
    findings = site.run(examine_slurm(site.build_options(), pools))
    texts = [finding.what for finding in findings]
    assert [finding.ok for finding in findings] == [True, True, True, True, False, False, False], texts
    assert "the controller of Slurm" in texts[2]
    assert "free devices on 3 nodes" in texts[3]
    assert "nowhere" in texts[4]
    assert "no such generic resource" in texts[5]
    assert "partion" in texts[6]
    assert all(finding.do for finding in findings if not finding.ok)
    with site.silence():
        findings = site.run(examine_slurm(site.build_options(answer_s=HASTY_S), pools))
    assert [finding.ok for finding in findings] == [True, True, False]
    assert count_devices(site, site.build_engine("here")) > 0


def test_before_its_time_limit_an_agent_gets_a_notice(timed_agent):
    site, engine, ask, line, seen = timed_agent
    assert seen.until_s <= ask.until_s
    assert line.wait_for_line() == "SIGUSR1"
    # On a busy machine the other tests may have taken longer than its time.
    line.exit(0)
    over = wait_until_gone(site, engine, ask.id)
    assert over.why in ("it ended with exit code 0", "its time limit ended it")
    assert over.until_s is None
