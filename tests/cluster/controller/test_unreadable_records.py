"""An unreadable record of the store harms only its own job, with any content."""

import contextlib
import logging

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select, text, update

from elastane.cluster.controller.store import tables
from elastane.cluster.controller.store.columns import encode_json
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import UnreadableRecord
from elastane.cluster.engines.pace import Speed
from elastane.cluster.nouns.config import Config
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.rest import Job, JobExplanation, JobSummary
from elastane.cluster.nouns.usage import Usage
from elastane.common.bodies import Page
from tests.hostile import DEEP, damaged_documents

from .conftest import Api, spec
from .world import Cluster, World

DEVICES = 8
COLUMNS = ("spec", "granted", "observed", "explained", "using", "egress")
"""Of jobs, those with JSON."""
NULL_SPEEDS = '{"seenS":1.0,"held":{"h100":{"workers":2}},"step":3,"speeds":[[2,null]]}'
"""What a job of an earlier version could have stored."""
FUZZ = settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))


def job(name, least=1, most=2):
    return spec(name, elastic_policy=ElasticPolicy(min_replicas=least, max_replicas=most))


def begun(cluster: Cluster) -> Cluster:
    """Two jobs run on two devices each; a third one waits for more devices than exist."""
    operator = cluster.api.user("operator", user="olga")
    operator.put("/pools/h100", {"name": "h100", "device": "h100", "devices": DEVICES})
    operator.put("/teams/vision", {"name": "vision", "quotas": [{"pool": "h100", "nominalQuota": 4}]})
    everybody = cluster.api.user(team="*")
    for one in (job("bad", 2), job("good", 2), job("large", 7, 8)):
        assert everybody.post("/jobs", one).status_code == 201
    cluster.until(lambda: cluster.workers("bad") == cluster.workers("good") == 2)
    return cluster


@pytest.fixture
def running(cluster_over, store):
    """Build the cluster on each kind of database."""
    return begun(cluster_over(store))


def damage(cluster: Cluster, table, here, **values) -> None:
    with cluster.api.store.begin_write() as tx:
        assert tx.execute(update(table).where(here).values(values)).rowcount == 1


def damage_job(cluster: Cluster, **values) -> None:
    damage(cluster, tables.jobs, tables.jobs.c.name == "bad", **values)


def in_use(cluster: Cluster) -> int:
    """Return the devices that processes use."""
    return sum(max(one.workers, one.target) for one in cluster.world.running.values() if one.agent)


def pass_time(cluster: Cluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.pass_time(1)
        assert in_use(cluster) <= DEVICES


def assert_only_its_own_job_suffers(cluster: Cluster) -> None:
    """Check that lists, cycles and other jobs work as usual, and that job ``bad`` can be ended."""
    operator, everybody = cluster.api.user("operator", user="olga"), cluster.api.user(team="*")
    assert everybody.post("/jobs", job("later")).status_code == 201
    pass_time(cluster, 15)
    listed = msgspec.json.decode(operator.get("/jobs").content, type=Page[JobSummary]).items
    assert {one.name for one in listed} == {"bad", "good", "large", "later"}
    assert cluster.workers("good") == 2
    assert cluster.workers("later") == 2
    for path, kind in (("", Job), ("/explain", JobExplanation), ("/events", Page[Event])):
        answer = operator.get(f"/jobs/bad{path}")
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=kind)
    for path, kind in (("/usage?from=0&by=job", Usage), ("/occupancy", msgspec.Raw)):
        answer = operator.get(path)
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=kind)
    for name in ("good", "bad"):
        assert operator.post(f"/jobs/{name}/cancel").status_code in {200, 409}
    pass_time(cluster, 40)
    for name in ("good", "bad"):
        assert cluster.job(name).state in ENDED
        assert not cluster.world.running[name].agent
    # What they held is free again, and all of it.
    assert operator.post("/jobs/large/cancel").status_code == 200
    assert everybody.post("/jobs", job("after", 6, 6)).status_code == 201
    cluster.until(lambda: cluster.workers("after") == 6, 120)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        # Each column and each value once; the other combinations are long.
        pytest.param(column, value, marks=() if number == place else pytest.mark.long)
        for number, column in enumerate(COLUMNS)
        for place, value in enumerate(("", "{", DEEP, "null", NULL_SPEEDS))
    ],
)
def test_a_job_with_an_unreadable_column_harms_no_other(running, column, value):
    damage_job(running, **{column: value})
    assert_only_its_own_job_suffers(running)


