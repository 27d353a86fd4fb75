"""The agent and the command line withstand a coordinator, or a fork server, that sends malformed messages."""

import asyncio
import contextlib

import msgspec
import pytest
from websockets.asyncio.server import serve

from elastane.common.errors import RunFailed
from elastane.run.agent import control_link as link_module
from elastane.run.agent.control_link import ControlLink
from elastane.run.connections import coordinator_request
from elastane.run.connections.coordinator_request import CoordinatorClient
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.nouns.control import AgentReport, AskStatus, RunOver, SetTarget, encode
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.silence_limits import SilenceLimits
from tests.waiting import WAIT_S, wait_until_async

from .test_agent import SMALL, find_members, play_run

__all__ = ["play_run"]

GARBAGE = (
    b"{",
    b'"text"',
    b'{"type":"SetTarget"}',
    b'{"type":"SetTarget","target":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b"\xff\xfe",
)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_agent_connects_again_after_a_malformed_message(garbage, monkeypatch):
    monkeypatch.setattr(link_module, "RETRY_MALFORMED_S", 0.01)
    over = RunOver(code=1, traceback="x" * (3 << 20))
    heard, complaints, visits = [], [], []

    async def coordinator(connection):
        visits.append(connection)
        await connection.send(garbage if len(visits) == 1 else encode(SetTarget(target=3)), text=True)
        if len(visits) > 1:
            await connection.send(encode(over), text=True)
        with contextlib.suppress(Exception):
            await connection.wait_closed()

    async def story():
        async with serve(coordinator, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()[:2]
            link = ControlLink(
                lambda: CoordinatorEndpoint(*address),
                "secret",
                lambda: AgentReport(pid=1, target=1, term=1),
                heard.append,
                asyncio.Event(),
                silence=SilenceLimits(),
                log=complaints.append,
            )
            running = asyncio.create_task(link.run())
            await wait_until_async(lambda: len(heard) == 2 or running.done(), "two messages are received")
            assert not running.done(), running.exception()
            running.cancel()
            await asyncio.wait((running,))

    asyncio.run(story())
    assert heard == [SetTarget(target=3), over]
    assert len(complaints) <= 1


@pytest.fixture
def malformed_coordinator(tmp_path, monkeypatch):
    """Run a story beside a coordinator that answers each request with the given bytes."""
    monkeypatch.setattr(coordinator_request, "is_live", lambda run_dir: True)

    def play(garbage, story):
        run_dir = RunDir(tmp_path)

        async def coordinator(connection):
            async for _ in connection:
                await connection.send(garbage, text=True)

        async def both():
            async with serve(coordinator, "127.0.0.1", 0) as server:
                host, port = server.sockets[0].getsockname()[:2]
                run_dir.endpoint.write_bytes(msgspec.json.encode(CoordinatorEndpoint(host, port)))
                run_dir.secret.write_text("secret")
                await story(run_dir)

        asyncio.run(both())

    return play


@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_command_line_reports_a_malformed_answer_as_no_answer(malformed_coordinator, garbage):
    async def story(run_dir):
        with pytest.raises(RunFailed):
            await asyncio.to_thread(coordinator_request.ask_coordinator, run_dir, AskStatus(), 0.5)

    malformed_coordinator(garbage, story)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_controller_takes_a_malformed_answer_for_no_answer(malformed_coordinator, garbage):
    async def story(run_dir):
        client = CoordinatorClient(run_dir)
        assert await client.ask(AskStatus(), WAIT_S) is None
        await client.close()

    malformed_coordinator(garbage, story)


@pytest.mark.processes
@pytest.mark.parametrize(
    "said",
    ["no json", '{"event": "gone"}', '{"event": "started", "worker": "x"}', "[" * 3000, "y" * 70_000],
)
def test_a_fork_server_that_writes_malformed_lines_is_replaced(play_run, tmp_path, said):
    script = 'if mkdir "$0" 2>/dev/null; then printf "%s\\n" "$1"; sleep 60; else shift; exec "$@"; fi'
    malformed = ("sh", "-c", script, str(tmp_path / "once"), said, *SMALL)

    async def story(running):
        await running.wait_until(lambda answer: find_members(answer) == {0})
        running.agent.stop()

    over, running = play_run(story, fork_server=malformed, start=1)
    assert over.code == 130
    assert "ended the fork server" in running.run_dir.log("fork-server").read_text()
