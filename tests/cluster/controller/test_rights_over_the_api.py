"""The rights of tokens: a thing that a token may not see does not exist for it."""

import httpx
import pytest

from elastane.cluster.controller.rest.app import describe_api
from elastane.cluster.controller.store.failures import StoreFull
from elastane.cluster.nouns.jobs import ElasticPolicy
from tests.waiting import WAIT_S

JOB_READS = ("", "/explain", "/events", "/logs")
JOB_CHANGES = ("/pause", "/resume", "/cancel")


def test_a_refusal_is_a_plain_sentence(api, make_spec):
    said = {
        ("reporter", "GET", "/jobs"): "a reporter may not read jobs: its token may only report",
        ("viewer", "POST", "/jobs/train/cancel"): "a viewer of team vision may not change jobs",
        ("submitter", "GET", "/audit"): "a submitter of team vision may not read the audit log",
        ("submitter", "GET", "/nodes"): "only an operator may read nodes",
        ("submitter", "GET", "/config"): "only an operator may read the whole configuration",
        ("team-admin", "GET", "/engines"): "only an operator may read engines",
        ("viewer", "GET", "/engines/hpc"): "only an operator may read engines",
        ("submitter", "DELETE", "/pools/h100"): "only an operator may change declarations",
        (
            "team-admin",
            "POST",
            "/reports",
        ): "only an operator or a reporter may send reports",
    }
    api.user().post("/jobs", make_spec())
    body = {"kind": "metric", "metric": "qps", "value": 1}
    for (role, method, path), words in said.items():
        refused = api.user(role).ask(method, path, body if path == "/reports" else None)
        assert (refused.status_code, refused.json()["detail"]) == (403, words)


def test_a_refusal_names_the_role_that_may_do_it(api, make_spec):
    api.user().post("/jobs", make_spec())
    either, operator = "ask an admin of your team or an operator", "ask an operator"
    team = {"name": "vision"}
    for role, method, path, body, do in (
        ("viewer", "POST", "/jobs/train/cancel", None, either),
        ("submitter", "GET", "/audit", None, either),
        ("submitter", "GET", "/nodes", None, operator),
        ("submitter", "PUT", "/teams/vision", team, operator),
        ("team-admin", "PUT", "/teams/vision", team, operator),
    ):
        refused = api.user(role).ask(method, path, body)
        assert (refused.status_code, refused.json()["do"]) == (403, do), (role, path)


def test_the_existence_of_a_job_of_another_team_is_not_shown(api, make_spec):
    api.user().post("/jobs", make_spec())
    bob = api.user(team="speech", user="bob")
    for path in ("", "/events", "/logs", "/explanation"):
        there, not_there = bob.get(f"/jobs/train{path}"), bob.get(f"/jobs/other{path}")
        assert there.status_code == not_there.status_code == 404
        assert there.text.replace("train", "other") == not_there.text


def test_without_a_valid_token_nothing_is_shown(api):
    for token in ("", "nonsense", "ela_" + "x" * 43):
        from_nowhere = api.with_secret(token)
        for path in ("/jobs", "/jobs/train", "/teams", "/config", "/usage", "/audit", "/watch"):
            answer = from_nowhere.get(path)
            assert answer.status_code in {401, 429}
            assert answer.headers["Content-Type"] == "application/problem+json"


def test_health_and_version_need_no_token(api):
    nobody = api.with_secret("")
    assert nobody.get("/health").json() == {"status": "ok"}
    assert nobody.get("/version").json()["api"] == "v1"


def test_a_job_of_another_team_is_answered_like_a_missing_one(api, make_spec):
    api.user().post("/jobs", make_spec())
    for role in ("viewer", "submitter", "team-admin"):
        stranger = api.user(role, team="speech", user="eve")
        for path in JOB_READS:
            foreign, absent = stranger.get(f"/jobs/train{path}"), stranger.get(f"/jobs/nowhere{path}")
            assert foreign.status_code == absent.status_code == 404
            assert foreign.text.replace("train", "nowhere") == absent.text
        for path in JOB_CHANGES:
            assert stranger.post(f"/jobs/train{path}").status_code == 404
        assert stranger.post("/jobs/train/scale", {"maxReplicas": 1}).status_code == 404
        assert stranger.get("/jobs").json()["items"] == []
        assert stranger.get("/jobs?team=vision").json()["items"] == []
        assert stranger.get("/watch?job=train").status_code == 404
    assert api.user().get("/jobs/train").json()["wanted"] == "run"


