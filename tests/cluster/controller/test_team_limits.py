"""The limits of a team and of a user are checked in the transaction that adds something."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from elastane.cluster.controller.rest.context import Settings
from elastane.cluster.controller.store import replies, tokens
from elastane.cluster.nouns.config import Limits, Team
from elastane.cluster.nouns.jobs import ElasticPolicy
from tests.waiting import WAIT_S

AT_ONCE = 12


@pytest.fixture
def api(store, api_over):
    """Build the API on SQLite and on PostgreSQL."""
    return api_over(store)


def limit(api, team="vision", **limits):
    document = {"name": team, "limits": limits}
    assert api.user("operator").put(f"/teams/{team}", document).is_success


def together(*deeds):
    """Send requests at the same moment; return the status codes of their answers."""
    ready = threading.Barrier(len(deeds))

    def do(deed):
        ready.wait()
        return deed().status_code

    with ThreadPoolExecutor(len(deeds)) as pool:
        return list(pool.map(do, deeds))


def test_concurrent_submissions_do_not_exceed_the_limit_of_jobs(api, make_spec):
    limit(api, jobs=5)
    users = [api.user(user=f"user{number}") for number in range(AT_ONCE)]
    statuses = together(
        *(
            lambda user=user, number=number: user.post("/jobs", make_spec(f"job{number}"))
            for number, user in enumerate(users)
        )
    )
    assert statuses.count(201) == 5
    assert statuses.count(409) == AT_ONCE - 5
    refused = users[0].post("/jobs", make_spec("one-more")).json()
    assert "--max-jobs" in refused["do"]
    assert "vision" in refused["detail"]
    assert api.user(team="speech").post("/jobs", make_spec(team="speech")).status_code == 201
    first = api.user("operator").get("/jobs?team=vision").json()["items"][0]["name"]
    assert api.user("team-admin").post(f"/jobs/{first}/cancel").is_success
    assert users[0].post("/jobs", make_spec("one-more")).status_code == 201


def test_one_user_cannot_use_all_jobs_of_the_team(api, make_spec):
    limit(api, jobs=4, jobsPerUser=2)
    eager, calm = api.user(user="eve"), api.user(user="ada")
    answers = [eager.post("/jobs", make_spec(f"eve{number}")).status_code for number in range(3)]
    assert answers == [201, 201, 409]
    assert calm.post("/jobs", make_spec("calm")).status_code == 201


def test_concurrent_requests_do_not_exceed_the_limit_of_tokens(api):
    limit(api, tokens=AT_ONCE)  # those of the admins below count
    admins = [api.user("team-admin", user=f"ann{number}") for number in range(AT_ONCE - 3)]
    new = {"role": "viewer", "team": "vision", "user": "vision+ci"}
    statuses = together(*(lambda user=user: user.post("/tokens", new) for user in admins))
    assert statuses.count(201) == 3
    assert statuses.count(409) == AT_ONCE - 6
    with api.store.begin_read() as tx:
        assert tokens.count_valid_tokens(tx, "vision", api.clock()) == AT_ONCE
    mine = next(one["id"] for one in admins[0].get("/tokens").json()["items"] if one["user"] == "vision+ci")
    assert admins[0].delete(f"/tokens/{mine}").status_code == 204
    assert admins[0].post("/tokens", new).status_code == 201


def test_repeatedly_made_and_revoked_tokens_do_not_fill_the_store(api):
    limit(api, tokens=2)
    operator, new = api.user("operator"), {"role": "viewer", "team": "vision", "user": "ada"}
    made = []
    for _ in range(25):
        answer = operator.post("/tokens", new)
        made.append(answer.status_code)
        if answer.is_success:
            operator.delete(f"/tokens/{answer.json()['token']['id']}")
    assert made == [201] * 20 + [409] * 5
    api.clock.now_s += 25 * 3600
    assert operator.post("/tokens", new).status_code == 201


def test_specs_of_ended_jobs_count_until_they_are_forgotten(api, make_spec):
    limit(api, storedMib=1)
    ada, padding = api.user(), {"NOTE": "x" * 200_000}
    statuses = []
    for number in range(7):
        statuses.append(ada.post("/jobs", make_spec(f"job{number}", env=padding)).status_code)
        ada.post(f"/jobs/job{number}/cancel")
    assert statuses == [201] * 5 + [409] * 2
    assert "--max-stored-mib" in ada.post("/jobs", make_spec("big", env=padding)).json()["do"]
    assert ada.post("/jobs", make_spec("small")).status_code == 201


def test_without_room_in_the_store_a_job_can_be_paused_and_cancelled_but_its_spec_cannot_grow(api, make_spec):
    ada = api.user()
    assert ada.post("/jobs", make_spec()).status_code == 201
    limit(api, storedMib=0)
    sizes = list(range(1, 5000))
    assert ada.post("/jobs/train/scale", {"replicaDiscreteValues": sizes}).status_code == 409
    assert ada.post("/jobs/train/pause").status_code == 200
    assert ada.post("/jobs/train/cancel").status_code == 200


def test_limits_of_a_team_are_checked_in_its_declaration(api):
    refused = api.user("operator").put("/teams/vision", {"name": "vision", "limits": {"jobs": -1}})
    assert refused.status_code == 422
    assert refused.json()["field"] == "teams.vision.limits.jobs"


def test_an_undeclared_team_has_the_default_limits():
    assert Team(name="vision").limits == Limits()


def test_answers_to_repeated_requests_do_not_fill_the_store(api, make_spec, monkeypatch):
    monkeypatch.setattr(replies, "MOST_KEYS", 10)
    ada = api.user()
    ada.post("/jobs", make_spec(elastic_policy=ElasticPolicy(max_replicas=8)))
    for number in range(60):
        api.clock.now_s += 1
        ada.post("/jobs/train/scale", {"maxReplicas": 1 + number % 8}, Idempotency_Key=f"k{number}")
    with api.store.begin_read() as tx:
        (kept,) = tx.exec_driver_sql("SELECT count(*) FROM replies").one()
    assert 0 < kept <= 10
    again = ada.post("/jobs/train/scale", {"maxReplicas": 4}, Idempotency_Key="k59")
    assert again.headers["Idempotency-Replayed"] == "true"


def opened(url, secrets):
    """Open a stream with each token at the same moment; return the statuses while all are open."""
    ready, done = threading.Barrier(len(secrets)), threading.Barrier(len(secrets))

    def watch(secret):
        ready.wait()
        with httpx.stream(
            "GET", f"{url}/v1/watch", headers={"Authorization": f"Bearer {secret}"}, timeout=WAIT_S
        ) as answer:
            lines = answer.iter_lines()  # kept: it ends the stream where it ends itself
            if answer.is_success:
                assert next(lines).startswith("id: ")
            done.wait()
            return answer.status_code

    with ThreadPoolExecutor(len(secrets)) as pool:
        return list(pool.map(watch, secrets))


@pytest.mark.parametrize(
    "case",
    [
        (Settings(watchers_per_token=7), {}, lambda api: [api.token()] * 20),
        (Settings(watchers_per_user=7), {}, lambda api: [api.token() for _ in range(20)]),
        (Settings(), {"watchers": 7}, lambda api: [api.token(user=f"u{number}") for number in range(20)]),
        (Settings(watchers=7), {}, lambda api: [api.token("operator", user=f"u{n}") for n in range(20)]),
    ],
    ids=["of a token", "of a user", "of a team", "of all"],
)
def test_concurrent_requests_do_not_exceed_the_limit_of_streams(api_over, sqlite_store, served, case):
    settings, limits, tokens_of = case
    api = api_over(sqlite_store, settings=settings)
    if limits:
        limit(api, **limits)
    with served(api) as url:
        statuses = opened(url, tokens_of(api))
    assert statuses.count(200) == 7, statuses
    assert {*statuses} <= {200, 429, 503}


def test_many_tokens_of_one_team_leave_streams_to_other_teams(api_over, sqlite_store, served):
    api = api_over(sqlite_store, settings=Settings(watchers=30))
    limit(api, watchers=20)
    theirs = [api.token("team-admin", user="eve") for _ in range(40)]
    with served(api) as url:
        assert opened(url, theirs).count(200) == 20
        assert opened(url, [*theirs[:25], api.token(team="speech", user="bob")])[-1] == 200
