"""Jobs on agents: the real store, API, loop, scheduler and fleet, over an engine without machines."""

import asyncio
import contextlib
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from elastane.cli.jobs.describe import list_agent_facts
from elastane.cluster.controller.agents.all_engines import AllEngines
from elastane.cluster.controller.agents.fleet import Fleet
from elastane.cluster.controller.agents.site import Site
from elastane.cluster.controller.agents.stored_agent import StoredAgent
from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.jobs.requests import create_job
from elastane.cluster.controller.store import agent_rows, documents, elastic_job_rows, jobs, tables
from elastane.cluster.controller.store.failures import UnreadableRecord
from elastane.cluster.nouns.agents import SeenNode, StartRefusal
from elastane.cluster.nouns.arrivals import AskAgain, NotWanted
from elastane.cluster.nouns.config import Config, DeclaredEngine, PriorityClass, Team
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.rest import Job
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

from .world import Cluster, World
from .yard import Yard


class YardCluster(Cluster):
    """A cluster with a pool of one engine, which is a yard, and a pool of its own machine."""

    def __init__(self, api, where: Path, **yard) -> None:
        self.yard, self.where = Yard(api, **yard), where
        world = World(where / "local")
        super().__init__(api, world, self.make_engine(api, world))
        config = Config(
            engines=(DeclaredEngine(name="hpc", kind="slurm"),),
            pools=(
                Pool(name="a100", device="a100", devices=4, engine="hpc", options={"partition": "gpu"}),
                Pool(name="local", device="cpu", devices=2),
            ),
            teams=(Team(name="vision"),),
            priorities=(PriorityClass(name="low", value=-10), PriorityClass(name="high", value=10)),
        )
        with api.store.begin_write() as tx:
            changes = diff_configs(documents.read_declared_config(tx), config)
            documents.write_documents(tx, changes, self.clock())

    def declare_container(self) -> None:
        """Let the engine run images."""
        with self.api.store.begin_write() as tx:
            before = documents.read_declared_config(tx)
            able = DeclaredEngine(name="hpc", kind="slurm", options={"container": "apptainer"})
            changes = diff_configs(before, msgspec.structs.replace(before, engines=(able,)))
            documents.write_documents(tx, changes, self.clock())

    def declare_agent_size(self, workers: int) -> None:
        """Let the agents of the pool have up to this many workers."""
        with self.api.store.begin_write() as tx:
            before = documents.read_declared_config(tx)
            pools = tuple(
                msgspec.structs.replace(pool, options=pool.options | {"workersPerAgent": str(workers)})
                if pool.engine
                else pool
                for pool in before.pools
            )
            changes = diff_configs(before, msgspec.structs.replace(before, pools=pools))
            documents.write_documents(tx, changes, self.clock())

    def make_engine(self, api, world):
        self.fleet = Fleet(
            api.store,
            Site(self.where, "http://10.0.0.9:7425"),
            self.open_engine,
            api.clock,
            open_line=self.yard.open_line,
        )
        return AllEngines(world, self.fleet)

    def open_engine(self, document, cluster: str):
        assert cluster, "an engine must tell its agents from those of other clusters"
        return self.yard

    def replace_controller(self) -> None:
        """Begin with another loop, as after the death of a controller."""
        super().__init__(self.api, self.world, self.make_engine(self.api, self.world))

    def submit(self, make_spec, name="train", kind="a100", low=1, high=3, step=None, **more):
        spec = make_spec(
            name=name,
            elastic_policy=ElasticPolicy(
                min_replicas=low,
                max_replicas=high,
                replica_increment_step=step,
                graceful_shutdown_timeout_in_seconds=20,
            ),
            **more,
        )
        spec = type(spec)(
            **{field: getattr(spec, field) for field in spec.__struct_fields__}
            | {"resources_per_worker": type(spec.resources_per_worker)(devices=1, kinds=(kind,))}
        )
        with self.api.store.begin_write() as tx:
            jobs.insert_job(tx, create_job(spec, "ada", self.clock()))
        self.loop._mark_stale()

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.yard.go_on(1.0)
            super().pass_time(1)

    def members(self, name="train") -> int:
        run = self.yard.runs.get(name)
        return 0 if run is None else len(run.members)

    def living(self):
        with self.api.store.begin_read() as tx:
            return agent_rows.list_living_agents(tx)

    def events(self, kind: str, name="train"):
        found = self.api.user("operator").get(f"/jobs/{name}/events").json()["items"]
        return [event["message"] for event in found if event["kind"] == kind]