def test_a_job_with_an_unreadable_row_keeps_its_devices_until_it_is_cancelled(running):
    damage_job(running, **dict.fromkeys(COLUMNS, "?"))
    everybody, operator = running.api.user(team="*"), running.api.user("operator")
    everybody.post("/jobs", job("later", 1, 8))
    pass_time(running, 60)
    shown = everybody.get("/jobs/bad").json()
    assert shown["state"] == "running"
    assert "spec" in shown["unreadable"]
    assert "cannot be read" in shown["explained"]["sentences"][0]
    # Its devices are unknown, so no other job gets any.
    assert running.workers("bad") == 2
    assert running.workers("later") == 0
    assert running.workers("good") == 2
    assert operator.post("/jobs/bad/cancel").status_code == 200
    running.until(lambda: running.job("bad").state == "cancelled")
    running.until(lambda: running.workers("later") >= 4)


def test_the_explanation_names_the_unreadable_column_and_changes_are_refused(running):
    damage_job(running, spec="{}")
    everybody = running.api.user(user="ada")
    explained = everybody.get("/jobs/bad/explain").json()["explanation"]["sentences"]
    assert "its record cannot be read: spec" in explained[0].lower()
    assert "elastane cancel" in explained[2]
    refused = everybody.post("/jobs/bad/scale", {"maxReplicas": 4})
    assert refused.status_code == 409
    assert "cannot be read" in refused.json()["detail"]
    assert "cancel" in refused.json()["do"]


@pytest.mark.parametrize("name", ["bad", "large"])
def test_an_unreadable_record_is_logged_once(running, caplog, name):
    damage(running, tables.jobs, tables.jobs.c.name == name, spec="{")
    with caplog.at_level(logging.WARNING):
        pass_time(running, 60)
    assert len([one for one in caplog.messages if "cannot be read" in one and name in one]) == 1


def test_a_waiting_unreadable_job_is_cancelled_at_once(running):
    damage(running, tables.jobs, tables.jobs.c.name == "large", spec="{")
    operator = running.api.user("operator")
    assert operator.post("/jobs/large/cancel").json()["state"] == "cancelled"


def test_an_unreadable_job_that_ends_by_itself_has_ended(running):
    damage_job(running, granted="{")
    running.world.running["bad"].steps = 1
    running.until(lambda: running.job("bad").state == "finished")
    pass_time(running, 5)
    assert "bad" not in running.world.unsettled


def test_an_unreadable_job_that_crashes_returns_its_devices_and_begins_no_attempt(running):
    damage_job(running, spec="{")
    running.world.running["bad"].end(None)
    running.until(lambda: running.job("bad").state == "queued")
    running.api.user(team="*").post("/jobs", job("later", 6, 6))
    running.until(lambda: running.workers("later") == 6, 120)
    assert running.world.running["bad"].begun == [1]


def test_an_unreadable_observation_is_replaced_by_the_next_one(running):
    damage_job(running, observed=NULL_SPEEDS)
    pass_time(running, 10)
    seen = running.job("bad")
    assert not seen.unreadable
    assert seen.observed.held["h100"].workers == 2
    assert seen.observed.step > 3


@pytest.mark.parametrize("speed", [float("inf"), float("nan"), 1e300, -1.0])
def test_progress_that_could_not_be_decoded_is_not_stored(running, speed, caplog):
    running.world.running["bad"].speeds[7] = Speed(samples=speed, seconds=1.0)
    with caplog.at_level(logging.WARNING):
        pass_time(running, 30)
    assert len([one for one in caplog.messages if "bad" in one and "left out" in one]) == 1
    assert_only_its_own_job_suffers(running)


def test_the_final_message_of_a_job_is_stored_without_control_characters(running):
    from elastane.run.nouns.attempts import AttemptOutcome

    why, traceback = "a\0b\x1b[2J\ud800" * 1_000, "line\nline\x07\0" * 20_000
    running.world.running["bad"].end(AttemptOutcome(code=1, why=why, traceback=traceback))
    running.until(lambda: running.job("bad").state == "failed")
    ended = running.job("bad")
    assert len(ended.why) <= 4_000
    assert len(ended.traceback) <= 64_000
    for words in (ended.why, ended.traceback):
        assert words.replace("\n", "").isprintable()
    assert ended.traceback.startswith("line\nline")