def test_no_team_role_submits_for_another_team(api, make_spec):
    stranger = api.user(team="speech", user="eve")
    assert stranger.post("/jobs", make_spec()).status_code == 404
    assert api.user("operator").get("/jobs").json()["items"] == []


def test_a_viewer_only_reads_and_a_colleague_changes_nothing(api, make_spec):
    api.user().post("/jobs", make_spec())
    for user in (api.user("viewer", user="vic"), api.user("submitter", user="sam")):
        assert user.get("/jobs/train").status_code == 200
        answer = user.post("/jobs/train/cancel")
        assert answer.status_code == 403
        assert answer.json()["do"]
    assert api.user("viewer").post("/jobs", make_spec("other")).status_code == 403
    assert api.user("team-admin", user="ann").post("/jobs/train/cancel").status_code == 200


def test_no_answer_names_a_job_of_another_team(cluster, served, make_spec):
    _speech_takes_from_vision(cluster, make_spec)
    explained = cluster.api.user().get("/jobs/ours/explain").json()["decisions"][0]["sentences"][1]
    assert explained == "1 device of h100 goes to a job of another team, which waits for its minimum."
    waits = cluster.api.user().get("/jobs/late/explain").json()["explanation"]["sentences"]
    assert "a job of another team has waited for a long time and holds its place" in " ".join(waits)
    names = {"/jobs/": "ours", "/teams/": "vision", "/pools/": "h100", "/priorities/": "high"}
    asked = 0
    with served(cluster.api) as url:
        for role in ("viewer", "submitter", "team-admin"):
            user = cluster.api.user(role)
            for path, verbs in describe_api()["paths"].items():
                name = next((name for kind, name in names.items() if kind in path), "x")
                here = path.removeprefix("/v1").replace("{job}", name).replace("{name}", name)
                if "get" in verbs and here != "/watch":
                    assert "secret" not in user.get(here).text
                    asked += 1
            assert "secret" not in user.get("/usage?by=job&by=user&from=0").text
            assert "secret" not in _watched(url, user.token)
    assert asked > 60
    assert cluster.api.user(team="speech").get("/jobs/ours/explain").status_code == 404


def _speech_takes_from_vision(cluster, make_spec):
    """Let `ours` give way to `secret-project`, and `late` wait behind `secret-giant`."""
    api = cluster.api
    operator, ada, bob = api.user("operator"), api.user(), api.user(team="speech", user="bob")
    operator.put("/pools/h100", {"name": "h100", "device": "h100", "devices": 5})
    operator.put("/priorities/high", {"name": "high", "value": 9})
    operator.put("/rules", {"patienceS": 5, "cooldownS": 1, "minRunTimeS": 1})
    for team in ("vision", "speech"):
        operator.put(f"/teams/{team}", {"name": team})

    def submit(user, name, least, most, **spec):
        policy = ElasticPolicy(min_replicas=least, max_replicas=most)
        assert user.post("/jobs", make_spec(name, elastic_policy=policy, **spec)).is_success

    submit(ada, "ours", 2, 4)
    cluster.until(lambda: cluster.workers("ours") == 4)
    submit(bob, "secret-project", 2, 2, team="speech", priority_class="high")
    cluster.until(lambda: cluster.workers("secret-project") == 2)
    submit(bob, "secret-giant", 4, 4, team="speech")
    cluster.pass_time(10)
    submit(ada, "late", 1, 1)
    cluster.pass_time(3)
    operator.put("/pools/last", {"name": "last", "device": "h100", "devices": 0})


