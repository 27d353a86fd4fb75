"""The devices of workers that do not arrive, or do not return, are not held for ever."""

import pytest

from elastane.cluster.nouns.jobs import ElasticPolicy, RunPolicy

from .conftest import spec

RULES = {"cooldownS": 5.0, "minRunTimeS": 5.0, "horizonS": 60.0}
TIMEOUT_S = 30
SOON_S = TIMEOUT_S + 20
"""Time alone is planned for every ten seconds, and workers take a while to leave."""


def job(name="train", least=2, most=8, **kwargs):
    policy = ElasticPolicy(
        min_replicas=least,
        max_replicas=most,
        scaling_timeout_in_seconds=TIMEOUT_S,
        faulty_scale_down_timeout_in_seconds=TIMEOUT_S,
        graceful_shutdown_timeout_in_seconds=5.0,
    )
    return spec(name, elastic_policy=policy, **kwargs)


@pytest.fixture
def ada(cluster):
    operator = cluster.api.user("operator", user="olga")
    assert operator.put("/rules", RULES).is_success
    assert operator.put("/pools/h100", {"name": "h100", "device": "h100", "devices": 8}).is_success
    return cluster.api.user()


@pytest.fixture
def running(cluster, ada):
    """Build a cluster with a job on two workers that the test can make slow or silent."""
    assert ada.post("/jobs", job(most=2)).is_success
    cluster.until(lambda: cluster.workers("train") == 2)
    cluster.pass_time(10)
    return cluster.world.running["train"]


def granted(cluster, name="train"):
    return cluster.job(name).workers


def decided(ada, name="train"):
    """Return the sizes and sentences of the decisions, oldest first."""
    newest = ada.get(f"/jobs/{name}/explain?limit=100").json()["decisions"]
    return [
        (one["action"], sum(one["workers"].values()), " ".join(one["sentences"])) for one in reversed(newest)
    ]


@pytest.mark.parametrize("hang", [False, True])
def test_granted_workers_that_never_join_are_given_back(cluster, ada, running, hang) -> None:
    """Their processes may exist, and only the coordinator knows (kueue#11553, held for ever)."""
    running.most, running.hang = 2, hang
    assert ada.post("/jobs/train/scale", {"maxReplicas": 8}).is_success
    cluster.until(lambda: running.target == 8)
    cluster.pass_time(TIMEOUT_S - 5)
    assert granted(cluster) == 8
    assert "6 of its workers have not arrived yet" in " ".join(cluster.job("train").reason.sentences)
    cluster.until(lambda: granted(cluster) == 2, SOON_S)
    action, _, words = decided(ada)[-1]
    assert action == "shrink"
    assert "6 workers that it was granted did not arrive in time." in words
    cluster.pass_time(2)
    assert (running.target, running.begun) == (2, [1])
    ada.post("/jobs", job("other", least=6))
    cluster.until(lambda: cluster.workers("other") == 6, 30)


def test_workers_that_have_arrived_before_the_timeout_stay(cluster, ada, running) -> None:
    running.most = 5
    ada.post("/jobs/train/scale", {"maxReplicas": 8})
    cluster.until(lambda: running.target == 8)
    cluster.until(lambda: granted(cluster) == 5, SOON_S)
    cluster.pass_time(3)
    assert (running.workers, running.target) == (5, 5)
    assert "3 workers that it was granted did not arrive" in decided(ada)[-1][2]


def test_devices_of_missing_workers_stay_reserved_until_the_run_has_a_lower_target(
    cluster, ada, running
) -> None:
    """A coordinator without the new target may still start workers on them."""
    running.most = 2
    ada.post("/jobs/train/scale", {"maxReplicas": 8})
    cluster.until(lambda: running.target == 8)
    running.answers = False
    ada.post("/jobs", job("other", least=6))
    cluster.world.deaf.add("train")
    cluster.until(lambda: granted(cluster) == 2, SOON_S)
    cluster.pass_time(20)
    assert granted(cluster, "other") == 0
    cluster.world.deaf.clear()
    cluster.pass_time(2)
    running.answers = True
    cluster.until(lambda: cluster.workers("other") == 6, 30)


