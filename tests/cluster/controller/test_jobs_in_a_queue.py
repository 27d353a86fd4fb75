"""Jobs in a pool with a queue: the real store, API, loop and fleet, over a yard that admits as Kueue does."""

import msgspec
import pytest

from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.store import documents
from elastane.cluster.nouns.agents import AgentAsk, SeenAgent
from elastane.cluster.nouns.config import Config, DeclaredEngine, Team
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

from .test_jobs_on_agents import YardCluster
from .yard import Yard


class QueueYard(Yard):
    """A yard with a queue.

    Attributes:
        quota: devices.
    """

    quota = 6

    def __init__(self, api, **yard) -> None:
        super().__init__(api, **yard)
        self.admitted: set[str | int] = set()
        """Numbers of gangs, and ids of agents that are in none."""
        self.asks: dict[str, AgentAsk] = {}

    async def start_agents(self, asks):
        for ask in asks:
            self.asks.setdefault(ask.id, ask)
        refused = await super().start_agents(asks)
        for gang in {ask.gang for ask in asks if ask.gang}:
            # Kueue would delete one more.
            assert len(self.list_members(gang.number)) + self.count_succeeded(gang.number) <= gang.size
        return refused

    def lose(self, id_: str, why: str = "", code: int | None = None) -> None:
        super().lose(id_, why, code)
        self.gone[id_] = msgspec.structs.replace(self.gone[id_], is_replaceable=code != 0)

    def list_members(self, gang: int) -> list[str]:
        return [id_ for id_, agent in self.agents.items() if agent.ask.gang and agent.ask.gang.number == gang]

    def count_succeeded(self, gang: int) -> int:
        ended = (
            seen for id_, seen in self.gone.items() if (one := self.asks[id_].gang) and one.number == gang
        )
        return sum(1 for seen in ended if seen.exit_code == 0)

    def count_used(self) -> int:
        """Return the devices of the quota that are held."""
        self.admitted = {key for key in self.admitted if key in self.agents or self.list_members(key)}
        return sum(self.measure(key) for key in self.admitted)

    def measure(self, key: str | int) -> int:
        if isinstance(key, str):
            return 1
        size = next(ask.gang.size for ask in self.asks.values() if ask.gang and ask.gang.number == key)
        return size - self.count_succeeded(key)

    def go_on(self, seconds: float) -> None:
        waiting: dict[str | int, int] = {}
        for id_, agent in self.agents.items():
            if agent.state == "pending":
                gang = agent.ask.gang
                waiting[gang.number if gang else id_] = gang.size if gang else 1
        # Gangs have the higher priority.
        for key in sorted(waiting.keys() - self.admitted, key=lambda key: (isinstance(key, str), str(key))):
            is_whole = isinstance(key, str) or len(self.list_members(key)) == waiting[key]
            if is_whole and self.count_used() + self.measure(key) <= self.quota:
                self.admitted.add(key)
        for id_, agent in self.agents.items():
            if (agent.ask.gang.number if agent.ask.gang else id_) not in self.admitted:
                agent.wait_s = self.wait_s + seconds
        super().go_on(seconds)
        self.count_used()


class QueueCluster(YardCluster):
    """A cluster with a pool that has a queue."""

    def __init__(self, api, where, **yard) -> None:
        super().__init__(api, where, **yard)
        self.yard = QueueYard(api, **yard)
        config = Config(
            engines=(DeclaredEngine(name="east", kind="kubernetes"),),
            pools=(Pool(name="a100", device="a100", devices=8, engine="east", options={"queue": "team-a"}),),
            teams=(Team(name="vision"),),
        )
        with api.store.begin_write() as tx:
            changes = diff_configs(documents.read_declared_config(tx), config)
            documents.write_documents(tx, changes, self.clock())
        self.replace_controller()

    def gangs(self) -> list[tuple[int, int]]:
        """Return the gang of each agent that is wanted and its size, the oldest agent first."""
        return [(agent.gang, agent.gang_size) for agent in self.living() if agent.is_wanted]

    def find(self, gang: bool) -> str:
        """Return the id of the newest agent that is in a gang, or in none."""
        return next(
            id_ for id_, one in reversed(self.yard.agents.items()) if (one.ask.gang is not None) == gang
        )


