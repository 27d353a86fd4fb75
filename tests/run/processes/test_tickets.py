"""With a ticket, machines take part in a run and users command it from machines without its directory."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from elastane.common.exit_codes import ExitCode
from elastane.run.machines.tickets.ticket_files import list_tickets
from elastane.run.machines.tickets.tickets import KEY_BYTES, decode_ticket, encode_ticket
from elastane.run.nouns.spec import CheckpointPolicy

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
        """Start a command, such as ``ps`` or ``checkpoint now``, with the ticket and these words."""
        return subprocess.Popen(
            [*self._begin, *command.split(), self._ticket, *words],
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


async def create_ticket(run, home: Path, *limits: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("ticket", "create", str(run.run_dir.root), *limits),
        env=os.environ | {"ELASTANE_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


def start_join(home: Path, ticket: str, name: str) -> subprocess.Popen:
    command = [*COMMAND, "join", ticket, "--name", name, "--slots", "1"]
    environment = os.environ | {"ELASTANE_HOME": str(home)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


async def command_members(visitor, run, owner) -> None:
    """Let a visitor change the members of a run of two workers, and send a machine away that joined."""
    assert (await visitor.call("resize", "3"))[0] == 0
    await run.wait_until(lambda answer: find_members(answer) == {0, 1, 2})
    assert (await visitor.call("drain", "1"))[0] == 0
    await run.wait_until(lambda answer: find_members(answer) == {0, 2})
    joiner = start_join(owner, await create_ticket(run, owner), "b")
    await run.wait_until(lambda answer: find_members(answer) == {0, 2, 100})
    code, shown, _ = await visitor.call("drain", "b", "--wait")
    assert (code, shown) == (0, "b has left\n")
    await asyncio.to_thread(joiner.communicate)
    assert joiner.returncode == 0


async def read_records(visitor, home) -> None:
    """Let a visitor read what a run has written so far."""
    code, shown, _ = await visitor.call("checkpoint now", "--wait", "--json")
    assert code == 0
    assert json.loads(shown)["step"] > 0
    assert (await visitor.call("logs", "coordinator", "--node", "first"))[0] == 0
    code, shown, _ = await visitor.call("verify")
    assert code == 0
    assert "nothing is missing, lost or repeated" in shown
    code, shown, _ = await visitor.call("report")
    assert code == 0
    report = Path(shown.strip())
    assert report.is_relative_to(home)
    assert "</html>" in await asyncio.to_thread(report.read_text)


def forge(ticket: str) -> str:
    """Return a whole ticket with another key."""
    return encode_ticket(msgspec.structs.replace(decode_ticket(ticket), key=bytes(KEY_BYTES)))


@pytest.mark.long
def test_a_user_commands_a_run_from_a_machine_without_its_directory(stage, play_reference, tmp_path_factory):
    if subprocess.run([*WITHOUT_DIRECTORY, "/mnt", "true"], check=False).returncode:
        skip_except_in_ci("this system forbids mounts in user namespaces")
    home, owner, other = (tmp_path_factory.mktemp(name) for name in ("visitor", "owner", "other"))
    followers = []

    async def disturb(run):
        await run.wait_for_step(2)
        hidden = run.run_dir.root.parent
        ticket = await create_ticket(run, owner, "--uses", "1")
        # None of these uses the ticket up.
        code, _, errors = await Visitor(hidden, other, forge(ticket)).call("ps")
        assert code == 2
        assert "the run has no such ticket" in errors
        visitor = Visitor(hidden, home, ticket)
        # One use serves all of its commands.
        code, shown, _ = await visitor.call("ps", "--json")
        assert code == 0
        assert {row["worker"] for row in json.loads(shown) if row["role"] == "worker"} >= {0, 1}
        assert [one.used for one in list_tickets(run.run_dir) if one.record.uses == 1] == [1]
        code, _, errors = await Visitor(hidden, other, ticket).call("ps")
        assert code == 2
        assert "is used up" in errors
        followers.append(visitor.start("events", "-f", "--json"))
        await command_members(visitor, run, owner)
        await read_records(visitor, home)
        for command, why in (
            ("join", "does not share the directory of the run"),
            ("ticket create", "is not on this machine"),
        ):
            code, _, errors = await visitor.call(command)
            assert code == 2
            assert why in errors
        assert (await visitor.call("stop", "--wait"))[0] == 0

    ended = stage.play(
        "--seconds=0.15", "--steps=900", disturb=disturb, checkpoints=CheckpointPolicy(), **NODES
    )
    assert ended.outcome.code == ExitCode.STOPPED_BY_USER, ended.describe()
    expected = play_reference(len(ended.run.ledger))
    assert (ended.losses, ended.model_digest) == (expected.losses, expected.model_digest)
    assert ended.find_events("worker.died") == ended.find_events("node.lost") == []
    (follower,) = followers
    seen = [json.loads(line) for line in follower.communicate()[0].splitlines()]
    assert follower.returncode == 0
    assert [event["kind"] for event in seen] == [event.kind for event in ended.run.events]
    assert seen[-1]["kind"] == "run.stopped"


@pytest.mark.long
def test_a_machine_joins_with_a_ticket(stage, assert_equals_reference, tmp_path_factory):
    home = tmp_path_factory.mktemp("joiner")
    joiners = []

    async def disturb(run):
        await run.wait_for_step(2)
        joiners.append(start_join(home, await create_ticket(run, home), "b"))
        await run.wait_until(lambda answer: find_members(answer) == {0, 1, 100})
        expired = start_join(home, await create_ticket(run, home, "--valid", "0s"), "c")
        _, errors = await asyncio.to_thread(expired.communicate)
        assert expired.returncode == 2
        assert "the ticket expired" in errors

    ended = stage.play(*SLOWLY, disturb=disturb, **NODES)
    assert_equals_reference(ended)
    (joiner,) = joiners
    joiner.communicate()
    assert joiner.returncode == 0
    assert ended.find_subjects("node.joined") == ["node b"]
