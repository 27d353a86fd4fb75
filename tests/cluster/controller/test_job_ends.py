"""The rules of a job that end it, from the spec to the engine and back."""

import pytest

from elastane.cluster.controller.jobs.explanation import explain_size
from elastane.cluster.nouns.engine import KillAttempt, StopAttempt
from elastane.cluster.nouns.jobs import ElasticPolicy, JobTarget, RunPolicy

POOL = {"name": "h100", "device": "h100", "devices": 8}


@pytest.fixture
def cluster(cluster_over, store):
    """Build a cluster on each kind of database, because ends are computed from stored values."""
    return cluster_over(store)


@pytest.fixture
def operator(cluster):
    operator = cluster.api.user("operator", user="olga")
    operator.put("/pools/h100", POOL)
    return operator


@pytest.fixture
def ada(cluster, operator):
    return cluster.api.user()


def spec(make_spec, name="train", least=2, most=2, **kwargs):
    return make_spec(name, elastic_policy=ElasticPolicy(min_replicas=least, max_replicas=most), **kwargs)


def events(ada, job):
    return [(one["kind"], one["message"]) for one in ada.get(f"/jobs/{job}/events").json()["items"]]


def ended(cluster, name):
    return cluster.job(name).state in ("finished", "failed", "cancelled")


def test_a_job_that_reaches_its_time_limit_is_stopped_and_fails(cluster, ada, make_spec):
    ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(active_deadline_seconds=60)))
    cluster.until(lambda: ended(cluster, "train"))
    job = cluster.job("train")
    assert job.state == "failed"
    assert job.why == "DeadlineExceeded: it has run for 60 s, as long as activeDeadlineSeconds allows"
    assert 60 <= job.active_s <= 65
    assert [
        type(order) for order in cluster.world.orders if isinstance(order, StopAttempt | KillAttempt)
    ] == [StopAttempt]
    assert cluster.world.running["train"].saved_s is not None
    told = ada.get("/jobs/train/explain").json()
    assert "It has run for as long as activeDeadlineSeconds allows." in told["decisions"][0]["sentences"]
    assert told["explanation"] == {"sentences": [f"It has failed: {job.why}."], "decidedS": job.ended_s}
    assert list(explain_size(job).sentences) == told["explanation"]["sentences"]
    assert [kind for kind, _ in events(ada, "train")][-2:] == ["job.stopping", "job.failed"]
    assert cluster.uses() == {}


def test_time_without_devices_does_not_count_towards_the_limit(cluster, ada, make_spec):
    ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(active_deadline_seconds=100)))
    cluster.pass_time(40)
    ada.post("/jobs/train/pause")
    cluster.pass_time(150)
    assert cluster.job("train").state == "paused"
    ada.post("/jobs/train/resume")
    cluster.pass_time(40)
    assert cluster.job("train").state == "running"
    cluster.until(lambda: ended(cluster, "train"))
    assert cluster.job("train").state == "failed"
    assert 100 <= cluster.job("train").active_s <= 105


def test_a_job_that_reaches_its_target_loss_is_stopped_with_a_checkpoint_and_finishes(
    cluster, ada, make_spec
):
    ada.post("/jobs", spec(make_spec, target=JobTarget(loss=0.5)))
    cluster.until(lambda: ended(cluster, "train"))
    job, there = cluster.job("train"), cluster.world.running["train"]
    assert job.state == "finished"
    assert job.why.startswith("its loss, 0.4")
    assert job.why.endswith(" over 20 steps, has reached its target of 0.5")
    assert there.saved_s is not None
    assert there.begun == [1]
    # Two steps of 1 % a second, seen every second: it stops soon after, not at the end of time.
    assert there.loss(there.step) > 0.5 * 0.99**40


def test_a_job_that_makes_all_its_steps_first_finishes(cluster, ada, make_spec):
    cluster.world.habits["train"] = {"steps": 100}
    ada.post("/jobs", spec(make_spec, target=JobTarget(loss=0.5)))
    cluster.until(lambda: ended(cluster, "train"))
    assert (cluster.job("train").state, cluster.job("train").why) == ("finished", "all 100 steps are made")