@pytest.fixture
def make_yard(api_over, sqlite_store, tmp_path):
    api = api_over(sqlite_store, plan=plan, explain=explain_decision, home=tmp_path)
    return lambda **yard: YardCluster(api, tmp_path, **yard)


def test_a_job_in_a_pool_of_an_engine_trains_on_agents(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    job = cluster.job("train")
    assert (job.state, job.grant.workers) == ("running", {"a100": 3})
    assert job.observed.held["a100"].workers == 3
    assert job.run_dir == str(cluster.where / "runs" / "train")
    assert [agent.state for agent in cluster.living()] == ["arrived"] * 3
    assert len(cluster.yard.started) == 3
    assert cluster.world.running == {}


def test_a_job_begins_once_its_fewest_workers_have_arrived(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, low=3)
    cluster.until(lambda: len(cluster.yard.agents) == 3)
    held_up = cluster.yard.agents[cluster.yard.started[2]]
    held_up.wait_s = 30.0
    cluster.pass_time(10)
    assert isinstance(cluster.yard.agents[cluster.yard.started[0]].told, AskAgain)
    assert cluster.members() == 0
    cluster.until(lambda: cluster.members() == 3)


def test_a_job_that_ends_leaves_no_agent(make_yard, make_spec):
    cluster = make_yard(steps=20)
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.job("train").state == "finished")
    cluster.pass_time(5)
    assert cluster.living() == ()
    assert cluster.yard.agents == {}
    assert len(cluster.yard.started) == 3
    with cluster.api.store.begin_read() as tx:
        assert agent_rows.find_agent_run(tx, "train") is None


def test_a_job_of_more_importance_gets_devices_and_the_others_go_on(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, name="old", high=4, priority_class="low")
    cluster.until(lambda: cluster.members("old") == 4)
    first = cluster.yard.runs["old"].number
    cluster.submit(make_spec, name="new", low=2, high=2, priority_class="high")
    cluster.until(lambda: cluster.members("new") == 2)
    cluster.until(lambda: cluster.members("old") == 2)
    assert cluster.yard.runs["old"].number == first
    assert all(end.grace_s > 0 for end in cluster.yard.ended), "every agent left at a commit"
    assert cluster.job("old").observed.held["a100"].workers == 2


