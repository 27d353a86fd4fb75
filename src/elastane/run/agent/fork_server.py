"""The agent's side of the fork server: it requests workers and reads when they start and end."""

import asyncio
from collections.abc import AsyncIterator
from typing import IO, TypeAlias

import msgspec

from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.agent.processes import Child
from elastane.run.nouns.membership import WorkerId


class WorkerForked(msgspec.Struct, frozen=True):
    """The fork server has started this worker."""

    worker: WorkerId
    pid: int


class WorkerExited(msgspec.Struct, frozen=True):
    """A worker has ended. ``code`` is negative for a signal; ``pid`` is 0 if no worker was forked."""

    worker: WorkerId
    pid: int
    code: int


class ForkServerReady(msgspec.Struct, frozen=True):
    """The fork server has imported all that workers need; from now on they start at once."""


ForkServerMessage: TypeAlias = WorkerForked | WorkerExited | ForkServerReady


class _Line(msgspec.Struct, frozen=True):
    started: WorkerId | None = None
    exited: WorkerId | None = None
    ready: bool = False
    pid: int = 0
    code: int = 0


LARGEST_LINE_BYTES = 4096
decode_fork_server_line: Decoder[_Line] = Decoder(_Line, at_most_bytes=LARGEST_LINE_BYTES)


class ForkServerHandle:
    """A process of `elastane.run.worker.fork_server`: JSON lines over its standard input and output."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.state = "importing"

    def request_worker(self, worker: WorkerId) -> None:
        """Request a worker; if the server is dead, the agent requests it from the next one."""
        self.child.write_line(msgspec.json.encode({"start": worker}))

    async def read_messages(self) -> AsyncIterator[ForkServerMessage]:
        """Yield the messages of the server until it ends.

        Raises:
            Malformed: a line is not a message of a fork server.
        """
        reader = asyncio.StreamReader(limit=LARGEST_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), _require_pipe(self.child.process.stdout)
        )
        try:
            while line := await reader.readline():
                yield _parse_line(line)
        except ValueError as error:  # `Malformed` itself, or asyncio's for a line that is too long
            raise Malformed(str(error)) from error
        finally:
            transport.close()


def _require_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise TypeError("a fork server is started with pipes")
    return pipe


def _parse_line(text: bytes) -> ForkServerMessage:
    line = decode_fork_server_line(text)
    if line.started is not None:
        return WorkerForked(line.started, line.pid)
    if line.exited is not None:
        return WorkerExited(line.exited, line.pid, line.code)
    return ForkServerReady()