def _watched(url, token):
    """Return the events of a watcher up to the last one, which all watchers see."""
    read = ""
    with httpx.stream(
        "GET", f"{url}/v1/watch?after=0", headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_S
    ) as answer:
        for line in answer.iter_lines():
            read += line + "\n"
            if "pool last" in line:
                return read
    raise AssertionError(f"the stream has ended: {read}")


def test_usage_of_another_team_is_not_counted(api):
    rows = api.user("viewer", team="speech").get("/usage?by=team&by=job").json()["rows"]
    assert rows == []
    assert api.user("reporter").get("/usage").status_code == 403


def test_a_team_sees_itself_and_no_other(api):
    operator = api.user("operator")
    for team in ("vision", "speech"):
        assert operator.put(f"/teams/{team}", {"name": team}).status_code == 201
    ada = api.user()
    assert [one["name"] for one in ada.get("/teams").json()["items"]] == ["vision"]
    assert ada.get("/teams/vision").status_code == 200
    assert ada.get("/teams/speech").status_code == 404
    assert ada.put("/teams/vision", {"name": "vision", "weight": 9}).status_code == 403
    assert ada.put("/teams/speech", {"name": "speech"}).status_code == 404


def test_only_operators_read_the_options_of_engines(api, served):
    operator = api.user("operator")
    engine = {"name": "hpc", "kind": "slurm", "options": {"setup": "export TOKEN=secret"}}
    assert operator.put("/engines/hpc", engine).status_code == 201
    engine["options"] = {"setup": "export TOKEN=secret-2"}
    assert operator.post("/config/apply", {"engines": [engine]}).status_code == 200
    assert operator.get("/engines/hpc").json() == engine
    assert operator.get("/engines").json()["items"] == [engine]
    assert "secret-2" in operator.get("/audit").text
    operator.put("/pools/last", {"name": "last", "device": "h100", "devices": 0, "engine": "hpc"})
    with served(api) as url:
        for role in ("viewer", "submitter", "team-admin", "operator"):
            user = api.user(role)
            events = _watched(url, user.token)
            assert "engine hpc" in events
            assert "secret" not in events
            if role != "operator":
                read = [
                    user.get(path) for path in ("/engines", "/engines/hpc", "/pools", "/config", "/audit")
                ]
                assert not any("secret" in answer.text for answer in read)
                assert user.get("/pools/last").json()["engine"] == "hpc"
                assert user.put("/engines/hpc", engine).status_code == 403


def test_a_secret_is_shown_once_and_stored_nowhere(api, sqlite_store):
    operator = api.user("operator")
    new = {"user": "bob", "role": "submitter", "team": "vision"}
    made = operator.post("/tokens", new, Idempotency_Key="k")
    secret = made.json()["secret"]
    assert secret.startswith("ela_")
    assert operator.post("/tokens", new, Idempotency_Key="k").json()["secret"] == ""
    assert secret not in operator.get("/tokens").text + operator.get("/audit").text
    with sqlite_store.engine.connect() as connection:
        dump = "\n".join(connection.connection.iterdump())
    assert secret not in dump
    bob = api.with_secret(secret)
    assert bob.get("/jobs").status_code == 200


def test_revoked_and_expired_tokens_are_invalid(api):
    operator = api.user("operator")
    made = operator.post("/tokens", {"user": "bob", "role": "viewer", "team": "vision", "validS": 60}).json()
    bob = api.with_secret(made["secret"])
    assert bob.get("/jobs").status_code == 200
    api.clock.now_s += 61
    assert bob.get("/jobs").status_code == 401
    made = operator.post("/tokens", {"user": "bob", "role": "viewer", "team": "vision"}).json()
    bob = api.with_secret(made["secret"])
    assert operator.delete(f"/tokens/{made['token']['id']}").status_code == 204
    assert bob.get("/jobs").status_code == 401