@pytest.mark.parametrize("habit", [{"most": 0}, {"most": 1}, {"answers": False}])
def test_a_start_without_any_worker_is_taken_back_and_retried(cluster, ada, habit) -> None:
    cluster.world.habits["train"] = habit
    ada.post("/jobs", job(most=2))
    cluster.until(lambda: "train" in cluster.world.running)
    cluster.pass_time(TIMEOUT_S - 5)
    assert granted(cluster) == 2
    cluster.until(lambda: granted(cluster) == 0, SOON_S)
    action, _, words = decided(ada)[-1]
    assert action == "stop"
    assert "that it was granted did not arrive in time." in words
    assert "raise scalingTimeoutInSeconds" in words
    cluster.world.running["train"].most, cluster.world.running["train"].answers = 2, True
    cluster.until(lambda: cluster.workers("train") == 2, 300)
    assert cluster.job("train").crashes == 0


def test_a_start_may_take_long_once_its_processes_exist(cluster, ada) -> None:
    cluster.world.habits["train"] = {"most": 0, "hang": True}
    ada.post("/jobs", job(most=2))
    cluster.pass_time(5 * TIMEOUT_S)
    cluster.world.running["train"].most = 2
    cluster.pass_time(5)
    assert (cluster.workers("train"), cluster.world.running["train"].begun) == (2, [1])


def test_no_job_is_scaled_beyond_its_virtual_ranks(cluster, ada) -> None:
    """Its run would refuse them: they would never arrive, be given back and be granted again."""
    cluster.world.habits["train"] = {"virtual_ranks": 4}
    ada.post("/jobs", job(most=2))
    cluster.until(lambda: cluster.job("train").observed.virtual_ranks == 4)
    for wanted in ({"maxReplicas": 5}, {"minReplicas": 5, "maxReplicas": 8}):
        refused = ada.post("/jobs/train/scale", wanted)
        assert (refused.status_code, refused.json()["field"]) == (422, "elasticPolicy.maxReplicas")
        assert "more than the 4 virtual ranks of its run" in refused.json()["detail"]
    refused = ada.post("/jobs/train/scale", {"replicaDiscreteValues": [2, 8]})
    assert refused.json()["field"] == "elasticPolicy.replicaDiscreteValues"
    assert ada.post("/jobs/train/scale", {"maxReplicas": 4}).is_success
    cluster.until(lambda: cluster.workers("train") == 4)


def test_a_start_that_never_succeeds_is_retried_less_and_less_often(cluster, ada, running) -> None:
    running.most = 2
    ada.post("/jobs/train/scale", {"maxReplicas": 8})
    cluster.pass_time(900)
    grown = [size for action, size, _ in decided(ada) if action == "grow"]
    assert 3 <= len(grown) <= 9
    assert running.begun == [1]


@pytest.mark.parametrize("successor", [False, True])
def test_a_death_while_others_are_awaited_does_not_stop_training(cluster, ada, running, successor) -> None:
    running.most = 2
    ada.post("/jobs/train/scale", {"maxReplicas": 8})
    cluster.until(lambda: running.target == 8)
    cluster.pass_time(TIMEOUT_S - 10)
    running.workers, running.most, running.hang = 1, 1, successor
    cluster.until(lambda: granted(cluster) < 8, SOON_S)
    action, size, words = decided(ada)[-1]
    assert (action, size) == ("shrink", 2)
    assert "6 workers that it was granted did not arrive in time." in words
    cluster.pass_time(4 * TIMEOUT_S)
    assert (running.begun, cluster.job("train").preemptions) == ([1], 0)
    assert min(size for _, size, _ in decided(ada)) == 2
    if not successor:
        words = " ".join(cluster.job("train").reason.sentences)
        assert "1 of its workers failed and did not come back in time." in words


def test_a_successor_that_never_joins_does_not_stop_a_job_at_its_minimum(cluster, ada, running) -> None:
    running.workers, running.most, running.hang = 1, 1, True
    cluster.pass_time(5 * TIMEOUT_S)
    assert (granted(cluster), running.target, running.begun) == (2, 2, [1])
    running.most = 2
    cluster.until(lambda: cluster.workers("train") == 2)


@pytest.fixture
def four(cluster, ada):
    """Build a cluster with a job on four workers, one of them dead and without a successor."""
    assert ada.post("/jobs", job(most=4)).is_success
    cluster.until(lambda: cluster.workers("train") == 4)
    cluster.pass_time(10)
    four = cluster.world.running["train"]
    four.workers, four.most = 3, 3
    return four