def test_one_low_loss_does_not_reach_the_target(cluster, ada, make_spec):
    cluster.world.habits["train"] = {"decay": 1.0}
    ada.post("/jobs", spec(make_spec, target=JobTarget(loss=1.0)))
    cluster.pass_time(30)
    there = cluster.world.running["train"]
    lucky = there.step + 3
    there.loss = lambda step: 0.1 if step == lucky else 2.0
    cluster.pass_time(30)
    assert there.step > lucky
    assert cluster.job("train").state == "running"


def test_an_ending_job_can_be_cancelled_but_not_paused(cluster, ada, make_spec):
    cluster.world.habits["train"] = {"leave_s": 1.0}
    ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(active_deadline_seconds=20)))
    cluster.until(lambda: cluster.job("train").wanted == "fail")
    ada.post("/jobs/train/pause")
    ada.post("/jobs/train/resume")
    assert cluster.job("train").wanted == "fail"
    ada.post("/jobs/train/cancel")
    cluster.until(lambda: ended(cluster, "train"))
    assert cluster.job("train").state == "cancelled"


def test_the_reason_of_an_end_tells_that_the_job_was_killed(cluster, ada, make_spec):
    ada.post("/jobs", spec(make_spec, target=JobTarget(loss=0.5)))
    cluster.until(lambda: cluster.job("train").wanted == "finish")
    cluster.world.running["train"].end(None)
    cluster.until(lambda: ended(cluster, "train"))
    job = cluster.job("train")
    assert job.state == "finished"
    assert job.why.endswith("its last attempt did not stop cleanly: its agent has ended without an outcome")


def test_a_job_that_is_due_to_end_while_the_controller_is_away_ends_at_its_next_cycle(
    cluster, ada, make_spec
):
    ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(active_deadline_seconds=30)))
    cluster.pass_time(5)
    cluster.clock.now_s += 1000
    cluster.run_cycle()
    assert cluster.job("train").wanted == "fail"


class TestForgetting:
    def test_a_job_is_forgotten_at_its_time_and_not_before(self, cluster, ada, make_spec):
        cluster.world.habits["train"] = {"steps": 20}
        ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(ttl_seconds_after_finished=300)))
        ada.post("/jobs", spec(make_spec, "kept"))
        cluster.until(lambda: ended(cluster, "train"))
        cluster.pass_time(290)
        assert ada.get("/jobs/train").status_code == 200
        cluster.pass_time(30)
        assert ada.get("/jobs/train").status_code == 404
        assert [job["name"] for job in ada.get("/jobs").json()["items"]] == ["kept"]
        assert ada.get("/jobs/train/events").status_code == 404
        assert events(ada, "kept")

    def test_the_usage_and_the_audit_lines_of_a_forgotten_job_stay(self, cluster, ada, make_spec):
        cluster.counts_devices = True
        cluster.world.habits["train"] = {"steps": 20}
        ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(ttl_seconds_after_finished=0)))
        cluster.until(lambda: ada.get("/jobs/train").status_code == 404)
        (row,) = cluster.usage("job")
        assert row.job == "train"
        assert row.borrowed_device_s == cluster.held["train", "h100"]
        lines = cluster.api.user("operator").get("/audit").json()["items"]
        assert ("job.submit", "job train") in [(one["action"], one["target"]) for one in lines]

    def test_the_name_of_a_forgotten_job_is_taken_while_its_files_exist(self, cluster, ada, make_spec):
        cluster.world.habits["train"] = {"steps": 20}
        ada.post("/jobs", spec(make_spec, run_policy=RunPolicy(ttl_seconds_after_finished=0)))
        cluster.until(lambda: ada.get("/jobs/train").status_code == 404)
        assert (cluster.world.where / "train").is_dir()
        refused = ada.post("/jobs", spec(make_spec))
        assert (refused.status_code, refused.json()["detail"]) == (409, "the name 'train' is taken")
        (cluster.world.where / "train").rmdir()
        assert ada.post("/jobs", spec(make_spec)).status_code == 201

    def test_a_cancelled_job_that_never_began_is_forgotten_with_its_name(self, cluster, ada, make_spec):
        policy = RunPolicy(suspend=True, ttl_seconds_after_finished=10)
        ada.post("/jobs", spec(make_spec, run_policy=policy))
        ada.post("/jobs/train/cancel")
        cluster.pass_time(30)
        assert ada.get("/jobs/train").status_code == 404
        assert ada.post("/jobs", spec(make_spec)).status_code == 201