def test_a_team_admin_makes_and_revokes_only_tokens_of_the_team(api):
    admin = api.user("team-admin", user="ann")
    assert admin.post("/tokens", {"user": "ann", "role": "viewer", "team": "vision"}).status_code == 201
    assert admin.post("/tokens", {"user": "ann", "role": "viewer", "team": "speech"}).status_code == 404
    assert admin.post("/tokens", {"user": "ann", "role": "viewer", "team": "*"}).status_code == 404
    assert admin.post("/tokens", {"user": "ann", "role": "operator"}).status_code == 403
    assert {one["team"] for one in admin.get("/tokens").json()["items"]} == {"vision"}
    operators = api.user("operator").get("/tokens").json()["items"]
    foreign = next(one["id"] for one in operators if one["role"] == "operator")
    assert admin.delete(f"/tokens/{foreign}").status_code in {403, 404}


def test_a_team_admin_makes_no_token_for_another_user(api):
    admin, every = api.user("team-admin", user="ann"), api.user("team-admin", team="*", user="eve")

    def made(who, user, team="vision"):
        return who.post("/tokens", {"user": user, "role": "submitter", "team": team})

    for user in ("bob", "vision", "visionary+ci", "speech+ci", "+ci", "ANN", "ann+x"):
        refused = made(admin, user)
        assert refused.status_code in {403, 422}, user
        assert "operator" in refused.json()["do"] or refused.json()["field"] == "user"
    for user in ("ann", "vision+ci", "vision+nightly@example.org"):
        assert made(admin, user).status_code == 201, user
    assert made(every, "speech+ci", "speech").status_code == 201
    assert made(every, "eve", "*").status_code == 201
    assert made(every, "bob", "*").status_code == 403
    assert made(every, "speech+ci", "vision").status_code == 403
    assert made(api.user("operator"), "bob").status_code == 201
    assert made(api.user("submitter", user="sam"), "sam").status_code == 403


def test_the_existence_of_a_token_is_shown_only_with_the_right_to_revoke_it(api):
    operator = api.user("operator")
    for role, team in (("viewer", "speech"), ("team-admin", "*"), ("operator", ""), ("reporter", "")):
        made = operator.post("/tokens", {"user": "bob", "role": role, "team": team}).json()
        there, absent = made["token"]["id"], "tok-000000000000"
        for asker in ("viewer", "submitter", "team-admin", "reporter"):
            user = api.user(asker, user=asker)
            found, none = user.delete(f"/tokens/{there}"), user.delete(f"/tokens/{absent}")
            assert found.status_code == none.status_code, (role, asker)
            assert found.text.replace(there, absent) == none.text
            assert found.headers.items() == none.headers.items()
        assert api.with_secret(made["secret"]).get("/me").status_code == 200


