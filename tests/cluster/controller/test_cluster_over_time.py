"""Calendars, borrowing, prices, triggers, notices, budgets and deadlines over hours; and the usage."""

from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastane.cluster.controller.jobs.accounts import compute_spending
from elastane.cluster.controller.jobs.reconciliation import HOPELESS_S
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import StoreFull
from elastane.cluster.nouns.engine import KillAttempt, ObservedNode
from elastane.cluster.nouns.jobs import ElasticPolicy, JobTarget, WorkerResources
from elastane.cluster.nouns.pools import UNSEEN_S

from .conftest import Api, spec
from .world import Cluster, World

RULES = {"cooldownS": 5.0, "minRunTimeS": 5.0, "horizonS": 60.0}


def pool(devices=8, name="h100", **kwargs):
    return {"name": name, "device": "h100", "devices": devices} | kwargs


def team(name, **quotas):
    return {"name": name, "quotas": [{"pool": p, "nominalQuota": n} for p, n in quotas.items()]}


def job(name="train", least=1, most=8, **kwargs):
    return spec(name, elastic_policy=ElasticPolicy(min_replicas=least, max_replicas=most), **kwargs)


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.fixture
def operator(cluster):
    operator = cluster.api.user("operator", user="olga")
    assert operator.put("/rules", RULES).status_code == 201
    return operator


@pytest.fixture
def everybody(cluster):
    return cluster.api.user(team="*")


def devices(cluster, name):
    return sum(n for (held, _), n in cluster.uses().items() if held == name)


def test_an_announced_reservation_shrinks_jobs_before_its_begin(cluster, operator, everybody):
    operator.put("/pools/h100", pool(8))
    everybody.post("/jobs", job())
    cluster.until(lambda: cluster.workers("train") == 8)
    hour_s = cluster.clock() + 200
    operator.put(
        "/reservations/inference",
        {
            "name": "inference",
            "pool": "h100",
            "devices": 6,
            "when": {"type": "once", "start": at(hour_s), "end": at(hour_s + 60)},
            "announcedAheadS": 60,
        },
    )
    while cluster.clock() < hour_s - 65:
        cluster.pass_time(1)
        assert devices(cluster, "train") == 8
    cluster.pass_time(60)
    assert cluster.clock() < hour_s
    assert devices(cluster, "train") == cluster.workers("train") == 2
    newest = everybody.get("/jobs/train/explain").json()["decisions"][0]
    assert newest["action"] == "shrink"
    assert any("belong to the reservation inference" in sentence for sentence in newest["sentences"])
    while cluster.clock() < hour_s + 60:
        cluster.pass_time(1)
        assert devices(cluster, "train") <= 2
    cluster.until(lambda: cluster.workers("train") == 8)
    assert cluster.world.running["train"].begun == [1]


def test_borrowed_devices_return_to_their_owner_without_a_kill(cluster, operator, everybody):
    cluster.counts_devices = True
    operator.put("/pools/h100", pool(8))
    operator.put("/teams/vision", team("vision", h100=4))
    operator.put("/teams/speech", team("speech", h100=4))
    everybody.post("/jobs", job("a", team="vision"))
    cluster.until(lambda: cluster.workers("a") == 8)
    everybody.post("/jobs", job("b", team="speech", least=4, most=4))
    cluster.until(lambda: cluster.workers("b") == 4)
    assert cluster.workers("a") == 4
    assert cluster.world.running["a"].begun == [1]
    cluster.pass_time(60)
    rows = {row.team: row for row in cluster.usage("team")}
    assert rows["speech"].owned_device_s == cluster.held["b", "h100"]
    assert rows["speech"].borrowed_device_s == 0
    assert rows["vision"].borrowed_device_s > 0
    used = rows["vision"].owned_device_s + rows["vision"].borrowed_device_s
    assert used == cluster.held["a", "h100"]


