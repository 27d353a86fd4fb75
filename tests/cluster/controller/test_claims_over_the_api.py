"""Claim lists of runs over the API: claims, reads, rights, limits and the end of unused lists."""

import asyncio
import base64
import sqlite3

import pytest

from elastane.cluster.controller.rest import claims, team_limits
from elastane.cluster.controller.store.claim_lists import KEPT_S

LIST = "/claims/vision/train-0123456789ab"


def claim(user, slot, content=b"mine", path=LIST, **headers):
    body = {"slot": slot, "content": base64.b64encode(content).decode()}
    return user.post(path, body, **headers)


def read(user, query="", path=LIST):
    answer = user.get(f"{path}{query}")
    assert answer.status_code == 200, answer.text
    return [(one["slot"], base64.b64decode(one.get("content", ""))) for one in answer.json()["items"]]


def test_the_first_content_of_a_slot_stays(api):
    ada = api.user()
    assert read(ada) == []
    first, second = claim(ada, 1), claim(ada, 1, b"yours")
    assert (first.status_code, first.json()) == (201, {"written": True})
    assert (second.status_code, second.json()) == (200, {"written": False})
    assert claim(ada, 2, b"\0\xff").json() == {"written": True}
    assert read(ada) == [(1, b"mine"), (2, b"\0\xff")]
    assert read(ada, "?after=1") == [(2, b"\0\xff")]
    assert read(ada, "?after=7") == []
    assert read(ada, path="/claims/vision/other") == []


def test_the_right_to_claim_is_asked_without_a_claim(api):
    ada, sam, ann = api.user(), api.user(user="sam"), api.user("team-admin", user="ann")
    statuses = [one.get(f"{LIST}/right").status_code for one in (ada, sam, api.user("viewer"))]
    assert statuses == [204, 204, 403]
    assert read_lists(ada)["items"] == []
    claim(ada, 1)
    assert [one.get(f"{LIST}/right").status_code for one in (ada, sam, ann)] == [204, 403, 204]
    assert api.user(team="speech", user="eve").get(f"{LIST}/right").status_code == 404
    assert read(ada) == [(1, b"mine")]


def test_a_repeated_claim_gets_its_first_answer(api):
    ada = api.user()
    assert claim(ada, 1, Idempotency_Key="k").status_code == 201
    assert claim(ada, 1, Idempotency_Key="k").json() == {"written": True}
    assert claim(ada, 1, Idempotency_Key="l").json() == {"written": False}


def test_a_list_is_read_page_by_page(api, monkeypatch):
    monkeypatch.setattr(claims, "PAGE_SLOTS", 2)
    ada = api.user()
    for slot in range(1, 6):
        claim(ada, slot)
    assert [ada.get(f"{LIST}?after={after}").json()["after"] for after in (0, 2, 3, 4, 5)] == [
        "2",
        "4",
        "",
        "",
        "",
    ]
    assert [slot for slot, _ in read(ada, "?after=2")] == [3, 4]


@pytest.mark.parametrize(
    "body",
    [
        {"slot": 0, "content": ""},
        {"slot": 100_001, "content": ""},
        {"slot": "1", "content": ""},
        {"slot": 1, "content": "***"},
        {"slot": 1, "content": base64.b64encode(bytes(65537)).decode()},
        {"slot": 1},
        {"slot": 1, "content": "", "more": 1},
    ],
)
def test_a_wrong_body_is_refused_and_claims_nothing(api, body):
    ada = api.user()
    assert ada.post(LIST, body).status_code == 422
    assert read(ada) == []


def test_a_gap_is_refused(api):
    ada = api.user()
    refused = claim(ada, 2)
    assert refused.status_code == 409
    assert "slot 1 is not held" in refused.json()["detail"]
    assert read(ada) == []