def test_a_machine_that_dies_is_replaced_at_once_under_a_new_id(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    cluster.pass_time(60)
    lost = cluster.yard.started[1]
    cluster.yard.lose(lost, "NODE_FAIL")
    cluster.until(lambda: cluster.members() == 3, 10)
    assert cluster.yard.runs["train"].number == 1
    assert len(set(cluster.yard.started)) == 4
    assert cluster.yard.started[3] not in (lost, *cluster.yard.started[:3])


def test_if_all_machines_die_the_next_attempt_begins_on_others(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    for agent in list(cluster.yard.agents):
        cluster.yard.lose(agent, "NODE_FAIL")
    cluster.until(lambda: cluster.members() == 3)
    assert cluster.yard.runs["train"].number == 2
    assert cluster.job("train").crashes == 1
    (message,) = cluster.events("job.crashed")
    assert "without an outcome: NODE_FAIL" in message


@pytest.mark.parametrize("how", ["cancel", "pause"])
def test_a_job_that_people_stop_stops_at_a_commit(make_yard, make_spec, how):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    assert cluster.api.user("operator").post(f"/jobs/train/{how}").is_success
    state = {"cancel": "cancelled", "pause": "paused"}[how]
    cluster.until(lambda: cluster.job("train").state == state)
    assert cluster.yard.runs["train"].outcome.code == 130
    assert cluster.living() == ()
    # No agent was ended before the run had stopped.
    assert cluster.yard.ended == []


def test_a_run_that_cannot_be_stopped_ends_by_notices_and_then_at_the_deadline(make_yard, make_spec):
    cluster = make_yard(leave_s=1e9)
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    cluster.yard.runs["train"].answers = False
    assert cluster.api.user("operator").post("/jobs/train/cancel").is_success
    cluster.until(lambda: cluster.job("train").state == "cancelled")
    assert {end.grace_s > 0 for end in cluster.yard.ended} == {True, False}
    assert cluster.yard.agents == {}


def test_pending_agents_of_a_job_that_is_cancelled_are_withdrawn(make_yard, make_spec):
    cluster = make_yard(wait_s=1e9)
    cluster.submit(make_spec)
    cluster.until(lambda: len(cluster.yard.agents) == 3)
    assert cluster.api.user("operator").post("/jobs/train/cancel").is_success
    cluster.until(lambda: cluster.job("train").state == "cancelled")
    cluster.pass_time(3)
    assert cluster.yard.agents == {}
    assert cluster.living() == ()


def test_an_attempt_that_began_while_engines_were_asked_is_judged_although_its_job_is_cancelled(
    make_yard, make_spec, monkeypatch
):
    cluster = make_yard(leave_s=5.0)
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: cluster.yard.agents)
    shown = cluster.yard.list_agents

    def begin_and_cancel():
        while not cluster.yard.runs:
            cluster.yard.go_on(1.0)
        assert cluster.api.user("operator").post("/jobs/train/cancel").is_success

    async def show():
        answer = await shown()
        if not cluster.yard.runs:
            await asyncio.to_thread(begin_and_cancel)
        return answer

    monkeypatch.setattr(cluster.yard, "list_agents", show)
    cluster.until(lambda: cluster.job("train").has_ended)
    assert (cluster.job("train").state, cluster.job("train").attempts) == ("cancelled", 1)
    assert cluster.yard.runs["train"].outcome is not None
    assert cluster.living() == ()


def test_no_attempt_begins_once_its_job_is_to_end(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: any(agent.state == "running" for agent in cluster.yard.agents.values()))
    assert cluster.api.user("operator").post("/jobs/train/cancel").is_success
    cluster.yard.go_on(1.0)
    assert cluster.members() == 0
    assert all(isinstance(agent.told, NotWanted | None) for agent in cluster.yard.agents.values())


# -- trouble -------------------------------------------------------------------------------------------------


def test_an_engine_that_is_away_ends_and_doubles_nothing(make_yard, make_spec):
    cluster = make_yard()
    cluster.yard.nodes = [SeenNode(name=f"n{number}", pool="a100", devices=1) for number in range(1, 5)]
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    cluster.yard.away = "slurmctld does not answer"
    steps = cluster.yard.runs["train"].steps
    cluster.submit(make_spec, name="other", high=1, low=1)
    cluster.pass_time(300)
    assert cluster.members() == 3
    assert cluster.yard.runs["train"].steps > steps
    assert len(cluster.yard.started) == 3
    cluster.yard.away = ""
    cluster.until(lambda: cluster.members("other") == 1)
    assert cluster.members() == 3


def test_people_see_the_agents_of_a_job_and_read_their_logs(make_yard, make_spec):
    cluster = make_yard(wait_s=4)
    cluster.submit(make_spec, high=2)
    cluster.submit(make_spec, name="other", low=1, high=1)
    cluster.until(lambda: len(cluster.yard.started) == 3)
    read = cluster.api.user("operator").get
    pending, late = find_agents(read)
    assert [agent.state for agent in (pending, late)] == ["pending"] * 2
    cluster.yard.agents[late.id].wait_s = 500.0
    cluster.until(lambda: cluster.members() == 1)
    described = list(list_agent_facts(decode_job(read)))
    assert described == [
        ("agents", f"{pending.id} in a100 on hpc.{find_agents(read)[0].node} takes part"),
        ("", f"{late.id} in a100 on hpc waits in the queue of its engine"),
    ]

    logs = cluster.where / "agents"
    (logs / f"{pending.id}.log").write_text("joining\n")
    assert read("/jobs/train/processes").json()["items"][-1] == pending.id
    assert read(f"/jobs/train/logs?process={pending.id}").text == "joining\n"
    (logs / f"{late.id}.log").symlink_to(__file__)
    for job, process in (("train", late.id), ("other", pending.id)):
        assert read(f"/jobs/{job}/logs?process={process}").status_code == 404


def decode_job(read):
    return msgspec.json.decode(read("/jobs/train").content, type=Job)


def find_agents(read):
    return decode_job(read).agents


def test_the_health_of_the_controller_names_the_engines_that_are_away(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)

    def list_problems():
        return cluster.api.user("operator").get("/health").json().get("problems", [])

    assert list_problems() == []
    cluster.yard.away = "slurmctld does not answer"
    cluster.pass_time(20)
    (problem,) = list_problems()
    assert problem["what"].startswith("engine hpc does not answer, so nothing is started or ended there")
    assert problem["do"] == "elastane doctor hpc"
    cluster.yard.away = ""
    cluster.until(lambda: list_problems() == [])


def test_a_job_of_this_machine_does_not_notice_an_engine_that_is_away(make_yard, make_spec):
    cluster = make_yard()
    cluster.yard.away = "slurmctld does not answer"
    cluster.submit(make_spec, name="here", kind="cpu", high=2)
    cluster.until(lambda: cluster.workers("here") == 2)
    assert cluster.yard.started == []


def test_a_refusal_is_told_and_asked_again_ever_more_rarely(make_yard, make_spec):
    cluster = make_yard()
    cluster.yard.refusal = StartRefusal("Slurm has no partition gpu", for_ever=True)
    cluster.submit(make_spec)
    cluster.pass_time(100)
    (message,) = cluster.events("job.held_up")
    assert "train has devices but cannot start now" in message
    assert "engine hpc: Slurm has no partition gpu" in message
    with cluster.api.store.begin_write() as tx:
        newest = agent_rows.insert_agent(tx, cluster_agent())
    assert newest.number < 30, "no loop of requests"
    cluster.yard.refusal = None
    cluster.until(lambda: cluster.members() == 3)


def cluster_agent():
    return StoredAgent(
        job="none", engine="hpc", pool="a100", workers=1, devices=1, key=b"k" * 16, asked_s=0.0, ended_s=0.0
    )


def test_a_job_that_cannot_begin_fails_with_the_words_of_its_agent(make_yard, make_spec):
    cluster = make_yard()
    cluster.yard.starts_fail = "there is no script /train.py"
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.job("train").state == "failed")
    assert "there is no script /train.py" in cluster.job("train").why
    cluster.pass_time(5)
    assert cluster.living() == ()


