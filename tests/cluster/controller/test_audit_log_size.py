"""The audit log stays small with any number and kind of refusals, and records them."""

import pytest

from elastane.cluster.controller.access.refusals import ONE_BY_ONE, WINDOW_S
from elastane.cluster.controller.rest.context import Rate, Settings
from elastane.cluster.controller.store.failures import StoreFull

EAGER = Settings(per_token=Rate(per_s=1e6, burst=10**6))
MIB = 2**20


@pytest.fixture
def api(api_over, sqlite_store):
    return api_over(sqlite_store, settings=EAGER)


def lines(api):
    return api.user("operator").get("/audit?limit=1000").json()["items"]


def size_bytes(api):
    with api.store.begin_read() as tx:
        found = tx.exec_driver_sql("SELECT sum(length(target) + length(detail) + length(team)) FROM audit")
        return found.scalar_one() or 0


def test_an_invalid_spec_of_a_viewer_writes_nothing(api, make_spec):
    viewer = api.user("viewer")
    for spec in (make_spec(team="x" * MIB), make_spec("y" * MIB), make_spec(env={"A": "z" * MIB})):
        assert viewer.post("/jobs", spec).status_code == 422
    assert lines(api) == []


@pytest.mark.parametrize("role", ["viewer", "submitter", "team-admin", "reporter"])
def test_no_request_writes_long_audit_lines(api, role):
    user, long = api.user(role), "x" * MIB
    bodies = [
        ("POST", "/tokens", {"user": long, "role": "viewer", "team": "speech"}),
        ("POST", "/tokens", {"user": "a", "role": "viewer", "team": long}),
        ("POST", "/tokens", {"user": "a", "role": "viewer", "team": "speech", "note": long}),
        ("POST", "/reports", {"kind": "notice", "node": long, "inS": 1}),
        ("POST", "/reports", {"kind": "metric", "metric": long, "value": 1}),
        ("POST", "/nodes/n1/drain", {"why": long}),
        ("PUT", "/teams/speech", {"name": "speech", "cohort": long}),
        ("PUT", "/pools/h100", {"name": "h100", "device": long, "devices": 1}),
        ("PUT", "/pools/h100", {"name": long, "device": "h100", "devices": 1}),
        ("POST", "/config/apply", {"pools": [{"name": "a", "device": long, "devices": 1}]}),
        ("POST", "/jobs/train/priority", {"priorityClass": long}),
    ]
    for method, path, body in bodies:
        answer = user.ask(method, path, body)
        assert answer.status_code in {403, 404, 422}, path
        assert len(answer.content) < 10_000, path
    assert size_bytes(api) < 10_000


def test_repeated_refusals_of_a_token_take_few_lines_and_are_all_counted(api):
    eve = api.user(team="speech", user="eve")
    for number in range(500):
        assert eve.get(f"/jobs/job{number}").status_code == 404
        assert eve.delete(f"/pools/pool{number}").status_code == 403
    told = lines(api)
    assert ONE_BY_ONE < len(told) < ONE_BY_ONE + 10
    assert sum(one["times"] for one in told) == 100  # the others wait for the end of the hour
    assert not any(one["allowed"] for one in told)
    assert "more requests of this token were refused" in told[0]["detail"]
    api.clock.now_s += WINDOW_S
    eve.delete("/pools/again")
    assert sum(one["times"] for one in lines(api)) == 501


def test_counted_refusals_are_written_at_the_end_of_the_hour_or_of_the_controller(api):
    eve = api.user("viewer", user="eve")
    for number in range(ONE_BY_ONE + 5):
        eve.delete(f"/pools/pool{number}")
    assert sum(one["times"] for one in lines(api)) == ONE_BY_ONE
    api.controller.refusals.write_ended(api.clock() + WINDOW_S)
    newest = lines(api)[0]
    assert (newest["times"], newest["user"], newest["team"]) == (5, "eve", "vision")
    eve.delete("/pools/first")
    for _ in range(ONE_BY_ONE + 2):
        eve.delete("/pools/last")
    api.controller.refusals.write_ended(api.clock(), all_of_them=True)
    assert sum(one["times"] for one in lines(api)) == 2 * ONE_BY_ONE + 8


def test_refusals_during_a_full_disk_are_written_later(api, monkeypatch, caplog):
    eve = api.user("viewer", user="eve")

    def full(*_, **__):
        raise StoreFull("there is no room")

    with monkeypatch.context() as disk:
        disk.setattr("elastane.cluster.controller.store.history.append_audit_line", full)
        for _ in range(3):
            assert eve.delete("/pools/h100").status_code == 403
    assert "eve" in caplog.text
    eve.delete("/pools/h100")
    assert sum(one["times"] for one in lines(api)) == 4


def test_no_sum_of_refusals_reveals_things_of_another_team(api, make_spec):
    api.user().post("/jobs", make_spec())

    def told_after_asking_for(job):
        """Return the lines that an admin of the team reads after many requests for a job."""
        admin = api.user("team-admin", team=f"team-of-{job}", user="eve")
        for _ in range(ONE_BY_ONE + 3):
            assert admin.get(f"/jobs/{job}").status_code == 404
        admin.delete("/pools/h100")
        api.controller.refusals.write_ended(api.clock() + WINDOW_S)
        found = admin.get("/audit?limit=1000").json()["items"]
        return [(one["action"], one["target"], one["times"], one["detail"]) for one in found]

    assert told_after_asking_for("train") == told_after_asking_for("nowhere") == []
    refused = [one for one in lines(api) if one["target"] == "job train" and not one["allowed"]]
    assert sum(one["times"] for one in refused) == ONE_BY_ONE + 3


def test_other_tokens_get_a_line_for_each_refusal_beside_a_token_with_many(api):
    eve, vic = api.user("viewer", user="eve"), api.user("viewer", user="vic")
    for _ in range(300):
        eve.delete("/pools/h100")
    vic.delete("/pools/h100")
    newest = lines(api)[0]
    assert (newest["user"], newest["target"], newest["times"]) == ("vic", "pool h100", 1)


def test_the_audit_line_of_an_applied_configuration_is_complete(api):
    pools = [{"name": f"pool{number}", "device": "h100", "devices": 1} for number in range(100)]
    assert api.user("operator").post("/config/apply", {"pools": pools}).is_success
    assert "pool99" in lines(api)[0]["detail"]


@pytest.mark.parametrize(
    ("path", "document", "field"),
    [
        ("/pools/h", {"name": "h", "device": "x" * 2000, "devices": 1}, "pools.h.device"),
        ("/pools/h", {"name": "h", "device": "x", "devices": 1, "site": "\x1b[2J"}, "pools.h.site"),
        ("/pools/h", {"name": "h", "device": "x", "devices": 1, "labels": {"a": "b\nc"}}, "pools.h.labels.a"),
        ("/priorities/h", {"name": "h", "value": 1, "description": "\u202e"}, "priorities.h.description"),
    ],
)
def test_texts_in_declarations_have_a_limited_length_and_no_control_characters(api, path, document, field):
    answer = api.user("operator").put(path, document)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
