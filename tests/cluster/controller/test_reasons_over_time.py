"""The reasons of jobs that wait, pause, are limited from outside or share a noisy machine."""

import pytest

from elastane.cluster.nouns.jobs import ElasticPolicy

from .conftest import spec

MINUTE_S = 60
USUAL_NOISE = {(5, 1.5), (65, 4.0), (130, 30.0)}
"""Seconds after a growth and slowness of the workers; the other combinations are long."""


def job(name, least=1, most=1, **kwargs):
    return spec(name, elastic_policy=ElasticPolicy(min_replicas=least, max_replicas=most), **kwargs)


@pytest.fixture
def operator(cluster):
    operator = cluster.api.user("operator", user="olga")
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 4})
    operator.put("/priorities/high", {"name": "high", "value": 100})
    operator.put("/priorities/low", {"name": "low", "value": -100})
    return operator


@pytest.fixture
def ada(cluster, operator):
    return cluster.api.user(team="*")


def explained(user, name):
    return user.get(f"/jobs/{name}/explain").json()


def told(user, name):
    return " ".join(explained(user, name)["explanation"]["sentences"])


def test_a_job_that_waits_for_a_protected_one_starts_at_the_named_time(cluster, ada):
    ada.post("/jobs", job("n1", 4, 4, priority_class="low"))
    cluster.until(lambda: cluster.workers("n1") == 4)
    began_s = cluster.state("n1").started_s
    ada.post("/jobs", job("prod", 2, 2, priority_class="high"))
    cluster.pass_time(15)
    assert "n1 is protected, because it was started a moment ago" in told(ada, "prod")
    assert "prod may take 2 devices of local" in told(ada, "prod")
    cluster.until(lambda: cluster.workers("prod") == 2)
    assert began_s + 300 <= cluster.clock() <= began_s + 340


def test_a_list_of_jobs_says_what_decides_next_and_what_changes_it(cluster, ada):
    ada.post("/jobs", job("full", 3, 3))
    ada.post("/jobs", job("waits", 2, 2))
    cluster.until(lambda: cluster.workers("full") == 3)
    cluster.pass_time(15)

    def read_rows():
        return {row["name"]: row["nextDecision"] for row in ada.get("/jobs").json()["items"]}

    assert read_rows()["waits"].endswith("This changes when 1 more device of local becomes free.")
    assert not read_rows()["waits"].startswith("waits waits.")
    assert "maxReplicas" in read_rows()["full"]
    ada.post("/jobs/waits/cancel")
    cluster.pass_time(15)
    assert read_rows()["waits"] == ""


def test_a_pause_does_not_count_as_a_preemption(cluster, ada):
    ada.post("/jobs", job("train"))
    cluster.until(lambda: cluster.workers("train") == 1)
    ada.post("/jobs/train/pause")
    cluster.until(lambda: cluster.job("train").state == "paused")
    assert [one["action"] for one in explained(ada, "train")["decisions"]] == ["stop", "start"]
    assert "It is paused." in told(ada, "train")
    kinds = [one["kind"] for one in ada.get("/jobs/train/events").json()["items"]]
    assert "job.preempted" not in kinds
    assert cluster.job("train").preemptions == 0


def test_a_job_that_is_stopped_for_another_counts_as_preempted(cluster, ada):
    ada.post("/jobs", job("n1", 4, 4, priority_class="low"))
    cluster.until(lambda: cluster.workers("n1") == 4)
    cluster.pass_time(300)
    ada.post("/jobs", job("prod", 2, 2, priority_class="high"))
    cluster.until(lambda: cluster.workers("prod") == 2)
    assert explained(ada, "n1")["decisions"][0]["action"] == "preempt"


def test_jobs_that_shrink_or_wait_because_of_a_trigger_name_it(cluster, operator, ada):
    trigger = {"name": "busy", "metric": "qps", "above": 100, "pool": "local", "limit": 2}
    operator.put("/triggers/busy", trigger)
    ada.post("/jobs", job("train", 1, 4))
    cluster.until(lambda: cluster.workers("train") == 4)
    cluster.api.user("reporter").post("/reports", {"kind": "metric", "metric": "qps", "value": 150})
    cluster.until(lambda: cluster.workers("train") == 2)
    shrunk = next(one for one in explained(ada, "train")["decisions"] if one["action"] == "shrink")
    assert "the trigger busy (qps above 100) leaves jobs 2 devices of local" in " ".join(shrunk["sentences"])
    ada.post("/jobs", job("large", 4, 4))
    cluster.pass_time(15)
    assert "trigger busy" in told(ada, "large")


@pytest.mark.parametrize(
    ("after_s", "slower"),
    [
        pytest.param(after_s, slower, marks=() if (after_s, slower) in USUAL_NOISE else pytest.mark.long)
        for after_s in (5, 65, 130, 600)
        for slower in (1.5, 4.0, 30.0)
    ],
)
def test_one_noisy_minute_shrinks_no_job(cluster, ada, after_s, slower):
    ada.post("/jobs", job("train", 1, 2))
    operator = cluster.api.user("operator")
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 1})
    cluster.until(lambda: cluster.workers("train") == 1)
    cluster.pass_time(150)
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 4})
    cluster.until(lambda: cluster.workers("train") == 2)
    cluster.pass_time(after_s)
    run = cluster.world.running["train"]
    run.slowed = {1: slower, 2: slower}
    for _ in range(MINUTE_S):
        cluster.pass_time(1)
        assert run.target == 2
    run.slowed = {}
    for _ in range(5 * MINUTE_S):
        cluster.pass_time(1)
        assert run.target == 2


def test_a_worker_that_adds_no_speed_is_given_back_within_minutes(cluster, ada):
    operator = cluster.api.user("operator")
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 1})
    ada.post("/jobs", job("train", 1, 2))
    cluster.until(lambda: cluster.workers("train") == 1)
    cluster.pass_time(150)
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": 4})
    cluster.until(lambda: cluster.workers("train") == 2)
    cluster.pass_time(400)
    run = cluster.world.running["train"]
    run.slowed = {2: 2.5}
    cluster.until(lambda: run.target == 1, 5 * MINUTE_S)
