"""The agent's side of a warm server: asks it for workers, hears when they start and end."""

import asyncio
from collections.abc import AsyncIterator
from typing import IO

import msgspec

from elastane.agent.processes import Child
from elastane.api.foreign import Decoder, Malformed
from elastane.api.membership import WorkerId


class Started(msgspec.Struct, frozen=True):
    started: WorkerId
    pid: int


class Exited(msgspec.Struct, frozen=True):
    """``code`` is negative for a signal; ``pid`` is 0 if the worker could not be started at all."""

    exited: WorkerId
    pid: int
    code: int


class Ready(msgspec.Struct, frozen=True):
    """All that workers need is imported; from now on they start at once."""

    ready: bool


class _Line(msgspec.Struct, frozen=True):
    started: WorkerId | None = None
    exited: WorkerId | None = None
    ready: bool = False
    pid: int = 0
    code: int = 0


LARGEST_LINE_BYTES = 4096
decode_line: Decoder[_Line] = Decoder(_Line, at_most_bytes=LARGEST_LINE_BYTES)


class WarmServer:
    """One process of `elastane.runtime.fork_server`: JSON lines on its standard input and output."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.state = "importing"

    def ask(self, worker: WorkerId) -> None:
        """A dead server hears nothing; the next one is asked again for those that have not started."""
        self.child.tell(msgspec.json.encode({"start": worker}))

    async def lines(self) -> AsyncIterator[Started | Exited | Ready]:
        """Yields what it says, until its end.

        Raises:
            Malformed: it says what no warm server says.
        """
        reader = asyncio.StreamReader(limit=LARGEST_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), _pipe(self.child.process.stdout)
        )
        try:
            while line := await reader.readline():
                yield _parsed(line)
        except ValueError as error:  # `Malformed` itself, or asyncio's for a line that is too long
            raise Malformed(str(error)) from error
        finally:
            transport.close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise TypeError("a warm server is started with pipes")
    return pipe


def _parsed(line: bytes) -> Started | Exited | Ready:
    said = decode_line(line)
    if said.started is not None:
        return Started(said.started, said.pid)
    if said.exited is not None:
        return Exited(said.exited, said.pid, said.code)
    return Ready(said.ready)
