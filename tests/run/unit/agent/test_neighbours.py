"""Agents ask each other how long ago they have heard the coordinator."""

import asyncio
import socket

from elastane.run.connections.run_certificate import create_certificate, read_certificate
from elastane.run.machines.agents.neighbours import NeighbourPoll, answer_neighbours
from elastane.run.machines.succession.takeover import CoordinatorHeard
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.rundir import RunDir
from tests.waiting import WAIT_S, wait_until_async


def make_run_dir(path) -> RunDir:
    path.mkdir()
    run_dir = RunDir(path)
    create_certificate(run_dir)
    run_dir.secret.write_text("a" * 64)
    return run_dir


async def poll(run_dir: RunDir, *nodes: NodeAddress) -> dict[str, CoordinatorHeard | None]:
    """Return the first answers of some agents."""
    asking = NeighbourPoll(run_dir, answer_s=1.0)
    answers = await wait_until_async(lambda: asking.read(nodes), "all have been asked")
    asking.stop()
    return dict(answers)


def test_agents_answer_and_dead_ones_do_not(tmp_path) -> None:
    run_dir = make_run_dir(tmp_path / "run")

    async def story() -> dict[str, CoordinatorHeard | None]:
        listening, unanswered = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        async with answer_neighbours(run_dir, listening, lambda: CoordinatorHeard(4.5, 2)):
            with unanswered:
                stopped = NodeAddress("stopped", "127.0.0.1", unanswered.getsockname()[1])
                return await poll(run_dir, NodeAddress("b", "127.0.0.1", port), stopped)

    answers = asyncio.run(story())
    assert answers["stopped"] is None
    assert answers["b"] is not None
    assert 4.5 <= answers["b"].heard_s < 4.5 + WAIT_S
    assert answers["b"].workers == 2


def test_an_agent_answers_only_those_that_know_the_run(tmp_path) -> None:
    run_dir, other = make_run_dir(tmp_path / "run"), make_run_dir(tmp_path / "other")
    thief = make_run_dir(tmp_path / "thief")
    (thief.root / "certificate.pem").write_text(read_certificate(run_dir))
    thief.secret.write_text("b" * 64)

    async def story() -> list[dict[str, CoordinatorHeard | None]]:
        listening = socket.create_server(("127.0.0.1", 0))
        node = NodeAddress("b", "127.0.0.1", listening.getsockname()[1])
        async with answer_neighbours(run_dir, listening, lambda: CoordinatorHeard(4.5, 2)):
            # Another certificate, and a wrong secret.
            return [await poll(stranger, node) for stranger in (other, thief)]

    assert asyncio.run(story()) == [{"b": None}, {"b": None}]


def test_the_certificate_is_read_without_its_key(tmp_path) -> None:
    text = read_certificate(make_run_dir(tmp_path / "run"))
    assert text.startswith("-----BEGIN CERTIFICATE-----")
    assert "PRIVATE" not in text