def test_a_number_that_is_not_finite_cannot_be_stored():
    for value in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"speeds\[0\]\[1\] is not finite"):
            encode_json({"speeds": [[2, value]]})


# -- records of no job -------------------------------------------------------------------------------------


def documents_of(kind, name):
    return (tables.documents.c.kind == kind) & (tables.documents.c.name == name)


@pytest.mark.parametrize(("kind", "name"), [("pools", "h100"), ("teams", "vision")])
@pytest.mark.parametrize("body", ["{", '{"name":"another","device":"h100","devices":1}', '{"name":"h100"}'])
def test_nothing_is_decided_while_a_declaration_is_unreadable(running, kind, name, body):
    """Without it, jobs could get more than they may have, or lose what they own."""
    operator, everybody = running.api.user("operator"), running.api.user(team="*")
    damage(running, tables.documents, documents_of(kind, name), body=body)
    operator.post("/jobs/good/cancel")
    with pytest.raises(UnreadableRecord, match=name):
        running.run_cycle()
    assert operator.get("/jobs").status_code == operator.get("/jobs/bad").status_code == 200
    refused = operator.get("/config")
    assert refused.status_code == 500
    assert name in refused.json()["detail"]
    with contextlib.suppress(UnreadableRecord):
        pass_time(running, 5)
    assert running.workers("bad") == 2
    # Whoever declares it again needs nothing else.
    again = {
        "pools": {"name": "h100", "device": "h100", "devices": DEVICES},
        "teams": {"name": "vision", "quotas": [{"pool": "h100", "nominalQuota": 4}]},
    }
    assert operator.put(f"/{kind}/{name}", again[kind]).status_code == 200
    everybody.post("/jobs", job("later"))
    pass_time(running, 20)
    assert running.workers("later") == 2


def test_orders_are_carried_out_while_a_declaration_is_unreadable(running):
    damage(running, tables.documents, documents_of("pools", "h100"), body="{")
    running.world.running["bad"].end(None)
    for _ in range(10):
        with contextlib.suppress(UnreadableRecord):
            running.pass_time(1)
    assert running.world.running["bad"].begun == [1, 2]


def test_applying_a_configuration_replaces_and_removes_unreadable_documents(running):
    operator = running.api.user("operator")
    whole = msgspec.json.decode(operator.get("/config").content, type=Config)
    damage(running, tables.documents, documents_of("teams", "vision"), body="{")
    answer = operator.post("/config/apply", msgspec.structs.replace(whole, teams=()))
    assert answer.status_code == 409, "it has jobs"
    assert operator.post("/config/apply", whole).status_code == 200
    assert msgspec.json.decode(operator.get("/config").content, type=Config) == whole
    pass_time(running, 5)


def test_an_unreadable_report_stops_decisions_until_it_is_sent_again(running):
    operator = running.api.user("operator")
    report = {"kind": "capacity", "pool": "h100", "devices": 4}
    assert operator.post("/reports", report).status_code == 204
    damage(running, tables.reports, tables.reports.c.about == "h100", body="{")
    with pytest.raises(UnreadableRecord, match="h100"):
        pass_time(running, 11)
    assert operator.post("/reports", report).status_code == 204
    pass_time(running, 11)
    assert running.workers("bad") == 2


def test_unreadable_events_and_decisions_hide_no_others(running):
    everybody = running.api.user(team="*")
    with running.api.store.begin_write() as tx:
        about = {"time_s": 1.0, "job": "bad"}
        tx.execute(
            insert(tables.events).values(**about, kind="job.noted", message="", detail="{", team="vision")
        )
        tx.execute(insert(tables.decisions).values(**about, change=1, decision=DEEP, sentences="?"))
    events = msgspec.json.decode(everybody.get("/jobs/bad/events").content, type=Page[Event]).items
    assert {"job.started", "job.noted"} <= {one.kind for one in events}
    explained = everybody.get("/jobs/bad/explain").json()
    assert "cannot be read" in explained["decisions"][0]["sentences"][0]