@pytest.mark.parametrize("answers", [False, True])
def test_an_owner_gets_its_devices_back_even_from_a_job_that_hangs(cluster, operator, everybody, answers):
    """No agent answers for the job; or its coordinator does, and its agent ends no worker."""
    operator.put("/pools/h100", pool(8))
    operator.put("/teams/vision", team("vision", h100=4))
    operator.put("/teams/speech", team("speech", h100=4))
    everybody.post("/jobs", job("a", team="vision"))
    cluster.until(lambda: cluster.workers("a") == 8)
    hanging = cluster.world.running["a"]
    hanging.answers, hanging.leave_s = answers, 1e9
    cluster.world.deaf.add("a")
    everybody.post("/jobs", job("b", team="speech", least=4, most=4))
    cluster.until(lambda: cluster.job("a").workers == 4)
    hanging.target = 4
    cluster.pass_time(60 + HOPELESS_S - 20)
    assert hanging.begun == [1]
    cluster.until(lambda: cluster.workers("b") == 4, 60)
    hanging.answers = True
    cluster.until(lambda: cluster.workers("a") == 4, 60)
    assert (hanging.begun, cluster.job("a").crashes) == ([1, 2], 1)


def test_a_new_price_counts_from_its_report_on(cluster, operator, everybody):
    cluster.counts_devices = True
    operator.put("/pools/spot", pool(4, "spot", spot=True, price=3600.0))
    everybody.post("/jobs", job(least=4, most=4, spot=True))
    operator.put("/pools/h100", pool(0))
    operator.put("/pools/h100", pool(4, price=3600.0))
    cluster.until(lambda: devices(cluster, "train") == 4)
    cluster.pass_time(100)
    before = sum(row.cost for row in cluster.usage("job"))
    assert before == sum(cluster.held.values())
    for name in ("spot", "h100"):
        operator.put(f"/pools/{name}", pool(4, name, spot=name == "spot", price=7200.0))
    cluster.run_cycle()
    cluster.pass_time(50)
    after = sum(row.cost for row in cluster.usage("job"))
    assert after - before == 4 * 50 * 2
    assert cluster.state("train").spent == pytest.approx(after)
    assert compute_spending(cluster.job("train"), cluster.api.clock()) == pytest.approx(after)
    reporter = cluster.api.user("reporter")
    for name in ("spot", "h100"):
        said = {"kind": "price", "pool": name, "price": 36000.0, "validS": 25}
        assert reporter.post("/reports", said).is_success
    cluster.run_cycle()
    cluster.pass_time(50)
    # The report counts while it is valid; from the next plan after that on, the declaration counts again.
    last = sum(row.cost for row in cluster.usage("job"))
    assert 4 * (25 * 10 + 25 * 2) <= last - after <= 4 * (35 * 10 + 15 * 2)


def test_a_pool_is_removed_once_its_jobs_have_drained_from_it(cluster, operator, everybody):
    cluster.world.seen_nodes += [ObservedNode(name="n1", pool="h100", devices=4)]
    operator.put("/pools/h100", pool(4))
    everybody.post("/jobs", job(least=2, most=4))
    cluster.until(lambda: cluster.workers("train") == 4)
    renamed = {"pools": [pool(4, "other")]}
    for refused in (
        operator.delete("/pools/h100"),
        operator.post("/config/apply", renamed),
        operator.post("/config/diff", renamed),
        operator.post("/policy/check", renamed),
    ):
        assert (refused.status_code, refused.json()["detail"]) == (409, "pool h100 is in use by job train")
    assert operator.get("/pools/other").status_code == 404
    operator.post("/nodes/n1/drain")
    cluster.until(lambda: operator.delete("/pools/h100").status_code == 204)
    cluster.pass_time(60)
    assert cluster.job("train").state == "queued"
    assert not any(isinstance(order, KillAttempt) for order in cluster.world.orders)


def test_a_metric_limits_a_pool_while_it_is_valid(cluster, operator, everybody):
    operator.put("/pools/h100", pool(8))
    trigger = {"name": "busy", "metric": "qps", "above": 100, "pool": "h100", "limit": 3}
    operator.put("/triggers/busy", trigger)
    everybody.post("/jobs", job())
    cluster.until(lambda: cluster.workers("train") == 8)
    reporter = cluster.api.user("reporter")
    reporter.post("/reports", {"kind": "metric", "metric": "qps", "value": 150, "validS": 120})
    cluster.until(lambda: devices(cluster, "train") == 3, 30)
    cluster.until(lambda: cluster.workers("train") == 8, 200)
    reporter.post("/reports", {"kind": "metric", "metric": "qps", "value": 50})
    cluster.pass_time(30)
    assert devices(cluster, "train") == 8


