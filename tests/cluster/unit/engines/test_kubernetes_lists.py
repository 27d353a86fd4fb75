"""Lists that watches follow, and answers of a server that is not an API server."""

import asyncio
import json
import socket
import threading
from contextlib import asynccontextmanager, suppress

import pytest

from elastane.cluster.engines.kubernetes import api_server, followed_list
from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.followed_list import FollowedList
from elastane.cluster.engines.kubernetes.kubeconfig import ApiAccess
from elastane.cluster.engines.kubernetes.refusals import ApiRefusal
from elastane.cluster.nouns.agents import Away
from tests.waiting import WAIT_S, wait_until_async


def an_object(name, version="1", **fields):
    return {"metadata": {"name": name, "namespace": "a", "resourceVersion": version}, **fields}


def a_page(*items, version="10", more=None):
    metadata = {"resourceVersion": version} | ({"continue": more} if more else {})
    return json.dumps({"metadata": metadata, "items": list(items)}).encode()


def an_event(kind, found):
    return json.dumps({"type": kind, "object": found}).encode()


def decode(document: bytes):
    found = json.loads(document)
    return None if found.get("ignored") else found["metadata"]["name"]


class ScriptedServer:
    """Answers lists and watches in an order; the last watch stays open."""

    def __init__(self, *answers, watches=(), answer_s=WAIT_S):
        self.answers, self.watches = list(answers), list(watches)
        self.answer_s = answer_s
        self.listed: list[dict] = []
        self.watched: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def get(self, path, params):
        self.listed.append(params)
        await self.goes_on.wait()
        return self.answers.pop(0)

    @asynccontextmanager
    async def watch(self, path, params):
        self.watched.append(params["resourceVersion"])
        if self.watches and isinstance(self.watches[0], ApiRefusal | Away):
            yield self.watches.pop(0)
            return
        yield self._iterate()

    async def _iterate(self):
        for line in self.watches.pop(0) if self.watches else ():
            yield line
        if not self.watches:
            await asyncio.Event().wait()


def run(body, *answers, **options):
    """Run a test with a followed list of a scripted server."""

    async def follow():
        server = ScriptedServer(*answers, **options)
        found = FollowedList(server, "/pods", {}, decode, keeps_removed=True)
        try:
            await body(server, found)
        finally:
            await found.close()

    asyncio.run(follow())


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(followed_list, "SHORT_S", 0.0)


async def wait_for(found, *names):
    await wait_until_async(lambda: sorted(found.items.values()) == sorted(names), f"{names} are there")


def test_pages_are_one_list_and_a_watch_follows_from_its_version():
    async def body(server, found):
        assert await found.refresh() is None
        await wait_for(found, "p1", "p3")
        assert server.listed[1]["continue"] == "next"
        assert server.watched[0] == "10"
        assert found.removed == {"a/p2": "p2"}
        found.forget("a/p2")
        assert found.removed == {}
        assert await found.refresh() is None
        assert len(server.listed) == 2

    run(
        body,
        a_page(an_object("p1"), more="next"),
        a_page(an_object("p2"), an_object("other", ignored=True)),
        watches=[[an_event("ADDED", an_object("p3", "11")), an_event("DELETED", an_object("p2", "12"))]],
    )


def test_an_unreadable_event_or_object_costs_only_itself():
    lines = [
        b"",
        b"{",
        b"[" * 100_000,
        an_event("ADDED", {"metadata": 3}),
        an_event("ADDED", {"metadata": {"resourceVersion": "11"}}),
        an_event("BOOKMARK", {"metadata": {"resourceVersion": "12"}}),
        an_event("NEW", an_object("p9", "13")),
        an_event("MODIFIED", an_object("p2", "14")),
    ]

    async def body(server, found):
        assert await found.refresh() is None
        await wait_for(found, "p1", "p2")
        # The next watch begins where the last readable event was.
        await wait_until_async(lambda: len(server.watched) == 2, "another watch is open")
        assert server.watched == ["10", "14"]

    run(body, a_page(an_object("p1"), 3, {}, {"metadata": []}), watches=[lines, []])


