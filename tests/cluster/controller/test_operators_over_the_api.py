"""Requests of operators: declare, apply, predict, drain, report, read usage."""

import csv
import io

import msgspec
import pytest

from elastane.cluster.controller.rest.app import describe_api
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store import nodes
from elastane.cluster.nouns.config import Change, Config
from elastane.cluster.nouns.plans import Decision, MinimumFits, Plan
from elastane.cluster.nouns.pools import UNSEEN_S
from elastane.cluster.nouns.rest import Forecast
from elastane.cluster.nouns.usage import Use
from elastane.common.bodies import Page
from tests.cluster.controller import job_rows

POOL = {"name": "h100", "device": "h100", "devices": 16}


@pytest.fixture
def operator(api):
    return api.user("operator", user="olga")


def test_a_document_has_a_version_that_guards_it(operator):
    created = operator.put("/pools/h100", POOL)
    assert (created.status_code, created.headers["ETag"]) == (201, '"1"')
    changed = operator.put("/pools/h100", POOL | {"devices": 8}, If_Match='"1"')
    assert (changed.status_code, changed.headers["ETag"]) == (200, '"2"')
    assert operator.put("/pools/h100", POOL, If_Match='"1"').status_code == 412
    assert operator.get("/pools/h100").json()["devices"] == 8
    same = operator.put("/pools/h100", POOL | {"devices": 8})
    assert same.headers["ETag"] == '"2"'


def test_a_condition_on_an_existing_document_creates_none(operator):
    refused = operator.put("/pools/h100", POOL, If_Match="*")
    assert (refused.status_code, refused.json()["detail"]) == (412, "If-Match is *, and it does not exist")
    assert operator.get("/pools/h100").status_code == 404
    assert operator.put("/pools/h100", POOL, If_Match='"0"').status_code == 201
    assert operator.put("/pools/h100", POOL | {"devices": 8}, If_Match="*").status_code == 200
    assert operator.put("/rules", {"cooldownS": 5}, If_Match="*").status_code == 201