@pytest.mark.parametrize("agent", ["aims at four", "has given up"])
def test_a_dead_worker_that_does_not_return_is_written_off(cluster, ada, four, agent) -> None:
    cluster.pass_time(TIMEOUT_S - 10)
    assert granted(cluster) == 4
    assert "it waits for them until" in " ".join(cluster.job("train").reason.sentences)
    if agent == "has given up":
        four.target = 3
    cluster.until(lambda: granted(cluster) == 3, SOON_S)
    action, _, words = decided(ada)[-1]
    assert action == "shrink"
    assert "1 of its workers failed and did not come back in time." in words
    cluster.pass_time(2)
    cluster.world.orders.clear()
    cluster.pass_time(2)
    assert (four.target, four.workers, cluster.world.orders) == (3, 3, [])
    assert (four.begun, cluster.job("train").crashes) == ([1], 0)
    four.most = 4
    cluster.until(lambda: cluster.workers("train") == 4, 120)


def test_a_worker_that_returns_in_time_keeps_the_size_of_its_job(cluster, ada, four) -> None:
    cluster.pass_time(TIMEOUT_S - 5)
    four.most = 4
    cluster.pass_time(3 * TIMEOUT_S)
    assert (granted(cluster), four.workers, cluster.job("train").resizes) == (4, 4, 0)


def test_a_starting_successor_does_not_count_as_a_fault(cluster, ada, four) -> None:
    """It has the same time to join as any other worker, from the death on."""
    cluster.pass_time(5)
    four.hang = True
    cluster.pass_time(2)
    assert cluster.job("train").observed.faulty_since_s is None
    cluster.until(lambda: granted(cluster) == 3, SOON_S)
    assert "1 worker that it was granted did not arrive in time." in decided(ada)[-1][2]


def test_a_job_never_shrinks_below_its_minimum_for_a_fault(cluster, ada, running) -> None:
    running.workers, running.most = 1, 1
    cluster.pass_time(5 * TIMEOUT_S)
    assert (granted(cluster), running.target, running.begun) == (2, 2, [1])
    assert "1 of its workers failed and did not come back in time." in cluster.job("train").reason.sentences
    running.most = 2
    cluster.until(lambda: cluster.workers("train") == 2)
    cluster.pass_time(15)
    assert "come back" not in " ".join(cluster.job("train").reason.sentences)


def test_the_wait_before_a_retry_does_not_count_as_absence(cluster, ada) -> None:
    """The seventh crash waits for two minutes, four times the timeout; none of it counts as a preemption."""
    ada.post("/jobs", job(most=2, run_policy=RunPolicy(job_max_retry_count=20)))
    for crashes in range(1, 8):
        cluster.until(lambda: cluster.workers("train") == 2, 300)
        cluster.world.running["train"].end(None)
        cluster.until(lambda crashes=crashes: cluster.job("train").crashes == crashes, 5)
    cluster.pass_time(2 * TIMEOUT_S)
    assert cluster.clock() < cluster.job("train").retry_at_s
    assert (granted(cluster), cluster.job("train").preemptions) == (2, 0)
    assert "It crashed and is retried at" in " ".join(cluster.job("train").reason.sentences)
    cluster.until(lambda: cluster.workers("train") == 2, 120)
    assert {action for action, *_ in decided(ada)} == {"start"}


def test_an_attempt_is_late_from_the_end_of_its_wait_on(cluster, ada) -> None:
    ada.post("/jobs", job(most=2))
    cluster.until(lambda: cluster.workers("train") == 2)
    train = cluster.world.running["train"]
    train.most = 0
    train.end(None)
    cluster.until(lambda: len(train.begun) == 2, 30)
    cluster.pass_time(TIMEOUT_S - 5)
    assert granted(cluster) == 2
    cluster.until(lambda: granted(cluster) == 0, SOON_S)


def test_a_coordinator_that_is_silent_for_a_while_costs_its_job_no_worker(cluster, ada, running) -> None:
    running.answers = False
    cluster.pass_time(5 * TIMEOUT_S)
    assert granted(cluster) == 2
    running.answers = True
    cluster.pass_time(20)
    assert (granted(cluster), running.begun, cluster.job("train").preemptions) == (2, [1], 0)