def test_lists_of_other_teams_do_not_exist_and_those_of_colleagues_are_only_read(api):
    claim(api.user(), 1)
    for role in ("viewer", "submitter", "team-admin"):
        stranger = api.user(role, team="speech", user="eve")
        for path in (LIST, "/claims/vision/nowhere"):
            answers = (stranger.get(path), claim(stranger, 1, path=path), stranger.delete(path))
            assert [answer.status_code for answer in answers] == [404, 404, 404]
    colleague = api.user(user="sam")
    assert read(colleague) == [(1, b"mine")]
    assert claim(colleague, 2).status_code == colleague.delete(LIST).status_code == 403
    assert claim(api.user("viewer"), 1, path="/claims/vision/another").status_code == 403
    assert api.user("reporter").get(LIST).status_code == 404
    assert claim(api.user("team-admin", user="ann"), 2).status_code == 201
    assert claim(api.user("operator", user="olga"), 3).status_code == 201
    lines = api.user("operator").get("/audit").json()["items"]
    written = [line for line in lines if line["action"] == "claims.write" and line["allowed"]]
    assert [(line["user"], line["target"], line["detail"]) for line in written] == [
        ("olga", "claim list vision/train-0123456789ab", "slot 3"),
        ("ann", "claim list vision/train-0123456789ab", "slot 2"),
        ("ada", "claim list vision/train-0123456789ab", "slot 1"),
    ]


def read_lists(user, query=""):
    answer = user.get(f"/claims{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_user_sees_the_lists_of_its_team_and_an_operator_all(api):
    ada, eve, olga = api.user(), api.user(team="speech", user="eve"), api.user("operator", user="olga")
    assert read_lists(ada) == {"items": [], "after": ""}
    claim(ada, 1)
    api.clock.now_s += 10
    claim(ada, 2, b"more")
    claim(eve, 1, path="/claims/speech/train")
    mine = {
        "team": "vision",
        "name": "train-0123456789ab",
        "user": "ada",
        "contentBytes": 8,
        "usedS": api.clock.now_s,
    }
    assert read_lists(ada)["items"] == read_lists(api.user("viewer"))["items"] == [mine]
    assert [one["team"] for one in read_lists(olga)["items"]] == ["speech", "vision"]
    assert read_lists(olga, "?limit=1")["after"] == "speech/train"
    assert read_lists(olga, "?limit=1&after=speech/train") == {"items": [mine], "after": ""}
    assert read_lists(ada, "?after=vision/train-0123456789ab")["items"] == []
    assert api.user("reporter").get("/claims").status_code == 403
    assert ada.get("/claims?after=vision").status_code == 422
    assert ada.get("/claims?after=../x").status_code == 422


def test_a_team_has_room_for_a_limited_number_of_bytes_until_it_deletes_a_list(api, monkeypatch):
    monkeypatch.setattr(team_limits, "CLAIMS_BYTES", 100)
    ada, other = api.user(), "/claims/vision/other"
    assert claim(ada, 1, bytes(60)).status_code == 201
    refused = claim(ada, 1, bytes(60), path=other)
    assert refused.status_code == 409
    assert "elastane claims delete" in refused.json()["do"]
    assert claim(api.user(team="speech"), 1, bytes(60), path="/claims/speech/other").status_code == 201
    assert ada.delete(LIST).status_code == 204
    assert ada.delete(LIST).status_code == 404
    assert read(ada) == []
    assert claim(ada, 1, bytes(60), path=other).status_code == 201


def test_a_list_is_deleted_when_it_was_not_used_for_long(cluster):
    api = cluster.api
    ada, other = api.user(), "/claims/vision/other"
    claim(ada, 1)
    claim(ada, 1, path=other)
    for _ in range(3):
        api.clock.now_s += KEPT_S / 2 - 1
        asyncio.run(cluster.loop.run_cycle())
        # Reads count as uses.
        assert read(ada) == [(1, b"mine")]
    assert read(ada, path=other) == []


def test_a_damaged_content_costs_only_its_slot(api, sqlite_store):
    ada = api.user()
    for slot in (1, 2, 3):
        claim(ada, slot)
    with sqlite3.connect(sqlite_store.where.removeprefix("sqlite+pysqlite:///")) as raw:
        raw.execute("UPDATE claims SET content = 'text' WHERE slot = 2")
    raw.close()
    items = ada.get(LIST).json()["items"]
    assert [(one["slot"], bool(one.get("damage"))) for one in items] == [(1, False), (2, True), (3, False)]