def test_a_notice_drains_a_node_before_its_end(cluster, operator, everybody):
    operator.put("/pools/h100", pool(8))
    cluster.world.seen_nodes += [ObservedNode(name="n1", pool="h100", devices=4)]
    cluster.world.seen_nodes += [ObservedNode(name="n2", pool="h100", devices=4)]
    everybody.post("/jobs", job())
    cluster.until(lambda: cluster.workers("train") == 8)
    reporter = cluster.api.user("reporter")
    noticed_s = cluster.api.clock()
    answer = reporter.post("/reports", {"kind": "notice", "node": "n1", "inS": 15})
    assert answer.status_code == 204
    cluster.until(lambda: cluster.job("train").grant.drain_until_s, 10)
    # The job asks for 30 s, but the node does not wait.
    assert cluster.job("train").grant.drain_until_s == noticed_s + 15
    cluster.until(lambda: devices(cluster, "train") == 4, 60)
    (node, _) = operator.get("/nodes").json()["items"]
    assert (node["name"], node["wanted"], node["why"]) == ("n1", "drain", "will be taken away")
    assert cluster.world.running["train"].begun == [1]
    operator.post("/nodes/n1/use")
    cluster.until(lambda: cluster.workers("train") == 8)


def test_after_a_full_disk_nodes_are_recorded_before_the_next_decision(
    cluster, operator, everybody, monkeypatch
):
    cluster.world.seen_nodes += [ObservedNode(name="n1", pool="h100", devices=4)]
    # It waits for the same disk.
    cluster.world.habits["train"] = {"speed": 0.0}
    operator.put("/pools/h100", pool(4))
    everybody.post("/jobs", job(least=4, most=4))
    cluster.until(lambda: cluster.workers("train") == 4)

    @contextmanager
    def full():
        raise StoreFull("the disk is full")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(cluster.api.store, "begin_write", full)
        # Less than a minute has passed since the last look at the nodes.
        for _ in range(int(UNSEEN_S) + 30):
            with suppress(StoreFull):
                cluster.pass_time(1)
    cluster.pass_time(30)
    assert cluster.job("train").workers == cluster.workers("train") == 4
    assert cluster.job("train").preemptions == 0


def test_a_clock_that_is_set_back_delays_no_job(cluster, operator, everybody):
    operator.put("/pools/h100", pool(8))
    everybody.post("/jobs", job())
    cluster.until(lambda: cluster.workers("train") == 8)
    hour_s = cluster.clock() - 3600 + 60
    operator.put(
        "/reservations/inference",
        {
            "name": "inference",
            "pool": "h100",
            "devices": 6,
            "when": {"type": "once", "start": at(hour_s), "end": at(hour_s + 3000)},
            "announcedAheadS": 20,
        },
    )
    cluster.pass_time(20)
    cluster.clock.now_s -= 3600
    step = cluster.job("train").step
    cluster.pass_time(10)
    assert cluster.job("train").step > step
    cluster.pass_time(60)
    assert cluster.job("train").workers == cluster.workers("train") == 2
    running = cluster.world.running["train"]
    running.end(None)
    cluster.pass_time(1)
    cluster.clock.now_s -= 3600
    cluster.until(lambda: running.begun == [1, 2], 10)
    cluster.pass_time(10)
    assert "tried again" not in " ".join(cluster.job("train").reason.sentences)


def test_a_job_that_has_devices_and_cannot_start_gets_one_event_with_the_reason(cluster, operator, everybody):
    def held_up():
        told = everybody.get("/jobs/train/events").json()["items"]
        return [one["message"] for one in told if one["kind"] == "job.held_up"]

    operator.put("/pools/h100", pool(8))
    cluster.world.full = "No space left on device"
    everybody.post("/jobs", job())
    cluster.pass_time(30)
    assert held_up() == ["train has devices but cannot start now: No space left on device"]
    cluster.world.full = ""
    cluster.until(lambda: cluster.workers("train") == 8)
    assert len(held_up()) == 1


