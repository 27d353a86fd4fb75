"""The store and the scheduler together: requests become a plan, and the plan becomes decisions."""

import msgspec
import pytest

from elastane.cluster.controller.planning import WordedDecision, write_decisions
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store.database import read_change
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.rest import Forecast, Job
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

POOL = {"name": "h100", "device": "h100", "devices": 4}


@pytest.fixture
def planned(store, api_over):
    """Build a cluster with the real scheduler on each database."""
    return api_over(store, plan=plan, explain=explain_decision)


def run_cycle(api):
    """Run one cycle of the loop, without an engine."""
    with api.store.begin_read() as tx:
        taken = take_cluster_snapshot(tx, api.clock())
    teams = {job.name: job.spec.team for job in taken.snapshot.jobs}
    made = plan(taken.snapshot)
    worded = [WordedDecision(decision=one, sentences=explain_decision(one, teams)) for one in made.decisions]
    with api.store.begin_write() as tx:
        write_decisions(tx, worded, at=taken.change, now_s=api.clock())


def test_a_submitted_job_gets_the_workers_that_fit_with_reasons(planned, make_spec):
    operator, ada = planned.user("operator"), planned.user()
    operator.put("/pools/h100", POOL)
    policy = ElasticPolicy(min_replicas=2, max_replicas=8)
    ada.post("/jobs", make_spec(elastic_policy=policy))
    ada.post("/jobs", make_spec("later", elastic_policy=policy))
    run_cycle(planned)
    jobs = [msgspec.json.decode(ada.get(f"/jobs/{name}").content, type=Job) for name in ("train", "later")]
    assert sum(job.workers for job in jobs) <= POOL["devices"]
    assert jobs[0].workers >= 2
    explained = ada.get("/jobs/train/explain").json()
    assert explained["workers"] == jobs[0].workers
    assert explained["decisions"][0]["sentences"]
    assert explained["explanation"]["sentences"]


def test_a_policy_check_predicts_the_plan_of_the_scheduler(planned, make_spec):
    operator, ada = planned.user("operator"), planned.user()
    operator.put("/pools/h100", POOL)
    ada.post("/jobs", make_spec(elastic_policy=ElasticPolicy(min_replicas=2, max_replicas=2)))
    wanted = {"pools": [POOL | {"devices": 1}]}
    foreseen = msgspec.json.decode(operator.post("/policy/check", wanted).content, type=Forecast)
    assert [(one.job, one.before, one.after) for one in foreseen.jobs] == [("train", 2, 0)]
    assert foreseen.jobs[0].sentences


def test_a_cycle_that_changes_nothing_decides_nothing_new(planned, make_spec):
    operator, ada = planned.user("operator"), planned.user()
    operator.put("/pools/h100", POOL)
    ada.post("/jobs", make_spec())
    run_cycle(planned)
    run_cycle(planned)
    before = ada.get("/jobs/train/explain").content
    with planned.store.begin_read() as tx:
        at = read_change(tx)
    run_cycle(planned)
    assert ada.get("/jobs/train/explain").content == before
    with planned.store.begin_read() as tx:
        assert read_change(tx) == at