@pytest.mark.parametrize(
    "gone",
    [
        ApiRefusal(410, "Expired"),
        [an_event("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})],
    ],
)
def test_410_is_the_only_reason_for_another_list(gone):
    async def body(server, found):
        assert await found.refresh() is None
        await wait_for(found, "p2")
        assert server.watched == ["10", "10", "20"]
        assert len(server.listed) == 2
        # It is not known how an object ended that was there before the list.
        assert found.removed == {}

    run(
        body,
        a_page(an_object("p1")),
        a_page(an_object("p2"), version="20"),
        watches=[[b"{"], gone, []],
    )


def test_a_list_that_cannot_be_read_is_no_answer_and_the_old_one_stays():
    async def body(server, found):
        for words in (
            "cannot be read",
            "cannot be read",
            "cannot be read",
            "does not list",
            "away",
            "watched",
        ):
            away = await found.refresh()
            assert isinstance(away, Away)
            assert words in away.why
        assert list(found.items) == ["a/p1"]
        assert await found.refresh() is None

    run(
        body,
        b"",
        b'{"metadata": {}, "items": []}',
        b'{"metadata": {"resourceVersion": ""}, "items": []}',
        ApiRefusal(403, "Forbidden", "no"),
        Away("away"),
        a_page(an_object("p1")),
        watches=[ApiRefusal(403, "Forbidden", "no"), []],
    )


def test_a_list_that_is_slow_goes_on_between_the_questions_and_keeps_what_is_created_meanwhile():
    async def body(server, found):
        server.goes_on.clear()
        for _ in range(2):
            assert "has not listed" in (await found.refresh()).why
        found.add(json.dumps(an_object("p2")).encode())
        found.add(b"{")
        server.goes_on.set()
        server.answer_s = WAIT_S
        assert await found.refresh() is None
        assert sorted(found.items.values()) == ["p1", "p2"]
        assert len(server.listed) == 1
        # The watch knows better than an answer that comes late.
        found.add(json.dumps(an_object("p1", ignored=True)).encode())
        assert sorted(found.items.values()) == ["p1", "p2"]

    run(body, a_page(an_object("p1")), answer_s=0.05)


def test_a_list_without_end_is_no_answer(monkeypatch):
    monkeypatch.setattr(followed_list, "MOST_PAGES", 3)

    async def body(server, found):
        assert "lists more than" in (await found.refresh()).why

    run(body, *[a_page(more="more")] * 3)


def ask_raw(answer: bytes, *, watch: bool = False, answer_s: float = WAIT_S):
    """Return what a client makes of the bytes that a server sends; of none, and it stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_once, args=(listener, answer))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            return asyncio.run(ask(url, watch=watch, answer_s=answer_s))
        finally:
            thread.join()


def serve_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as request:
        while request.readline().strip():
            pass
        if answer:
            # A client that has seen enough closes the connection.
            with suppress(OSError):
                connection.sendall(answer)
        else:
            request.read()


async def ask(url: str, *, watch: bool, answer_s: float):
    server = ApiServer(ApiAccess(server=url), answer_s)
    try:
        if not watch:
            return await server.get("/version")
        async with server.watch("/pods", {}) as lines:
            return lines if isinstance(lines, ApiRefusal | Away) else [line async for line in lines]
    finally:
        await server.close()


def an_answer(content: bytes, status="200 OK", length=None) -> bytes:
    length = len(content) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode() + content


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "does not answer"),
        (an_answer(b"{}", length=100), "broke off"),
        (an_answer(b"x" * 2000), "more than 1000 bytes"),
        (an_answer(b"<html>", "502 Bad Gateway"), "fails: the API server answers 502"),
        (an_answer(b"", "302 Found"), "fails: the API server answers 302"),
        (an_answer(b'{"message": "log in"}', "401 Unauthorized"), "fails: log in"),
    ],
)
def test_what_says_nothing_is_no_answer(answer, words, monkeypatch):
    monkeypatch.setattr(api_server, "LARGEST_ANSWER_BYTES", 1000)
    found = ask_raw(answer)
    assert isinstance(found, Away)
    assert words in found.why


def test_a_server_that_says_nothing_is_late():
    for watch in (False, True):
        found = ask_raw(b"", watch=watch, answer_s=0.05)
        assert isinstance(found, Away)
        assert "did not answer within 0.05 s" in found.why


def test_a_watch_ends_with_what_breaks_it(monkeypatch):
    monkeypatch.setattr(api_server, "LARGEST_EVENT_BYTES", 1000)
    assert ask_raw(an_answer(b"a\nb\nc", length=100), watch=True) == [b"a", b"b"]
    assert ask_raw(an_answer(b"a\n" + b"x" * 5000), watch=True) == [b"a"]
    refusal = ask_raw(an_answer(b'{"reason": "Expired"}', "410 Gone"), watch=True)
    assert refusal == ApiRefusal(410, "Expired")
