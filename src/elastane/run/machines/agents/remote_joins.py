"""The other machines that ``--hosts`` names: each starts ``elastane join`` over ssh."""

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.hosts import RunHost
from elastane.run.nouns.rundir import NodeFiles, RunDir
from elastane.run.observability.tail import read_end_of_text

TICKET_FROM_STDIN = "-"
"""In place of a ticket: other users of a machine could read it among the words of a command."""
LONGEST_MESSAGE_BYTES = 2000
SSH_FAILED = 255
"""Exit code of ssh if it did not connect or has lost the connection; otherwise that of the command."""


def build_join_command(host: RunHost, run_dir: RunDir, directory: Path, python: str) -> str:
    """Return the shell command that lets a machine take part; it reads the ticket from its input.

    Without a terminal it goes on when the connection ends: the run outlives the one that began it.

    Args:
        run_dir: of the run; the output goes to its logs.
        python: path of the interpreter, which the machine needs too.
    """
    slots = [] if host.slots is None else ["--slots", str(host.slots)]
    join = [python, "-P", "-m", "elastane", "join", TICKET_FROM_STDIN, "--name", host.node, *slots]
    log = shlex.quote(str(NodeFiles(run_dir.root, host.node).log("agent")))
    return f"cd {shlex.quote(str(directory))} && exec {shlex.join(join)} >>{log} 2>&1"


class RemoteJoins:
    """Starts ``elastane join`` on other machines, and says how it ends there.

    Args:
        ssh: the words of the command that runs a shell command on a host, which follows it.
    """

    def __init__(self, ssh: tuple[str, ...], run_dir: RunDir, say: Callable[[str], None]) -> None:
        self._ssh = ssh
        self._run_dir = run_dir
        self._say = say
        self._joins: list[asyncio.Task[bool]] = []

    def start(self, hosts: Iterable[RunHost], ticket: str, fail: Callable[[str], None]) -> None:
        """Start ``elastane join`` on each host with a ticket; call ``fail`` if it fails on all of them."""
        self._joins = [asyncio.create_task(self._join(host, ticket)) for host in hosts]
        for join in self._joins:
            join.add_done_callback(lambda _: self._check(fail))

    def _check(self, fail: Callable[[str], None]) -> None:
        if all(join.done() and not join.cancelled() and not join.result() for join in self._joins):
            fail("elastane join has failed on every machine of --hosts")

    async def finish(self, wait_s: float) -> None:
        """Wait until the other machines have ended too, at most so long; they end by themselves."""
        if self._joins:
            await asyncio.wait(self._joins, timeout=wait_s)
        for join in self._joins:
            join.cancel()
        await asyncio.gather(*self._joins, return_exceptions=True)

    async def _join(self, host: RunHost, ticket: str) -> bool:
        """Let one host take part until it leaves; return whether it ended well."""
        command = build_join_command(host, self._run_dir, Path.cwd(), sys.executable)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._ssh,
                host.address,
                command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Ctrl-C at the terminal is for this machine, which tells the others.
                start_new_session=True,
            )
        except OSError as error:
            self._say(f"{host.node}: cannot start {self._ssh[0]}: {error.strerror}")
            return False
        output, _ = await process.communicate(f"{ticket}\n".encode())
        if process.returncode:
            said = output[-LONGEST_MESSAGE_BYTES:].decode(errors="replace").strip() or self._read_log(host)
            lines = " / ".join(escape_line(line.strip()) for line in said.splitlines()) or "it said nothing"
            self._say(f"{host.node}: {self._describe_end(process.returncode)}: {lines}")
        return not process.returncode

    def _describe_end(self, code: int) -> str:
        if code == SSH_FAILED:
            return f"{self._ssh[0]} has no connection; if elastane join runs there, it goes on"
        return f"elastane join ended with exit code {code}"

    def _read_log(self, host: RunHost) -> str:
        try:
            log = NodeFiles(self._run_dir.root, host.node).log("agent")
            return read_end_of_text(self._run_dir.files, log, LONGEST_MESSAGE_BYTES)
        except (OSError, Malformed):
            return ""