def test_a_worker_of_eight_devices_counts_as_eight_everywhere(cluster, operator, everybody):
    cluster.counts_devices = True
    cluster.world.seen_nodes = [ObservedNode(name=f"n{n}", pool="h100", devices=16) for n in (1, 2)]
    operator.put("/pools/h100", pool(0, price=3.6))
    operator.put("/teams/vision", team("vision", h100=20))
    everybody.post("/jobs", job(most=100, resources_per_worker=WorkerResources(devices=8)))

    def used():
        (row,) = everybody.get("/occupancy").json()["items"]
        return row["devices"] - row["leaving"], row["used"]

    cluster.until(lambda: used() == (32, 32))
    cluster.until(lambda: cluster.workers("train") == 4)
    operator.post("/nodes/n2/drain", {})
    cluster.until(lambda: used() == (16, 16))
    operator.post("/nodes/n2/use")
    cluster.until(lambda: used() == (32, 32))
    operator.post("/reports", {"kind": "capacity", "pool": "h100", "devices": 31, "validS": 30})
    cluster.until(lambda: used() == (31, 24))
    cluster.until(lambda: used() == (32, 32))
    operator.post("/nodes/n1/fail", {})
    cluster.until(lambda: used() == (16, 16))
    (row,) = cluster.usage("job")
    assert row.owned_device_s + row.borrowed_device_s == cluster.held["train", "h100"]
    assert row.cost == pytest.approx(cluster.held["train", "h100"] * 3.6 / 3600)
    assert cluster.job("train").spent == pytest.approx(row.cost, rel=0.01)
    assert row.owned_device_s > row.borrowed_device_s > 0


def test_a_job_stops_with_a_reason_when_its_budget_is_spent(cluster, operator, everybody):
    cluster.counts_devices = True
    operator.put("/pools/h100", pool(8, price=3600.0))
    everybody.post("/jobs", job(least=2, most=2, budget=100.0))
    cluster.until(lambda: cluster.workers("train") == 2)
    cluster.until(lambda: devices(cluster, "train") == 0, 100)
    cluster.pass_time(60)
    spent = sum(row.cost for row in cluster.usage("job"))
    # Time alone is planned for every ten seconds, and two devices cost two a second.
    assert 100 <= spent <= 100 + 2 * 13
    assert spent == sum(cluster.held.values())
    assert cluster.job("train").spent == pytest.approx(spent)
    assert cluster.job("train").state == "queued"
    assert any("of its budget of 100.00" in one for one in cluster.job("train").reason.sentences)


def test_a_job_with_a_small_budget_stays_small_enough_to_finish(cluster, operator, everybody):
    cluster.counts_devices = True
    operator.put("/pools/h100", pool(8, price=3600.0))
    # A part of each step is not divided among workers, so each additional worker raises the cost.
    cluster.world.habits |= {name: {"steps": 1200, "serial": 0.1} for name in ("rich", "poor")}
    everybody.post("/jobs", job("poor", most=4, budget=1380.0))
    everybody.post("/jobs", job("rich", most=4))
    cluster.pass_time(90)
    state = cluster.state("poor")
    assert 0 < state.remaining <= 1200 * 64
    assert state.speeds
    assert state.spent == pytest.approx(cluster.held["poor", "h100"])
    assert cluster.workers("rich") == 4
    assert cluster.workers("poor") < 4
    cluster.until(lambda: cluster.job("poor").state == "finished", 1800)
    assert cluster.job("poor").spent <= 1380


