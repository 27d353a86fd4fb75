"""Jobs as users of the API see them."""

import threading

import msgspec
import pytest

from elastane.cluster.controller.rest import bodies
from elastane.cluster.controller.rest.app import describe_api
from elastane.cluster.controller.rest.logs import PROCESS
from elastane.cluster.controller.rest.parameters import WORDS
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.rest import Job, JobExplanation, JobSummary
from elastane.common.bodies import Page


def job(answer):
    return msgspec.json.decode(answer.content, type=Job)


def test_a_job_is_submitted_described_and_listed(api, make_spec):
    ada = api.user()
    submitted = ada.post("/jobs", make_spec())
    assert submitted.status_code == 201
    assert submitted.headers["ETag"] == '"1"'
    assert ada.get("/jobs/train").content == submitted.content
    assert job(submitted).spec == make_spec()
    assert (job(submitted).state, job(submitted).user) == ("queued", "ada")
    page = msgspec.json.decode(ada.get("/jobs").content, type=Page[JobSummary])
    assert [one.name for one in page.items] == ["train"]
    assert api.woken == 1


def test_the_pages_of_a_list_have_every_job_once(api, make_spec):
    ada = api.user()
    for number in range(7):
        ada.post("/jobs", make_spec(f"job-{number}"))
    seen, after = [], ""
    while True:
        answer = ada.get(f"/jobs?limit=3{after}")
        page = msgspec.json.decode(answer.content, type=Page[JobSummary])
        seen += [one.name for one in page.items]
        if not page.after:
            break
        after = f"&after={page.after}"
    assert seen == [f"job-{number}" for number in range(6, -1, -1)]


def test_lists_are_filtered(api, make_spec):
    ada = api.user()
    for name in ("a-1", "a-2", "b-1"):
        ada.post("/jobs", make_spec(name, queue=name[0]))
    ada.post("/jobs/a-1/cancel")

    def names(query):
        return [one["name"] for one in ada.get(f"/jobs?{query}").json()["items"]]

    assert names("prefix=a-") == ["a-2", "a-1"]
    assert names("state=cancelled") == ["a-1"]
    assert names("state=queued&state=cancelled&queue=a") == ["a-2", "a-1"]
    assert names("user=bob") == []
    assert names("prefix=a_") == []


def test_a_repeated_submission_makes_one_job_and_gets_the_same_answer(api, make_spec):
    ada = api.user()
    first = ada.post("/jobs", make_spec(), Idempotency_Key="k1")
    again = ada.post("/jobs", make_spec(), Idempotency_Key="k1")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(ada.get("/jobs").json()["items"]) == 1


def test_an_idempotency_key_belongs_to_one_request_of_one_token(api, make_spec):
    ada, bob = api.user(), api.user(user="bob")
    ada.post("/jobs", make_spec(), Idempotency_Key="k1")
    other = ada.post("/jobs", make_spec("other"), Idempotency_Key="k1")
    assert other.status_code == 422
    assert "another request" in other.json()["detail"]
    assert bob.post("/jobs", make_spec("other"), Idempotency_Key="k1").status_code == 201


def test_a_failed_request_may_be_repeated_with_its_key(api, make_spec):
    ada = api.user()
    assert ada.post("/jobs/train/pause", Idempotency_Key="k1").status_code == 404
    ada.post("/jobs", make_spec())
    assert ada.post("/jobs/train/pause", Idempotency_Key="k1").status_code == 200


def test_a_name_can_be_used_once(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec())
    answer = ada.post("/jobs", make_spec())
    assert answer.status_code == 409
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "train-2" in answer.json()["do"]


