"""Server-sent events over a real socket, as a browser would read them."""

import httpx
import pytest

from elastane.controller.store import events

NOW_S = 1_800_000_000.0


@pytest.fixture
def listening(api, served):
    """Opens a stream and yields its lines."""
    with served(api) as url:

        def lines(token, path="/v1/watch", **headers):
            auth = {"Authorization": f"Bearer {token}"} | {
                name.replace("_", "-"): value for name, value in headers.items()
            }
            with httpx.stream("GET", url + path, headers=auth, timeout=20) as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                yield from answer.iter_lines()

        yield lines


def happen(store, *messages):
    with store.writing() as tx:
        for message in messages:
            events.append(tx, "node.drain", message, NOW_S)


def test_a_stream_begins_with_what_happens_next(api, listening, sqlite_store):
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


def test_a_browser_that_comes_back_goes_on_where_it_was(api, listening, sqlite_store):
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


def test_a_server_that_ends_ends_its_streams(api, served, sqlite_store):
    with served(api) as url:
        token = api.token()
        stream = httpx.stream(
            "GET", f"{url}/v1/watch", headers={"Authorization": f"Bearer {token}"}, timeout=20
        )
        answer = stream.__enter__()
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(3)] == ["id: 0", ": from here on", ""]
        api.app.state.closing.set()
        assert [line for line in lines if line] == []
        stream.__exit__(None, None, None)
