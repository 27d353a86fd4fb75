"""Server-sent events over a real socket, as a browser would read them."""

from contextlib import ExitStack

import httpx
import pytest

from elastane.cluster.controller.rest.context import Settings
from elastane.cluster.controller.store import history, tokens
from elastane.cluster.controller.store.database import Store
from tests.waiting import WAIT_S, wait_until

NOW_S = 1_800_000_000.0


@pytest.fixture
def listening(api, served):
    """Open a stream, and yield its lines."""
    with served(api) as url:

        def lines(token, path="/v1/watch", **headers):
            auth = {"Authorization": f"Bearer {token}"} | {
                name.replace("_", "-"): value for name, value in headers.items()
            }
            with httpx.stream("GET", url + path, headers=auth, timeout=WAIT_S) as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                yield from answer.iter_lines()

        yield lines


def happen(store, *messages):
    with store.begin_write() as tx:
        for message in messages:
            history.append_event(tx, "node.drain", message, NOW_S)


def test_a_stream_begins_with_the_next_event(api, listening, sqlite_store):
    happen(sqlite_store, "before")
    lines = listening(api.token())
    assert next(lines) == "id: 1"
    assert next(lines).startswith(":")
    assert next(lines) == ""
    happen(sqlite_store, "after")
    assert next(lines) == "id: 2"
    assert next(lines) == "event: node.drain"
    assert '"after"' in next(lines)
    lines.close()


def test_concurrent_commits_are_all_counted(sqlite_store, monkeypatch):
    counted = []

    def count(store, commits):
        counted.append((commits, store._one_writer.locked()))

    monkeypatch.setattr(Store, "commits", property(lambda _: len(counted), count), raising=False)
    del sqlite_store.__dict__["commits"]
    happen(sqlite_store, "one")
    happen(sqlite_store, "two")
    assert counted == [(1, True), (2, True)]


def test_a_reconnected_browser_continues_after_its_last_event(api, listening, sqlite_store):
    happen(sqlite_store, "one", "two", "three")
    lines = listening(api.token(), Last_Event_ID="1")
    data = [line for _, line in zip(range(11), lines, strict=False) if line.startswith("id:")]
    assert data == ["id: 1", "id: 2", "id: 3"]
    lines.close()


def test_a_message_cannot_forge_an_event(api, listening, sqlite_store):
    happen(sqlite_store, "x\n\nid: 99\nevent: forged\ndata: {}\n\n")
    lines = listening(api.token(), path="/v1/watch?after=0")
    found = [line for _, line in zip(range(7), lines, strict=False)]
    assert "id: 1" in found
    assert not any(line.startswith(("id: 99", "event: forged")) for line in found)
    lines.close()


def test_an_ending_server_ends_its_streams(api, served, sqlite_store):
    with served(api) as url:
        token = api.token()
        stream = httpx.stream(
            "GET", f"{url}/v1/watch", headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_S
        )
        answer = stream.__enter__()
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(3)] == ["id: 0", ": from here on", ""]
        api.app.state.closing.set()
        assert [line for line in lines if line] == []
        stream.__exit__(None, None, None)


def test_the_stream_of_a_revoked_token_ends(api, listening, sqlite_store):
    operator = api.user("operator")
    made = operator.post("/tokens", {"user": "bob", "role": "viewer", "team": "vision"}).json()
    # More than an address may fail with at once.
    streams = [listening(made["secret"]) for _ in range(api.controller.settings.per_address.burst + 5)]
    for lines in streams:
        assert [next(lines) for _ in range(3)][1] == ": from here on"
    with sqlite_store.begin_write() as tx:
        tokens.revoke_token(tx, made["token"]["id"], api.clock.now_s)
        history.append_event(tx, "node.drain", "too late", NOW_S)
    assert [line for lines in streams for line in lines] == []


def test_the_stream_of_an_expired_token_ends(api, listening, sqlite_store):
    new = {"user": "bob", "role": "viewer", "team": "vision", "validS": 60}
    lines = listening(api.user("operator").post("/tokens", new).json()["secret"])
    assert [next(lines) for _ in range(3)][1] == ": from here on"
    api.clock.now_s += 61
    happen(sqlite_store, "too late")
    assert list(lines) == []


def test_one_token_cannot_occupy_all_streams(api_over, served, sqlite_store):
    api = api_over(sqlite_store, settings=Settings(watchers=3, watchers_per_token=2))
    eager, calm = api.token(user="eve"), api.token(user="ada")

    def watching(client, token):
        return client.stream("GET", "/v1/watch", headers={"Authorization": f"Bearer {token}"})

    read = []

    def begins(answer):
        read.append(answer.iter_lines())  # kept: it ends the stream where it ends itself
        return next(read[-1]) == "id: 0"

    with served(api) as url, httpx.Client(base_url=url, timeout=WAIT_S) as client, ExitStack() as streams:
        for token in (eager, eager):
            assert begins(streams.enter_context(watching(client, token)))
        with watching(client, eager) as refused:
            assert refused.status_code == 429
        with watching(client, calm) as answer:
            assert begins(answer)
            with watching(client, calm) as refused:
                assert refused.status_code == 503
        streams.close()

        def watches_again():
            with watching(client, eager) as answer:
                return answer.status_code == 200

        wait_until(watches_again, "a stream that has ended makes room")