def test_wrong_specs_are_refused_with_the_name_of_the_field(api):
    ada = api.user()

    def refused(**changes):
        body = {"name": "train", "team": "vision", "script": "/t.py"} | changes
        answer = ada.post("/jobs", body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"]
        return answer.json()["field"]

    assert refused(name="Not a name") == "name"
    assert refused(name="train\n") == "name"
    assert refused(elasticPolicy={"minReplicas": 0}) == "elasticPolicy.minReplicas"
    assert refused(elasticPolicy={"minReplicas": 3, "maxReplicas": 2}) == "elasticPolicy.maxReplicas"
    assert refused(elasticPolicy={"minReplicas": "3"}) == "elasticPolicy.minReplicas"
    assert refused(elasticPolicy={"replicaDiscreteValues": [2, 1]}) == "elasticPolicy.replicaDiscreteValues"
    assert refused(command=["rm"]) == "command"
    assert refused(env={"A B": "1"}) == "env.A B"
    assert refused(env={"A": "\0"}) == "env.A"
    assert refused(priorityClass="highest") == "priorityClass"
    assert refused(colour="red") == "colour"
    assert refused(budget=-1) == "budget"
    assert refused(workingDir="here") == "workingDir"
    assert refused(script="t.py") == "script"
    assert refused(training={"seed": -1}) == "training.seed"
    assert refused(resourcesPerWorker={"devices": 10**30}) == "resourcesPerWorker.devices"


def test_a_spec_cannot_carry_files(api):
    body = {"name": "train", "team": "vision", "script": "/t.py", "args": ["x" * 1000]}
    refused = api.user().post("/jobs", body | {"env": {"A": "x" * 200_000, "B": "y" * 100_000}})
    assert (refused.status_code, refused.json()["field"]) == (422, "env")
    assert "a job may have 262144" in refused.json()["detail"]
    assert "into a file" in refused.json()["do"]
    assert api.user().post("/jobs", body | {"env": {"A": "x" * 100_000}}).is_success


def test_a_relative_script_starts_from_the_working_directory(api):
    body = {"name": "train", "team": "vision", "script": "t.py"}
    answer = api.user().post("/jobs", body)
    assert answer.json()["detail"] == "script: 't.py' is not an absolute path"
    assert "workingDir" in answer.json()["do"]
    assert api.user().post("/jobs", body | {"workingDir": "/home/ada"}).is_success


def test_a_body_that_is_not_json_is_refused(api):
    ada = api.user()
    for raw in (
        b"",
        b"{",
        b"\xff",
        b'{"name": "\\ud800"}',
        b'{"name": "\xff"}',
        b'{"\xff": 1}',
        b"[" * 100_000,
    ):
        assert ada.ask("POST", "/jobs", raw=raw).status_code == 400


def test_a_too_large_body_is_refused_with_and_without_an_announced_length(api):
    ada = api.user()
    large = b" " * (5 << 20)
    assert ada.ask("POST", "/jobs", raw=large).status_code == 413

    async def dribbled():
        for _ in range(6):
            yield b" " * (1 << 20)

    assert ada.ask("POST", "/jobs", raw=dribbled()).status_code == 413
    assert ada.ask("POST", "/jobs", raw=b"{}", Content_Length="-1").status_code == 413


def test_scale_pause_resume_and_priority_change_the_wanted_state(api, make_spec):
    operator, ada = api.user("operator"), api.user()
    operator.put("/priorities/high", {"name": "high", "value": 10})
    ada.post("/jobs", make_spec())
    scaled = job(ada.post("/jobs/train/scale", {"maxReplicas": 8}))
    assert (scaled.spec.elastic_policy.min_replicas, scaled.spec.elastic_policy.max_replicas) == (1, 8)
    paused = job(ada.post("/jobs/train/pause"))
    assert (paused.wanted, paused.state) == ("pause", "paused")
    resumed = job(ada.post("/jobs/train/resume"))
    assert (resumed.wanted, resumed.state) == ("run", "queued")
    assert job(ada.post("/jobs/train/priority", {"priorityClass": "high"})).priority_class == "high"
    wrong = ada.post("/jobs/train/scale", {"maxReplicas": 0})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "elasticPolicy.maxReplicas")


def test_limits_choose_among_listed_sizes_and_another_list_replaces_them(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec(elastic_policy=ElasticPolicy(replica_discrete_values=(1, 2, 4, 8))))

    def sizes(**wanted):
        policy = job(ada.post("/jobs/train/scale", wanted)).spec.elastic_policy
        assert policy.limits == (policy.min_replicas, policy.max_replicas)
        return policy.replica_discrete_values

    assert sizes(minReplicas=2) == (2, 4, 8)
    assert sizes(maxReplicas=7) == (2, 4)
    for beyond in ({"maxReplicas": 8}, {"minReplicas": 1}, {"minReplicas": 3, "maxReplicas": 3}):
        refused = ada.post("/jobs/train/scale", beyond)
        assert (refused.status_code, refused.json()["field"]) == (422, "elasticPolicy.replicaDiscreteValues")
    assert sizes(replicaDiscreteValues=[1, 6, 16]) == (1, 6, 16)
    assert sizes(minReplicas=1, maxReplicas=1) == (1,)
    wrong = ada.post("/jobs/train/scale", {"replicaDiscreteValues": [4, 2]})
    assert "is not ascending" in wrong.json()["detail"]
    assert sizes(replicaDiscreteValues=[], maxReplicas=4) == ()