@pytest.fixture
def cluster(api_over, sqlite_store, tmp_path):
    return QueueCluster(api_over(sqlite_store, plan=plan, explain=explain_decision, home=tmp_path), tmp_path)


def test_a_job_without_quota_for_its_fewest_workers_holds_nothing(cluster, make_spec):
    cluster.yard.quota = 1
    cluster.submit(make_spec, low=2, high=4)
    cluster.until(lambda: len(cluster.yard.agents) == 2)
    cluster.pass_time(30)
    assert len(cluster.yard.started) == 2, "growth does not take the quota that the gang waits for"
    assert {agent.state for agent in cluster.yard.agents.values()} == {"pending"}
    assert cluster.yard.count_used() == 0
    cluster.submit(make_spec, name="small", low=1, high=1)
    cluster.until(lambda: cluster.members("small") == 1)
    cluster.yard.quota = 3
    cluster.until(lambda: cluster.members() == 2)


def test_a_job_that_waits_too_long_gives_its_place_up_and_asks_again_now_and_then(cluster, make_spec):
    cluster.yard.quota = 0
    cluster.submit(make_spec, low=2, high=2)
    cluster.until(lambda: len(cluster.yard.agents) == 2)
    (before,) = set(cluster.gangs())
    # scalingTimeoutInSeconds is 300 s.
    cluster.until(lambda: set(cluster.gangs()) - {before}, seconds=900)
    assert len(cluster.yard.started) == 4
    cluster.yard.quota = 2
    cluster.until(lambda: cluster.members() == 2)


def test_a_job_grows_into_quota_that_is_idle(cluster, make_spec):
    cluster.yard.quota = 3
    cluster.submit(make_spec, low=2, high=4)
    cluster.until(lambda: cluster.members() == 3)
    first = cluster.living()[0].number
    assert cluster.gangs() == [(first, 2), (first, 2), (0, 0), (0, 0)]
    cluster.yard.quota = 4
    cluster.until(lambda: cluster.members() == 4)


def test_deaths_are_replaced_within_the_gang_and_peaceful_ends_are_not(cluster, make_spec):
    cluster.submit(make_spec, low=3, high=4)
    cluster.until(lambda: cluster.members() == 4)
    cluster.pass_time(60)
    first = cluster.living()[0].number
    cluster.yard.lose(cluster.find(gang=True), "OOMKilled", 137)
    cluster.until(lambda: cluster.members() == 4)
    assert sorted(cluster.gangs()) == [(0, 0), (first, 3), (first, 3), (first, 3)]
    assert cluster.yard.count_used() == 4
    # A preemption, or a drain by kubectl.
    member = cluster.find(gang=True)
    cluster.yard.agents[member].leave_s = 1.0
    cluster.until(lambda: member not in cluster.yard.agents and cluster.members() == 4)
    (last,) = {gang for gang in cluster.gangs() if gang not in ((0, 0), (first, 3))}
    assert last[1] == 1
    assert cluster.yard.count_used() == 4
    # Another controller decides the same from the store.
    cluster.replace_controller()
    cluster.yard.lose(cluster.find(gang=False), "Preempted", 143)
    cluster.until(lambda: cluster.members() == 4)
    assert cluster.gangs().count((0, 0)) == 1


def test_a_job_that_lost_all_its_agents_resumes_with_a_new_gang(cluster, make_spec):
    cluster.submit(make_spec, low=2, high=2)
    cluster.until(lambda: cluster.members() == 2)
    (before,) = set(cluster.gangs())
    for id_ in list(cluster.yard.agents):
        cluster.yard.lose(id_, "NodeLost")
    cluster.until(lambda: len(cluster.gangs()) == 2 and cluster.members() == 2)
    (after,) = set(cluster.gangs())
    assert after[0] > before[0]
    assert after[1] == before[1] == 2
    assert cluster.yard.count_used() == 2