@pytest.mark.parametrize("by", ["deadline", "target"])
def test_a_job_that_would_be_late_grows_before_others(cluster, operator, everybody, by):
    operator.put("/pools/h100", pool(8))
    cluster.world.habits |= {name: {"steps": 6000} for name in ("easy", "late")}
    everybody.post("/jobs", job("easy"))
    cluster.until(lambda: cluster.workers("easy") == 8)
    when = datetime.fromtimestamp(cluster.clock() + 1100, UTC)
    wish = {"deadline": when} if by == "deadline" else {"target": JobTarget(loss=1e-12, by=when)}
    everybody.post("/jobs", job("late", **wish))
    cluster.pass_time(200)
    assert cluster.workers("late") >= 6
    assert cluster.workers("easy") >= 1
    assert cluster.state("late").remaining > 0


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "cancel",
                "pause",
                "resume",
                "scale",
                "price",
                "shrink pool",
                "drain",
                "crash",
                "quota",
            ]
        ),
        st.integers(0, 7),
        st.integers(1, 20),
    ),
    min_size=1,
    max_size=15,
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HAPPENINGS)
def test_the_recorded_usage_equals_the_held_devices(tmp_path_factory, history):
    where = tmp_path_factory.mktemp("accounts")
    store = Store(f"sqlite:///{where}/store.db")
    try:
        cluster = Cluster(Api(store), World(where / "runs"))
        cluster.counts_devices = True
        operator, ada = cluster.api.user("operator"), cluster.api.user(team="*")
        operator.put("/rules", RULES)
        operator.put("/pools/h100", pool(6, price=1.0))
        operator.put("/pools/spot", pool(3, "spot", spot=True, price=0.5))
        operator.put("/teams/vision", team("vision", h100=2))
        for number, (what, which, seconds) in enumerate(history):
            happen(cluster, (operator, ada), what, which, number)
            cluster.run_cycle()
            cluster.pass_time(seconds)
        accounts = {
            (row.job, row.pool): row.owned_device_s + row.borrowed_device_s + row.spot_device_s
            for row in cluster.usage("job", "pool")
        }
        assert accounts == {key: held for key, held in cluster.held.items() if held}
        whole = cluster.usage("team")
        assert sum(row.cost for row in whole) == pytest.approx(sum(row.cost for row in cluster.usage("pool")))
    finally:
        store.close()


def happen(cluster, people, what, which, number):
    operator, ada = people
    name = f"job-{which}"
    habits = [{}, {"arrive_s": 4.0}, {"leave_s": 5.0}, {"steps": 60}]
    match what:
        case "submit":
            cluster.world.habits[name] = habits[which % 4]
            least = 1 + which % 2
            team_of = "vision" if which % 3 else "guest"
            ada.post("/jobs", job(name, least, least + which, team=team_of, spot=which % 2 == 0))
        case "cancel" | "pause" | "resume":
            ada.post(f"/jobs/{name}/{what}")
        case "scale":
            ada.post(f"/jobs/{name}/scale", {"maxReplicas": 1 + number % 6})
        case "price":
            operator.put("/pools/h100", pool(6, price=float(number)))
        case "shrink pool":
            operator.put("/pools/h100", pool(6 - which % 4, price=1.0))
        case "drain":
            operator.put("/pools/spot", pool(3, "spot", spot=True, price=0.5, leaving=which % 4))
        case "crash" if name in cluster.world.running:
            cluster.world.running[name].end(None)
        case "quota":
            operator.put("/teams/vision", team("vision", h100=which))


def test_a_team_sees_all_audit_lines_about_its_jobs(cluster, operator, everybody):
    operator.put("/teams/vision", team("vision"))
    everybody.post("/jobs", job())
    everybody.post("/jobs/train/scale", {"maxReplicas": 2})
    everybody.post("/jobs/train/pause")
    everybody.post("/jobs/train/resume")
    everybody.post("/jobs/train/priority", {"priorityClass": ""})
    everybody.post("/jobs/train/cancel")
    admin = cluster.api.user("team-admin")
    made = admin.post("/tokens", {"user": "ada", "role": "viewer", "team": "vision"}).json()
    admin.delete(f"/tokens/{made['token']['id']}")
    lines = msgspec.json.decode(admin.get("/audit").content)["items"]
    assert [one["action"] for one in reversed(lines)] == [
        "teams.put",
        "job.submit",
        "job.scaled",
        "job.paused",
        "job.resumed",
        "job.reprioritised",
        "job.cancelled",
        "token.make",
        "token.revoke",
    ]
    assert {one["team"] for one in lines} == {"vision"}
    assert cluster.api.user("team-admin", team="speech").get("/audit").json()["items"] == []