def test_a_second_pause_changes_nothing(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec())
    first = ada.post("/jobs/train/pause")
    assert ada.post("/jobs/train/pause").content == first.content


def test_a_job_without_devices_is_cancelled_at_once(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec())
    cancelled = job(ada.post("/jobs/train/cancel"))
    assert (cancelled.state, cancelled.wanted) == ("cancelled", "cancel")
    assert job(ada.post("/jobs/train/cancel")) == cancelled
    assert ada.post("/jobs/train/resume").status_code == 409


def test_a_change_meant_for_another_version_is_refused(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec())
    ada.post("/jobs/train/pause")
    stale = ada.post("/jobs/train/cancel", If_Match='"1"')
    assert stale.status_code == 412
    assert job(ada.get("/jobs/train")).wanted == "pause"
    assert ada.post("/jobs/train/cancel", If_Match='"2"').status_code == 200


def test_events_list_the_changes_of_a_job_in_order(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec())
    ada.post("/jobs/train/scale", {"maxReplicas": 5})
    ada.post("/jobs/train/cancel")
    first = ada.get("/jobs/train/events?limit=2").json()
    rest = ada.get(f"/jobs/train/events?after={first['after']}").json()
    kinds = [one["kind"] for one in first["items"] + rest["items"]]
    assert kinds == ["job.submitted", "job.scaled", "job.cancelled"]


def test_events_and_the_audit_log_have_the_old_and_the_new_values(api, make_spec):
    operator, ada = api.user("operator"), api.user()
    operator.put("/priorities/high", {"name": "high", "value": 10})
    ada.post("/jobs", make_spec(env={"TOKEN": "secret"}))
    ada.post("/jobs/train/scale", {"minReplicas": 2, "maxReplicas": 9})
    ada.post("/jobs/train/priority", {"priorityClass": "high"})
    ada.post("/jobs/train/bounds", {"budget": 5.5, "loss": 1.5})
    ada.post("/jobs/train/bounds", {"budget": None, "deadline": "2027-02-01T00:00:00Z"})
    ada.post("/jobs/train/pause")
    told = {
        "ada scaled train": "elasticPolicy.minReplicas 1 -> 2, elasticPolicy.maxReplicas 4 -> 9",
        "ada changed the priority of train": "priorityClass none -> high",
        "ada changed the bounds of train": "budget 5.5 -> none, deadline none -> 2027-02-01T00:00:00Z",
    }
    said = ada.get("/jobs/train/events").json()["items"]
    messages = [one["message"] for one in said]
    assert messages[3] == "ada changed the bounds of train: target.loss none -> 1.5, budget none -> 5.5"
    del messages[3]
    assert messages[1:] == [f"{what}: {words}" for what, words in told.items()] + ["ada paused train"]
    audited = operator.get("/audit").json()["items"]
    assert [one["detail"] for one in audited if one["action"] == "job.scaled"] == [told["ada scaled train"]]
    assert "secret" not in str(said) + str(audited)


def test_a_job_without_a_decision_has_an_empty_explanation(api, make_spec):
    ada = api.user()
    ada.post("/jobs", make_spec())
    explained = msgspec.json.decode(ada.get("/jobs/train/explain").content, type=JobExplanation)
    assert (explained.workers, explained.decisions) == (0, ())


def test_every_pattern_of_a_parameter_has_a_description():
    forms = {
        parameter["schema"]["pattern"]
        for path in describe_api()["paths"].values()
        for operation in path.values()
        for parameter in operation.get("parameters", ())
        if "pattern" in parameter["schema"]
    }
    assert forms <= set(WORDS)
    assert PROCESS in forms


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"name": "a", "team": "vision", "script": "/a.py", "name": "b"}', "name"),
        (b'{"name": "a", "team": "vision", "script": "/a.py", "env": {"A": "1", "\\u0041": "2"}}', "A"),
    ],
)
def test_a_repeated_key_of_a_body_is_refused(api, raw, field):
    refused = api.user().post("/jobs", raw=raw)
    assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert refused.json()["detail"] == f"{field}: appears twice in one object"
    assert api.user().get("/jobs").json()["items"] == []


def test_a_body_is_decoded_outside_of_the_event_loop(api, make_spec, monkeypatch):
    readers = []
    decoded = bodies._decode_body

    def noted(*what):
        readers.append(threading.current_thread())
        return decoded(*what)

    monkeypatch.setattr(bodies, "_decode_body", noted)
    assert api.user().post("/jobs", make_spec()).is_success
    (reader,) = readers
    assert reader is not threading.current_thread(), "the event loop's thread, which serves all"