def test_an_admin_of_every_team_may_change_teams_but_not_the_cluster(api, make_spec):
    operator, every = api.user("operator", user="olga"), api.user("team-admin", team="*", user="ann")
    api.user().post("/jobs", make_spec())
    operator.put("/teams/vision", {"name": "vision"})
    operator.put("/pools/h100", {"name": "h100", "device": "h100", "devices": 8})
    assert {one["role"] for one in every.get("/tokens").json()["items"]} == {"submitter", "team-admin"}
    assert {one["target"] for one in every.get("/audit").json()["items"]} == {"job train", "team vision"}
    assert len(operator.get("/tokens").json()["items"]) == 3
    assert "pool h100" in operator.get("/audit").text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"user": "b", "role": "operator", "team": "vision"}, "team"),
        ({"user": "b", "role": "viewer"}, "team"),
        ({"user": "=cmd()", "role": "viewer", "team": "vision"}, "user"),
        ({"user": "b", "role": "king", "team": "vision"}, "role"),
        ({"user": "b", "role": "viewer", "team": "vision", "validS": 0}, "validS"),
        ({"user": "b", "role": "viewer", "team": "vision", "note": "x" * 1001}, "note"),
        ({"user": "b", "role": "viewer", "team": "vision", "note": "\x1b[2J"}, "note"),
    ],
)
def test_tokens_with_invalid_fields_are_refused(api, body, field):
    answer = api.user("operator").post("/tokens", body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_the_audit_log_has_changes_and_refusals_with_their_users(api, make_spec):
    api.user(user="ada").post("/jobs", make_spec())
    api.user("viewer", user="vic").post("/jobs/train/cancel")
    api.user("submitter", team="speech", user="eve").get("/jobs/train")
    lines = api.user("operator").get("/audit").json()["items"]
    told = [(one["user"], one["action"], one["target"], one["allowed"]) for one in lines]
    assert told == [
        ("eve", "job.read", "job train", False),
        ("vic", "job.change", "job train", False),
        ("ada", "job.submit", "job train", True),
    ]
    team = api.user("team-admin", team="speech").get("/audit").json()["items"]
    assert all(one["team"] == "speech" for one in team)
    assert api.user().get("/audit").status_code == 403


def test_every_refusal_of_a_right_is_in_the_audit_log(api):
    operator, refusals = api.user("operator"), 0
    for role in ("viewer", "submitter", "team-admin", "reporter"):
        for path, verbs in describe_api()["paths"].items():
            if "get" not in verbs or path == "/v1/watch":  # a stream that never ends
                continue
            # A token with many refusals has no line for each of them.
            user = api.user(role, user=role)
            refused = user.get(path.removeprefix("/v1").replace("{name}", "x").replace("{job}", "x"))
            if refused.status_code == 403:
                refusals += 1
                (line,) = operator.get("/audit?limit=1").json()["items"]
                told = (line["user"], line["allowed"], line["detail"])
                assert told == (role, False, refused.json()["detail"]), path
    assert refusals > 15


def test_a_full_disk_does_not_reveal_the_existence_of_a_thing(api, make_spec, monkeypatch, caplog):
    api.user().post("/jobs", make_spec())
    stranger = api.user(team="speech", user="eve")

    def full(*_, **__):
        raise StoreFull("there is no room")

    monkeypatch.setattr("elastane.cluster.controller.store.history.append_audit_line", full)
    foreign, absent = stranger.get("/jobs/train"), stranger.get("/jobs/nowhere")
    assert foreign.status_code == absent.status_code == 404
    assert foreign.text.replace("train", "nowhere") == absent.text
    assert "eve" in caplog.text
    assert "job train belongs to another team" in caplog.text


def test_no_answer_redirects_to_the_host_header(api):
    ada = api.user()
    for path in ("/jobs/", "/pools/h100/", "/me/"):
        astray = ada.get(path, Host="evil.example")
        assert astray.status_code == 404
        assert astray.headers["Content-Type"] == "application/problem+json"
        assert "Location" not in astray.headers


def test_a_client_with_too_many_requests_waits_and_others_do_not(api, make_spec):
    eager, calm = api.user(), api.user(user="bob")
    answers = [eager.get("/version").status_code for _ in range(3)]
    assert answers == [200, 200, 200]
    burst = api.controller.settings.per_token.burst
    statuses = [eager.get("/pools").status_code for _ in range(burst + 1)]
    assert statuses == [200] * burst + [429]
    assert calm.get("/pools").status_code == 200
    waiting = eager.get("/pools")
    assert int(waiting.headers["Retry-After"]) >= 1
    api.clock.now_s += 1
    assert eager.get("/pools").status_code == 200


def test_guesses_of_tokens_are_slowed_down_and_valid_tokens_are_not(api):
    guesser, ada = api.with_secret("ela_guess"), api.user()
    burst = api.controller.settings.per_address.burst
    statuses = [guesser.get("/pools").status_code for _ in range(burst + 1)]
    assert statuses == [401] * burst + [429]
    assert ada.get("/pools").status_code == 200


def test_guesses_of_tokens_cannot_claim_another_address(api, served):
    burst = api.controller.settings.per_address.burst
    with (
        served(api) as url,
        httpx.Client(base_url=url, headers={"Authorization": "Bearer ela_guess"}) as guesser,
    ):
        answers = [
            guesser.get("/v1/me", headers={"X-Forwarded-For": f"10.0.0.{number}"}).status_code
            for number in range(burst + 1)
        ]
    assert answers == [401] * burst + [429]