def test_the_description_has_the_headers_of_exactly_the_requests_that_accept_them():
    paths = describe_api()["paths"]
    headers = {
        (method, path): {one["name"] for one in operation.get("parameters", ()) if one["in"] == "header"}
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    once, of_a_version = {"Idempotency-Key"}, {"Idempotency-Key", "If-Match"}
    reading = {("post", "/v1/config/diff"), ("post", "/v1/policy/check")}
    # Agents repeat what they say by design.
    reading |= {
        ("post", f"/v1/agents/{{agent}}/{what}") for what in ("arrival", "departure", "records", "claims")
    }
    adding = {("post", path) for path in ("/v1/jobs", "/v1/config/apply", "/v1/reports", "/v1/tokens")}
    adding |= {("delete", "/v1/tokens/{token}"), ("put", "/v1/code/{digest}")}
    adding |= {(method, "/v1/claims/{team}/{run}") for method in ("post", "delete")}
    targets = "/v1/notification-targets"
    adding |= {("post", targets), ("delete", f"{targets}/{{target}}"), ("post", f"{targets}/{{target}}/test")}
    for (method, path), names in headers.items():
        if path == "/v1/watch":
            assert names == {"last-event-id"}
        elif method == "get" or (method, path) in reading:
            assert names == set(), path
        else:
            assert names == (once if (method, path) in adding else of_a_version), path


def test_the_audit_log_has_the_old_and_the_new_document(operator):
    operator.put("/pools/h100", POOL)
    operator.put("/teams/speech", {"name": "speech", "quotas": [{"pool": "h100", "nominalQuota": 4}]})
    operator.put("/teams/speech", {"name": "speech", "quotas": [{"pool": "h100", "nominalQuota": 8}]})
    operator.post("/config/apply", {"pools": [POOL | {"devices": 32}]})
    applied, put, *_ = operator.get("/audit").json()["items"]
    assert (put["action"], put["detail"]) == ("teams.put", "quotas.h100.nominalQuota 4 -> 8")
    assert applied["detail"] == "change pools h100: devices 16 -> 32"


def test_a_document_that_others_name_is_not_removed(operator):
    operator.put("/pools/h100", POOL)
    quota = {"pool": "h100", "nominalQuota": 8}
    assert operator.put("/teams/vision", {"name": "vision", "quotas": [quota]}).status_code == 201
    when = {"type": "weekly", "days": ["mon"], "start": "20:00:00", "end": "08:00:00"}
    night = {"name": "night", "pool": "h100", "devices": 1, "when": when}
    assert operator.put("/reservations/night", night).status_code == 201
    busy = {"name": "busy", "pool": "h100", "metric": "qps", "above": 1, "limit": 1}
    assert operator.put("/triggers/busy", busy).status_code == 201
    refused = operator.delete("/pools/h100")
    said = "pool h100 is in use by the quota of vision, reservation night, trigger busy"
    assert (refused.status_code, refused.json()["detail"]) == (409, said)
    # Of a document that is applied as a whole it is more help to name the field that is wrong.
    without = operator.post("/config/apply", {"pools": []})
    assert (without.status_code, without.json()["field"]) == (422, "teams.vision.quotas.h100.pool")
    for path in ("/teams/vision", "/reservations/night", "/triggers/busy"):
        assert operator.delete(path).status_code == 204
    assert operator.delete("/pools/h100").status_code == 204
    assert operator.get("/pools/h100").status_code == 404


HPC = {"name": "hpc", "kind": "slurm", "options": {"setup": "module load cuda"}}


def test_an_engine_that_pools_name_is_not_removed(operator):
    assert operator.put("/pools/h100", POOL | {"engine": "hpc"}).json()["field"] == "pools.h100.engine"
    assert operator.put("/engines/hpc", HPC).status_code == 201
    assert operator.put("/pools/h100", POOL | {"engine": "hpc"}).status_code == 201
    refused = operator.delete("/engines/hpc")
    assert (refused.status_code, refused.json()["detail"]) == (409, "engine hpc is in use by pool h100")
    assert "elastane pool set POOL --engine OTHER" in refused.json()["do"]
    without = operator.post("/config/apply", {"engines": []})
    assert (without.status_code, without.json()["field"]) == (422, "pools.h100.engine")
    assert operator.put("/pools/h100", POOL).status_code == 200
    assert operator.delete("/engines/hpc").status_code == 204
    assert operator.get("/engines/hpc").status_code == 404


def test_wrong_options_of_engines_and_pools_are_refused_with_their_place(operator):
    operator.put("/engines/hpc", HPC)
    pool = POOL | {"engine": "hpc", "options": {"partition": "gpu", "nodes": "4"}}
    refused = operator.put("/pools/h100", pool)
    assert (refused.status_code, refused.json()["field"]) == (422, "pools.h100.options.nodes")
    assert refused.json()["do"].startswith("write one of: partition, account")
    for document, field in (
        (HPC | {"options": {"conf": "slurm.conf"}}, "engines.hpc.options.conf"),
        (HPC | {"options": {"setup": 3}}, "options.setup"),
        (HPC | {"kind": "slrum"}, "kind"),
        (HPC | {"partition": "gpu"}, "partition"),
    ):
        refused = operator.put("/engines/hpc", document)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert operator.get("/engines/hpc").json() == HPC


def test_a_pool_with_jobs_keeps_its_engine(cluster, make_spec):
    operator = cluster.api.user("operator")
    operator.put("/pools/h100", POOL)
    operator.put("/engines/hpc", HPC)
    cluster.api.user().post("/jobs", make_spec())
    cluster.until(lambda: cluster.workers("train") == 4)
    moved = POOL | {"engine": "hpc"}
    answers = (
        operator.put("/pools/h100", moved),
        operator.post("/config/apply", {"pools": [moved]}),
        operator.post("/config/diff", {"pools": [moved]}),
    )
    (said,) = {(answer.status_code, answer.json()["detail"]) for answer in answers}
    assert said == (409, "pool h100 is in use by job train, so it keeps its engine")
    assert operator.put("/pools/h100", POOL | {"devices": 8}).status_code == 200
    cluster.api.user().post("/jobs/train/cancel")
    cluster.until(lambda: cluster.workers("train") == 0)
    cluster.pass_time(2)
    assert operator.put("/pools/h100", moved).status_code == 200


def test_the_default_class_cannot_be_removed_while_jobs_use_it(operator, api, make_spec):
    usual = {"name": "usual", "value": 50, "default": True}
    operator.put("/priorities/usual", usual)
    api.user().post("/jobs", make_spec("plain"))
    refused = operator.delete("/priorities/usual")
    said = "priority class usual is in use by job plain"
    assert (refused.status_code, refused.json()["detail"]) == (409, said)
    assert operator.put("/priorities/usual", usual | {"default": False}).status_code == 200
    assert operator.delete("/priorities/usual").status_code == 204


def test_a_priority_class_cannot_be_removed_while_jobs_name_it(operator, api, make_spec):
    for name in ("urgent", "calm"):
        operator.put(f"/priorities/{name}", {"name": name, "value": 10})
    ada = api.user()
    for number in range(7):
        ada.post("/jobs", make_spec(f"job-{number}", priority_class="urgent"))
    refused = operator.delete("/priorities/urgent")
    said = "priority class urgent is in use by jobs job-0, job-1, job-2, job-3, job-4 and 2 more"
    assert (refused.status_code, refused.json()["detail"]) == (409, said)
    left_out = {"priorities": [{"name": "calm", "value": 10}]}
    assert operator.post("/config/apply", left_out).status_code == 409
    assert ada.post("/jobs/job-0/scale", {"maxReplicas": 2}).status_code == 200
    for number in range(6):
        ada.post(f"/jobs/job-{number}/cancel")
    assert "is in use by job job-6" in operator.delete("/priorities/urgent").json()["detail"]
    ada.post("/jobs/job-6/priority", {"priorityClass": "calm"})
    assert operator.post("/config/apply", left_out).status_code == 200


def test_a_team_cannot_be_removed_while_it_has_jobs_or_tokens(operator, api, make_spec):
    operator.put("/teams/vision", {"name": "vision"})
    operator.put("/teams/speech", {"name": "speech"})
    made = operator.post(
        "/tokens", {"user": "ada", "role": "submitter", "team": "vision", "validS": 3600}
    ).json()["token"]["id"]
    operator.post("/jobs", make_spec())
    left_out = {"teams": [{"name": "speech"}]}

    def refused():
        answers = (
            operator.delete("/teams/vision"),
            operator.post("/config/apply", left_out),
            operator.post("/policy/check", left_out),
        )
        (said,) = {(answer.status_code, answer.json()["detail"]) for answer in answers}
        return said

    assert refused() == (409, "team vision is in use by job train")
    operator.post("/jobs/train/cancel")
    assert refused() == (409, f"team vision is in use by token {made}")
    api.token(team="*")
    operator.delete(f"/tokens/{made}")
    assert operator.post("/config/apply", left_out).status_code == 200
    assert operator.delete("/teams/speech").status_code == 204


def test_an_expired_token_does_not_keep_a_team(operator, api):
    operator.put("/teams/vision", {"name": "vision"})
    operator.post("/tokens", {"user": "ada", "role": "viewer", "team": "vision", "validS": 60})
    assert operator.delete("/teams/vision").status_code == 409
    api.clock.now_s += 61
    assert operator.delete("/teams/vision").status_code == 204


def test_the_name_of_a_document_must_equal_that_of_its_path(operator):
    answer = operator.put("/pools/other", POOL)
    assert (answer.status_code, answer.json()["field"]) == (422, "name")


def test_rules_exist_before_they_are_set(operator):
    rules = operator.get("/rules").json()
    assert operator.put("/rules", rules | {"cooldownS": 5}).status_code == 201
    assert operator.get("/rules").json()["cooldownS"] == 5
    assert operator.put("/rules", {"cooldownS": -1}).status_code == 422


CONFIG = {
    "version": 1,
    "cohorts": [{"name": "research"}],
    "teams": [{"name": "vision", "cohort": "research"}],
    "priorities": [{"name": "high", "value": 10}],
    "engines": [{"name": "hpc", "kind": "slurm"}],
    "pools": [POOL],
    "egress": [{"name": "berlin", "prices": {"boston": 0.09, "*": 0.05}}],
    "reservations": [
        {
            "name": "inference",
            "pool": "h100",
            "devices": 4,
            "when": {"type": "weekly", "start": "09:00:00", "end": "18:00:00", "zone": "Europe/Berlin"},
        }
    ],
}


def test_a_configuration_is_compared_applied_and_read_back(operator, api):
    compared = msgspec.json.decode(operator.post("/config/diff", CONFIG).content)
    applied = msgspec.json.decode(operator.post("/config/apply", CONFIG).content)
    assert applied == compared
    assert {one["change"] for one in applied["items"]} == {"add"}
    assert len(applied["items"]) == 7
    assert operator.post("/config/diff", CONFIG).json()["items"] == []
    whole = msgspec.json.decode(operator.get("/config").content, type=Config)
    assert operator.post("/config/diff", whole).json()["items"] == []


def test_applying_removes_unlisted_documents_and_leaves_other_kinds(operator):
    operator.post("/config/apply", CONFIG)
    answer = operator.post("/config/apply", {"teams": []})
    (change,) = msgspec.json.decode(answer.content)["items"]
    assert (change["kind"], change["name"], change["change"]) == ("teams", "vision", "remove")
    assert operator.get("/pools/h100").status_code == 200


def test_a_configuration_that_contradicts_itself_changes_nothing(operator):
    operator.post("/config/apply", CONFIG)
    refused = operator.post("/config/apply", {"teams": [{"name": "new"}], "pools": []})
    assert refused.status_code == 422
    assert operator.get("/teams/new").status_code == 404
    assert operator.get("/teams/vision").status_code == 200


def test_a_policy_check_predicts_sizes_and_changes_nothing(sqlite_store, api_over, make_spec):
    def plan(snapshot):
        devices = sum(pool.devices for pool in snapshot.pools)
        why = (MinimumFits(node=""),)
        return Plan(
            decisions=tuple(
                Decision(job=job.name, action="start", workers={"h100": min(devices, 4)}, why=why)
                for job in snapshot.jobs
            )
        )

    api = api_over(sqlite_store, plan=plan, explain=lambda decision, _: (f"{decision.job} fits",))
    operator = api.user("operator")
    operator.put("/pools/h100", POOL)
    api.user().post("/jobs", make_spec())
    smaller = {"pools": [POOL | {"devices": 2}]}
    foreseen = msgspec.json.decode(operator.post("/policy/check", smaller).content, type=Forecast)
    assert [(one.job, one.before, one.after, one.sentences) for one in foreseen.jobs] == [
        ("train", 4, 2, ("train fits",))
    ]
    assert [(one.kind, one.change) for one in foreseen.documents] == [("pools", "change")]
    assert operator.get("/pools/h100").json()["devices"] == 16


def test_nodes_are_drained_failed_and_returned_to_use_over_the_api(operator, api, sqlite_store):
    operator.put("/pools/h100", POOL)
    with sqlite_store.begin_write() as tx:
        nodes.record_node(tx, "n1", "h100", 8, api.clock())
        nodes.record_node(tx, "n2", "h100", 8, api.clock())

    def devices():
        with sqlite_store.begin_read() as tx:
            (pool,) = take_cluster_snapshot(tx, api.clock()).snapshot.pools
        return pool.devices, pool.leaving

    assert devices() == (16, 0)
    assert operator.post("/nodes/n1/drain", {"why": "new disk"}).json()["why"] == "new disk"
    assert devices() == (16, 8)
    assert operator.post("/nodes/n1/fail").json()["wanted"] == "failed"
    assert devices() == (8, 0)
    assert operator.post("/nodes/n1/use").json()["wanted"] == "use"
    assert devices() == (16, 0)
    for why in ("x" * 1001, "new\x1b]0;disk\x07"):
        refused = operator.post("/nodes/n1/drain", {"why": why})
        assert (refused.status_code, refused.json()["field"]) == (422, "why")
    assert operator.post("/nodes/n9/drain").status_code == 404
    assert operator.delete("/nodes/n9").status_code == 404
    assert api.user("team-admin").post("/nodes/n1/drain").status_code == 403


def test_a_node_is_forgotten_once_no_engine_sees_it(operator, api, sqlite_store):
    with sqlite_store.begin_write() as tx:
        nodes.record_node(tx, "n1", "h100", 8, api.clock())
    refused = operator.delete("/nodes/n1")
    assert (refused.status_code, refused.json()["detail"]) == (409, "node n1 was seen 0 s ago")
    assert len(operator.get("/nodes").json()["items"]) == 1
    api.clock.now_s += UNSEEN_S + 1
    assert api.user("team-admin").delete("/nodes/n1").status_code == 403
    assert operator.delete("/nodes/n1").status_code == 204
    assert operator.get("/nodes").json()["items"] == []
    assert operator.delete("/nodes/n1").status_code == 404


def test_reports_become_limits_until_they_are_no_longer_valid(operator, api, sqlite_store):
    operator.put("/pools/h100", POOL)
    operator.put(
        "/triggers/busy",
        {"name": "busy", "metric": "inference_qps", "above": 100, "pool": "h100", "limit": 4},
    )
    with sqlite_store.begin_write() as tx:
        nodes.record_node(tx, "n1", "h100", 16, api.clock())
    reporter = api.user("reporter", user="meter")

    def staying():
        with sqlite_store.begin_read() as tx:
            (pool,) = take_cluster_snapshot(tx, api.clock()).snapshot.pools
        return pool.devices - pool.leaving

    def report(**said):
        assert reporter.post("/reports", said).status_code == 204

    assert staying() == 16
    report(kind="capacity", pool="h100", devices=10, validS=60)
    assert staying() == 10
    report(kind="metric", metric="inference_qps", value=150, validS=30)
    assert staying() == 4
    report(kind="metric", metric="inference_qps", value=50, validS=30)
    assert staying() == 10
    api.clock.now_s += 61
    assert staying() == 16
    report(kind="notice", node="n1", inS=120)
    assert staying() == 0
    (node,) = operator.get("/nodes").json()["items"]
    assert node["goneAtS"] == api.clock() + 120
    operator.post("/nodes/n1/drain", {"why": "new disk"})
    report(kind="notice", node="n1", inS=30)
    (node,) = operator.get("/nodes").json()["items"]
    assert (node["wanted"], node["why"], node["goneAtS"]) == ("drain", "new disk", api.clock() + 30)
    assert reporter.post("/reports", {"kind": "notice", "node": "n9", "inS": 1}).status_code == 404
    assert reporter.post("/reports", {"kind": "capacity", "pool": "h100", "devices": -1}).status_code == 422
    assert reporter.post("/reports", {"kind": "price", "pool": "h100", "price": -1}).status_code == 422
    assert reporter.post("/reports", {"kind": "price", "pool": "h9", "price": 1}).status_code == 404
    assert reporter.get("/jobs").status_code == 403
    assert api.user().post("/reports", {"kind": "notice", "node": "n1", "inS": 1}).status_code == 403


def test_the_audit_log_has_the_reports(operator, api):
    operator.put("/pools/h100", POOL)
    for said in (
        {"kind": "capacity", "pool": "h100", "devices": 5, "validS": 60},
        {"kind": "price", "pool": "h100", "price": 2.5, "validS": 60},
        {"kind": "metric", "metric": "queue", "value": 30},
    ):
        assert api.user("reporter").post("/reports", said).status_code == 204
    lines = [line for line in operator.get("/audit").json()["items"] if line["action"] == "report"]
    assert [(line["target"], line["detail"]) for line in reversed(lines)] == [
        ("pool h100", "at most 5 devices, for 60 s"),
        ("pool h100", "costs 2.5 an hour, for 60 s"),
        ("metric queue", "is 30, for 600 s"),
    ]


def test_usage_is_devices_times_time(operator, api, sqlite_store, make_spec):
    api.user().post("/jobs", make_spec("a"))
    api.user(team="speech", user="bob").post("/jobs", make_spec("b", team="speech"))

    def use(job, *uses):
        with sqlite_store.begin_write() as tx:
            job_rows.use(tx, job, uses, api.clock())

    begin = api.clock()
    use("a", Use(pool="h100", terms="owned", devices=4, price=3.6))
    use("b", Use(pool="h100", terms="borrowed", devices=2, price=3.6))
    api.clock.now_s += 100
    use("a", Use(pool="h100", terms="owned", devices=4), Use(pool="spot", terms="spot", devices=8))
    api.clock.now_s += 50
    use("b")

    rows = operator.get("/usage?by=team").json()["rows"]
    by_team = {row["team"]: row for row in rows}
    assert by_team["vision"]["ownedDeviceS"] == pytest.approx(600)
    assert by_team["vision"]["spotDeviceS"] == pytest.approx(400)
    assert by_team["vision"]["cost"] == pytest.approx(4 * 100 * 3.6 / 3600)
    assert by_team["speech"]["borrowedDeviceS"] == pytest.approx(300)

    part = operator.get(f"/usage?by=pool&by=job&from={begin + 90}&until={begin + 110}").json()["rows"]
    assert {(row["pool"], row["job"]): row["ownedDeviceS"] for row in part} == {
        ("h100", "a"): pytest.approx(80),
        ("h100", "b"): 0.0,
        ("spot", "a"): 0.0,
    }
    table = list(csv.DictReader(io.StringIO(api.user().get("/usage?format=csv&by=user").text)))
    assert [(row["user"], float(row["owned_device_s"])) for row in table] == [("ada", pytest.approx(600))]


def test_every_change_wakes_the_loop_and_no_read_does(operator, api):
    operator.put("/pools/h100", POOL)
    assert api.woken == 1
    operator.get("/pools")
    operator.put("/pools/h100", {"name": "nonsense"})
    assert api.woken == 1


def test_changes_decode_with_the_old_and_the_new_document(operator):
    operator.put("/pools/h100", POOL)
    answer = operator.post("/config/diff", {"pools": [POOL | {"devices": 1}]})
    (change,) = msgspec.json.decode(answer.content, type=Page[Change]).items
    assert (change.before["devices"], change.after["devices"]) == (16, 1)