# -- fuzz --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Build one cluster for all examples; each example restores what it has damaged."""
    from elastane.cluster.scheduler.explanations import explain_decision
    from elastane.cluster.scheduler.plan import plan

    folder = tmp_path_factory.mktemp("shared")
    store = Store(f"sqlite:///{folder}/store.db")
    yield begun(Cluster(Api(store, plan=plan, explain=explain_decision), World(folder / "runs")))
    store.close()


@pytest.fixture(scope="module")
def templates(shared):
    """Return the first stored row of the job, because examples must not depend on earlier ones."""
    with shared.api.store.begin_read() as tx:
        return dict(tx.execute(select(tables.jobs).where(BAD)).one()._mapping)


@contextlib.contextmanager
def put_back(cluster: Cluster, table, here):
    with cluster.api.store.begin_read() as tx:
        before = dict(tx.execute(select(table).where(here)).one()._mapping)
    try:
        yield before
    finally:
        with cluster.api.store.begin_write() as tx:
            tx.execute(update(table).where(here).values(before))
    cluster.until(lambda: cluster.workers("bad") == cluster.workers("good") == 2, 120)


def assert_the_others_go_on(cluster: Cluster) -> None:
    operator = cluster.api.user("operator")
    steps = cluster.world.running["good"].step
    for _ in range(3):
        # A plan at every cycle.
        cluster.loop._mark_stale()
        pass_time(cluster, 1)
    assert cluster.workers("good") == 2
    assert cluster.world.running["good"].step > steps
    listed = msgspec.json.decode(operator.get("/jobs").content, type=Page[JobSummary]).items
    assert [one.name for one in listed] == ["large", "good", "bad"]
    for path, kind in (("bad", Job), ("bad/explain", JobExplanation), ("good", Job)):
        answer = operator.get(f"/jobs/{path}")
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=kind)
    assert operator.get("/usage?from=0&by=job").status_code == operator.get("/occupancy").status_code == 200


BAD = tables.jobs.c.name == "bad"


def quoted(column: str) -> str:
    return f'"{column}"'


@FUZZ
@given(data=st.data(), column=st.sampled_from(COLUMNS))
def test_no_content_of_a_json_column_of_a_job_harms_other_jobs(shared, templates, data, column):
    with put_back(shared, tables.jobs, BAD):
        after = data.draw(damaged_documents(templates[column].encode()))
        with shared.api.store.begin_write() as tx:
            # As bytes that SQLite takes for text, also where they are none.
            query = text(f"UPDATE jobs SET {quoted(column)} = CAST(:after AS TEXT) WHERE name = 'bad'")  # noqa: S608
            tx.execute(query, {"after": after})
        assert_the_others_go_on(shared)


PLAIN = ("state", "wanted", "workers", "step", "submitted_s", "retry_at_s", "spent", "using_since_s", "lives")


@FUZZ
@given(
    column=st.sampled_from(PLAIN),
    value=st.sampled_from(["?", "", b"\xff", 2**62, -1, 1e300, float("inf"), -1e300, 1e18]),
)
def test_no_content_of_a_plain_column_of_a_job_harms_other_jobs(shared, column, value):
    """SQLite accepts any value in any column."""
    with put_back(shared, tables.jobs, BAD):
        with shared.api.store.begin_write() as tx:
            query = f"UPDATE jobs SET {quoted(column)} = ? WHERE name = 'bad'"  # noqa: S608
            tx.exec_driver_sql(query, (value,))
        assert_the_others_go_on(shared)


@FUZZ
@given(data=st.data(), which=st.sampled_from([("pools", "h100"), ("teams", "vision")]))
def test_jobs_can_be_listed_with_any_content_of_a_document(shared, data, which):
    operator, here = shared.api.user("operator"), documents_of(*which)
    with put_back(shared, tables.documents, here) as before:
        after = data.draw(damaged_documents(before["body"].encode())).decode(errors="replace")
        damage(shared, tables.documents, here, body=after)
        for _ in range(3):
            shared.loop._mark_stale()
            with contextlib.suppress(UnreadableRecord):
                pass_time(shared, 1)
        assert operator.get("/jobs").status_code == operator.get("/jobs/good/explain").status_code == 200
        assert operator.get("/config").status_code in {200, 500}