def test_agents_that_end_before_they_arrive_are_told_and_replaced_ever_more_rarely(make_yard, make_spec):
    cluster = make_yard(wait_s=1e9)
    cluster.submit(make_spec, high=1)
    for _ in range(100):
        for id_ in list(cluster.yard.agents):
            cluster.yard.lose(id_, "elastane: command not found", 127)
        cluster.pass_time(1)
    assert 2 < len(cluster.yard.started) < 8
    assert "elastane: command not found" in cluster.events("job.held_up")[0]


@pytest.mark.long
def test_an_agent_that_never_starts_is_withdrawn(make_yard, make_spec):
    cluster = make_yard(wait_s=1e9)
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: cluster.yard.agents)
    (first,) = cluster.yard.agents
    # scalingTimeoutInSeconds is 300 s.
    cluster.until(lambda: len(cluster.yard.started) == 2, seconds=900)
    assert first not in cluster.yard.agents
    # The time from its withdrawal until it is gone counts.
    assert sum(row.borrowed_device_s for row in cluster.usage("job")) <= 2
    assert cluster.members() == 0


def test_what_a_container_could_not_start_is_told_in_the_words_of_its_log(make_yard, make_spec):
    cluster = make_yard(wait_s=1e9)
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: cluster.yard.agents)
    (id_,) = cluster.yard.agents
    log = cluster.where / "agents" / f"{id_}.log"
    log.write_text("INFO: Converting image\nFATAL: connection refused\n")
    cluster.yard.lose(id_, "it ended with exit code 255", 255)
    cluster.until(lambda: cluster.events("job.held_up"), 30)
    assert "exit code 255; its log says: FATAL: connection refused" in cluster.events("job.held_up")[0]
    # What the log says is not taken from a link to a file of another user.
    cluster.until(lambda: cluster.yard.agents, 30)
    (id_,) = cluster.yard.agents
    (cluster.where / "agents" / f"{id_}.log").symlink_to(log)
    cluster.yard.lose(id_, "it ended with exit code 1", 1)
    cluster.pass_time(1)
    with cluster.api.store.begin_read() as tx:
        assert "refused" not in agent_rows.find_agent(tx, int(id_.rpartition("-")[2])).why