def test_a_minimum_that_rises_counts_for_the_workers_that_come_later(cluster, make_spec):
    cluster.submit(make_spec, low=1, high=2)
    cluster.until(lambda: cluster.members() == 2)
    first = cluster.living()[0].number
    # It trained with a small minimum, so nothing keeps it from growing beyond.
    answer = cluster.api.user("operator").post("/jobs/train/scale", {"minReplicas": 3, "maxReplicas": 4})
    assert answer.is_success, answer.text
    cluster.until(lambda: cluster.members() == 4)
    gangs = cluster.gangs()
    assert gangs[0] == (first, 1)
    assert gangs[1] == (0, 0)
    assert [size for _, size in gangs[2:]] == [2, 2]


def test_a_minimum_that_rises_while_a_gang_waits_makes_one_new_gang(cluster, make_spec):
    cluster.yard.quota = 2
    cluster.submit(make_spec, low=3, high=4)
    cluster.until(lambda: len(cluster.yard.agents) == 3)
    (before,) = set(cluster.gangs())
    answer = cluster.api.user("operator").post("/jobs/train/scale", {"minReplicas": 4, "maxReplicas": 4})
    assert answer.is_success, answer.text
    cluster.until(lambda: cluster.gangs().count(before) == 0 and len(cluster.gangs()) == 4)
    cluster.pass_time(30)
    ((_, size),) = set(cluster.gangs())
    assert size == 4
    assert len(cluster.yard.started) == 7
    # And one that sinks.
    answer = cluster.api.user("operator").post("/jobs/train/scale", {"minReplicas": 2, "maxReplicas": 2})
    assert answer.is_success, answer.text
    cluster.until(lambda: cluster.members() == 2)
    ((_, size),) = set(cluster.gangs())
    assert size == 2
    assert len(cluster.yard.started) == 9


def test_a_shrink_frees_quota_for_the_next_gang_in_the_queue(cluster, make_spec):
    cluster.yard.quota = 4
    cluster.submit(make_spec, low=2, high=4)
    cluster.until(lambda: cluster.members() == 4)
    cluster.submit(make_spec, name="next", low=2, high=2)
    cluster.until(lambda: len(cluster.yard.agents) == 6)
    cluster.pass_time(10)
    assert (cluster.members("next"), cluster.yard.count_used()) == (0, 4)
    answer = cluster.api.user("operator").post("/jobs/train/scale", {"minReplicas": 2, "maxReplicas": 2})
    assert answer.is_success, answer.text
    cluster.until(lambda: cluster.members("next") == 2)
    assert cluster.members() == 2
    assert cluster.yard.count_used() == 4


def test_the_end_of_a_job_frees_its_quota(cluster, make_spec):
    cluster.yard.steps = 40
    cluster.submit(make_spec, low=2, high=3)
    cluster.until(lambda: cluster.job("train").state == "finished")
    cluster.pass_time(5)
    assert cluster.living() == ()
    assert cluster.yard.count_used() == 0


def test_agents_that_wait_in_the_queue_say_so(cluster, make_spec, monkeypatch):
    cluster.yard.quota = 0
    cluster.submit(make_spec, low=1, high=1)
    cluster.until(lambda: len(cluster.yard.agents) == 1)

    async def list_agents():
        return [
            SeenAgent(id=id_, state="pending", why="it waits in queue team-a of Kueue")
            for id_ in cluster.yard.agents
        ]

    monkeypatch.setattr(cluster.yard, "list_agents", list_agents)
    cluster.pass_time(2)
    assert [agent.why for agent in cluster.living()] == ["it waits in queue team-a of Kueue"]
