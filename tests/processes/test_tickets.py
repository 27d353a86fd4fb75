"""With a ticket, machines take part in a run and users command it from machines without its directory."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastane.api.ticket_files import list_tickets

from .skipping import skip_except_in_ci
from .stage import find_members

pytestmark = pytest.mark.processes

NODES = {"listen": "127.0.0.2", "start": 2}
SLOWLY = ("--seconds=0.15", "--steps=60")
"""Long enough for some commands, each of which starts a process."""
COMMAND = [sys.executable, "-P", "-m", "elastane"]
WITHOUT_DIRECTORY = (
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none "$0" && exec "$@"',
)
"""Begins a program on a machine that does not see one directory, which is the next argument."""


class Visitor:
    """A user with a ticket on a machine without the directory of the run."""

    def __init__(self, hidden: Path, home: Path, ticket: str) -> None:
        self._begin = [*WITHOUT_DIRECTORY, str(hidden), *COMMAND]
        self._environment = os.environ | {"ELASTANE_HOME": str(home)}
        self._ticket = ticket

    def start(self, command: str, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*self._begin, command, self._ticket, *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def call(self, command: str, *words: str) -> tuple[int, str, str]:
        """Return the exit code and the output of a command."""
        process = self.start(command, *words)
        output, errors = await asyncio.to_thread(process.communicate)
        return process.returncode, output, errors


async def create_ticket(run, *limits: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "ticket", "create", str(run.run_dir.root), *limits, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


def test_a_user_commands_a_run_from_a_machine_without_its_directory(
    stage, assert_equals_reference, tmp_path_factory
):
    if subprocess.run([*WITHOUT_DIRECTORY, "/mnt", "true"], check=False).returncode:
        skip_except_in_ci("this system forbids mounts in user namespaces")
    home = tmp_path_factory.mktemp("visitor")
    followers = []

    async def disturb(run):
        await run.wait_for_step(2)
        visitor = Visitor(run.run_dir.root.parent, home, await create_ticket(run, "--uses", "1"))
        # One use serves all of its commands.
        code, shown, _ = await visitor.call("ps", "--json")
        assert code == 0
        assert {row["worker"] for row in json.loads(shown) if row["role"] == "worker"} >= {0, 1}
        assert [ticket.used for ticket in list_tickets(run.run_dir)] == [1]
        followers.append(visitor.start("events", "-f", "--json"))
        assert (await visitor.call("resize", "3"))[0] == 0
        await run.wait_until(lambda answer: find_members(answer) == {0, 1, 2})
        assert (await visitor.call("drain", "1"))[0] == 0
        await run.wait_until(lambda answer: find_members(answer) == {0, 2})
        assert (await visitor.call("logs", "coordinator", "--node", "first"))[0] == 0
        code, _, errors = await visitor.call("join")
        assert code == 2
        assert "does not share the directory of the run" in errors

    ended = stage.play(*SLOWLY, disturb=disturb, **NODES)
    assert_equals_reference(ended)
    (follower,) = followers
    seen = [json.loads(line) for line in follower.communicate()[0].splitlines()]
    assert follower.returncode == 0
    assert [event["kind"] for event in seen] == [event.kind for event in ended.run.events]
    assert seen[-1]["kind"] == "run.finished"


def test_a_machine_joins_with_a_ticket(stage, assert_equals_reference, tmp_path_factory):
    environment = os.environ | {"ELASTANE_HOME": str(tmp_path_factory.mktemp("joiner"))}
    joiners = []

    def join(ticket: str, name: str) -> subprocess.Popen:
        command = [*COMMAND, "join", ticket, "--name", name, "--slots", "1"]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    async def disturb(run):
        await run.wait_for_step(2)
        joiners.append(join(await create_ticket(run), "b"))
        await run.wait_until(lambda answer: find_members(answer) == {0, 1, 100})
        expired = join(await create_ticket(run, "--valid", "0s"), "c")
        _, errors = await asyncio.to_thread(expired.communicate)
        assert expired.returncode == 2
        assert "the ticket expired" in errors

    ended = stage.play(*SLOWLY, disturb=disturb, **NODES)
    assert_equals_reference(ended)
    (joiner,) = joiners
    joiner.communicate()
    assert joiner.returncode == 0
    assert ended.find_subjects("node.joined") == ["node b"]