def test_an_agent_with_another_version_takes_no_part_and_its_job_says_so(make_yard, make_spec):
    own, cluster = version("elastane"), make_yard(wait_s=1.0)
    cluster.declare_container()
    cluster.yard.version = "0.0.9"
    cluster.submit(make_spec, high=1, image="team/train:1")
    cluster.until(lambda: cluster.events("job.held_up"), 30)
    (event,) = cluster.events("job.held_up")
    assert f"the image team/train:1 has Elastane 0.0.9, and the controller has {own}" in event
    assert cluster.members() == 0
    cluster.yard.version = own
    cluster.until(lambda: cluster.members() == 1, 60)
    (agent,) = cluster.yard.agents.values()
    assert (agent.ask.image, agent.ask.home) == ("team/train:1", str(cluster.where))


def test_agents_that_the_store_does_not_know_are_ended_once_they_were_seen_twice(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    with cluster.api.store.begin_write() as tx:
        lost = agent_rows.list_living_agents(tx)[0]
        tx.execute(agent_rows.agents.delete().where(agent_rows.agents.c.number == lost.number))
    cluster.until(lambda: len(cluster.yard.ended) == 1, 5)
    assert cluster.yard.ended[0].grace_s == 0
    cluster.until(lambda: cluster.members() == 3)


def test_a_ticket_admits_one_agent_until_its_end(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: cluster.members() == 1)
    (agent,) = cluster.yard.agents.values()
    id_ = agent.ask.id
    stranger = cluster.api.with_secret("0" * 32)
    assert stranger.post(f"/agents/{id_}/arrival", {}).status_code == 401
    other = id_.rpartition("-")[0] + "-999"
    assert cluster.api.with_secret("0" * 32).post(f"/agents/{other}/arrival", {}).status_code == 401
    cluster.yard.lose(id_)
    cluster.pass_time(2)
    assert cluster.yard._send(agent, "arrival", host="n1", version="0").status_code == 401


def test_a_ticket_that_is_used_twice_serves_the_first_process_only(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: cluster.members() == 1)
    (agent,) = cluster.yard.agents.values()
    own = version("elastane")
    for what, body in (("arrival", {"host": "n9", "version": own}), ("departure", {"code": 2, "why": "x"})):
        refused = cluster.yard._send(agent, what, process="another", **body)
        assert refused.status_code == 409
        assert f"another process has arrived with this ticket on {agent.node}" in refused.text
    (stored,) = cluster.living()
    assert (stored.node, stored.exit_code, stored.why) == (agent.node, None, "")
    # The first one may ask as often as it likes.
    assert cluster.yard._send(agent, "arrival", host=agent.node, version=own).json()["type"] == "begin"


def test_a_ticket_of_a_job_that_has_ended_is_not_wanted(make_yard, make_spec):
    cluster = make_yard(wait_s=5.0)
    cluster.submit(make_spec, high=1)
    cluster.until(lambda: len(cluster.yard.agents) == 1)
    (agent,) = cluster.yard.agents.values()
    cluster.yard.away = "scancel does not reach it"
    assert cluster.api.user("operator").post("/jobs/train/cancel").is_success
    cluster.until(lambda: cluster.job("train").state == "cancelled")
    cluster.until(lambda: agent.told is not None)
    assert isinstance(agent.told, NotWanted)


def test_a_machine_that_its_engine_lists_no_more_keeps_its_agents_and_gets_no_other(make_yard, make_spec):
    cluster = make_yard()
    cluster.yard.nodes = [SeenNode(name=f"n{number}", pool="a100", devices=1) for number in range(1, 4)]
    cluster.submit(make_spec)
    cluster.until(lambda: cluster.members() == 3)
    cluster.yard.nodes = cluster.yard.nodes[:1]
    cluster.pass_time(60)
    assert cluster.members() == 3
    cluster.yard.lose(cluster.yard.started[2])
    cluster.until(lambda: cluster.job("train").grant.workers == {"a100": 2})
    cluster.pass_time(60)
    # One more was asked for before the nodes were looked at again.
    assert set(cluster.yard.agents) == set(cluster.yard.started[:2])
    devices = {
        node["name"]: node["devices"] for node in cluster.api.user("operator").get("/nodes").json()["items"]
    }
    assert devices == {"hpc.n1": 1, "hpc.n2": 1, "hpc.n3": 0}


# -- controllers that die -----------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
def test_controllers_that_die_all_the_time_lose_and_double_no_agent(make_yard, make_spec, every):
    cluster = make_yard(steps=60)
    cluster.submit(make_spec)
    for _ in range(400):
        cluster.pass_time(every)
        cluster.replace_controller()
        if cluster.job("train").state == "finished":
            break
        assert len(cluster.yard.agents) <= 3
    assert cluster.job("train").state == "finished"
    assert len(cluster.yard.started) == 3
    assert cluster.yard.runs["train"].number == 1
    cluster.pass_time(10)
    assert cluster.yard.agents == {}


def test_a_controller_that_died_before_it_asked_asks_again_by_the_same_id(make_yard, make_spec):
    cluster = make_yard()

    async def die(*_):
        raise KeyboardInterrupt

    cluster.submit(make_spec, high=1)
    asked, cluster.yard.start_agents = cluster.yard.start_agents, die
    with pytest.raises(KeyboardInterrupt):
        cluster.pass_time(3)
    cluster.yard.start_agents = asked
    (before,) = cluster.living()
    cluster.replace_controller()
    cluster.until(lambda: cluster.members() == 1)
    (after,) = cluster.living()
    assert after.number == before.number


# -- nodes ---------------------------------------------------------------------------------------------------


def test_a_pool_has_the_devices_of_its_nodes_and_a_drained_node_is_left(make_yard, make_spec):
    cluster = make_yard()
    cluster.yard.nodes = [SeenNode(name=f"n{number}", pool="a100", devices=1) for number in range(1, 4)]
    cluster.submit(make_spec, high=4)
    cluster.until(lambda: cluster.members() == 3)
    names = [node["name"] for node in cluster.api.user("operator").get("/nodes").json()["items"]]
    assert names == ["hpc.n1", "hpc.n2", "hpc.n3"]
    assert cluster.api.user("operator").post("/nodes/hpc.n2/drain", {"why": "new disk"}).is_success
    cluster.until(lambda: cluster.members() == 2)
    assert {agent.node for agent in cluster.living()} == {"n1", "n3"}


def test_no_agent_is_started_as_root_for_a_team_with_a_user_of_its_own(make_yard, make_spec):
    cluster = make_yard()
    cluster.fleet._site = msgspec.structs.replace(cluster.fleet._site, isolates=True)
    cluster.submit(make_spec)
    cluster.pass_time(5)
    assert cluster.yard.started == []
    assert "engine hpc: it would run the job as root" in cluster.events("job.held_up")[0]


@pytest.mark.parametrize(("kind", "name"), [("pools", "a100"), ("engines", "hpc")])
def test_a_record_that_cannot_be_read_ends_no_agent_and_starts_no_job_in_the_wrong_place(
    make_yard, make_spec, kind, name
):
    cluster = make_yard()
    cluster.submit(make_spec)
    cluster.submit(make_spec, name="here", kind="cpu", high=2)
    cluster.until(lambda: cluster.members() == 3 and cluster.workers("here") == 2)
    damage(cluster, kind, name, "{")
    steps = cluster.yard.runs["train"].steps
    for _ in range(20):
        # Nothing is decided without the record; that is reported, and jobs go on.
        with contextlib.suppress(UnreadableRecord):
            cluster.pass_time(1)
    assert (cluster.members(), cluster.workers("here")) == (3, 2)
    assert cluster.yard.runs["train"].steps > steps
    # The whole run dies. Its next attempt waits for the record.
    for agent in list(cluster.yard.agents):
        cluster.yard.lose(agent, "NODE_FAIL")
    for _ in range(90):
        with contextlib.suppress(UnreadableRecord):
            cluster.pass_time(1)
    assert cluster.world.running.keys() == {"here"}


def damage(cluster, kind: str, name: str, body: str) -> None:
    with cluster.api.store.begin_write() as tx:
        here = (tables.documents.c.kind == kind) & (tables.documents.c.name == name)
        tx.execute(tables.documents.update().where(here).values(body=body))


def test_agents_in_the_queue_of_their_engine_cost_nothing(make_yard, make_spec):
    cluster = make_yard(wait_s=50.0)
    cluster.submit(make_spec)
    cluster.pass_time(40)
    assert cluster.usage("job") == ()
    cluster.until(lambda: cluster.members() == 3)
    began_s = cluster.clock()
    cluster.pass_time(60)
    (row,) = cluster.usage("job")
    used_s = row.owned_device_s + row.borrowed_device_s
    assert used_s == pytest.approx(3 * (cluster.clock() - began_s), abs=12)


def test_an_unmodified_script_with_several_workers_does_not_begin_on_several_machines(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, contract="torchrun", high=2)
    cluster.submit(make_spec, name="alone", contract="torchrun", high=1)
    cluster.until(lambda: cluster.members("alone") == 1)
    cluster.pass_time(5)
    assert cluster.job("train").state == "queued"
    told = cluster.api.user("operator").get("/jobs/train/explain").json()["explanation"]["sentences"]
    assert (
        "no pool of the controller's machine has what one of its workers asks for" in " ".join(told).lower()
    )


def test_a_job_with_sizes_in_steps_has_agents_of_several_workers(make_yard, make_spec):
    cluster = make_yard()
    cluster.declare_agent_size(2)
    cluster.submit(make_spec, low=2, high=4, step=2)
    cluster.until(lambda: cluster.job("train").observed.held and cluster.members() == 2)
    assert [(agent.workers, agent.devices) for agent in cluster.living()] == [(2, 2), (2, 2)]
    cluster.until(lambda: cluster.job("train").observed.held["a100"].workers == 4)
    assert [ask.devices for ask in (agent.ask for agent in cluster.yard.agents.values())] == [2, 2]
    # The other job gets two devices: one agent of this job leaves, and none is divided.
    cluster.submit(make_spec, name="urgent", priority_class="high", low=2, high=2)
    cluster.until(lambda: cluster.members("urgent") == 1)
    assert cluster.members() == 1
    assert len(cluster.yard.started) == 3
    assert cluster.job("train").grant.workers == {"a100": 2}
    ((_, words),) = list_agent_facts(decode_job(cluster.api.user("operator").get))
    assert " with 2 workers in a100 on hpc." in words


def test_each_agent_of_an_elastic_job_has_one_worker(make_yard, make_spec):
    """The template of the resource says what the pod of one worker gets."""
    cluster = make_yard()
    cluster.declare_agent_size(2)
    resource = StoredElasticJob(
        uid="1", engine="hpc", place="api/train", name="train", job="train", generation=1
    )
    with cluster.api.store.begin_write() as tx:
        elastic_job_rows.insert_elastic_job(tx, resource, {"template": "{}"})
    cluster.submit(make_spec, low=2, high=2)
    cluster.until(lambda: cluster.members() == 2)
    assert [agent.workers for agent in cluster.living()] == [1, 1]


def test_an_unmodified_script_has_all_its_workers_in_one_agent(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, contract="torchrun", low=2, high=2)
    cluster.pass_time(3)
    assert cluster.job("train").state == "queued"
    cluster.declare_agent_size(4)
    cluster.submit(make_spec, name="elastic", contract="torchrun", low=1, high=2)
    cluster.until(lambda: cluster.members() == 1)
    cluster.until(lambda: cluster.job("train").state == "running")
    assert [(agent.job, agent.workers) for agent in cluster.living()] == [("train", 2)]
    # The size of an agent cannot change, so one of a job that could grow has no place there.
    assert cluster.job("elastic").state == "queued"


def test_agents_that_die_soon_after_they_join_are_replaced_ever_more_rarely(make_yard, make_spec):
    cluster = make_yard()
    cluster.submit(make_spec, high=2)
    cluster.until(lambda: cluster.members() == 2)
    for _ in range(120):
        run = cluster.yard.runs["train"]
        for id_ in [id_ for id_ in run.members if cluster.yard.started.index(id_)]:
            cluster.yard.lose(id_, "OUT_OF_MEMORY")
        cluster.pass_time(1)
    assert 4 < len(cluster.yard.started) < 12
    assert cluster.yard.runs["train"].number == 1
