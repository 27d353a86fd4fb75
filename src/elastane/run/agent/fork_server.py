"""The agent's side of a fork server, which forks the workers of a run or the processes of a script.

Each message is one JSON object on a line of the server's standard input or output.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Literal

import msgspec

from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.agent.processes import Child
from elastane.run.nouns.membership import WorkerId

Natural = Annotated[int, msgspec.Meta(ge=0)]
LARGEST_REQUEST_BYTES = 16 << 20
LARGEST_ANSWER_BYTES = 64 << 10
END_S = 4.0
"""How long a server may take to end."""


class ProcessStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process to start: a worker, or a process of a worker of an unmodified script.

    Args:
        worker: its worker.
        local: its number in the worker.
        place: the place of its worker among all workers, for the division of GPUs.
        environment: its variables, beside those of the fork server.
        log: the name of its log; empty: that of the worker.
    """

    worker: Natural
    local: Natural = 0
    place: Natural = 0
    environment: dict[str, str] = {}
    log: str = ""


class ForkRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start processes, or signal all processes of the present generation.

    Args:
        start: the processes.
        generation: of the processes of an unmodified script; 0: start workers of a run, or none.
        signal: sent to each process; SIGKILL also reaches every process that they have started.
    """

    start: tuple[ProcessStart, ...] = ()
    generation: Natural = 0
    signal: Natural = 0


class ForkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer of a fork server.

    Args:
        event: ``ready``: it has imported all that its processes need, which from now on start at once;
            ``started`` and ``exited`` of one process; ``gone``: no process of the generation is left, nor any
            that they have started.
        generation: of the process.
        worker: of the process.
        local: of the process.
        pid: of the process; 0 if it could not be started.
        code: of ``exited``, negative for a signal.
        modules: of ``ready``: the modules that it did not import because they start threads or fail.
    """

    event: Literal["ready", "started", "exited", "gone"]
    generation: Natural = 0
    worker: WorkerId = 0
    local: Natural = 0
    pid: Natural = 0
    code: int = 0
    modules: tuple[str, ...] = ()


decode_fork_request: Decoder[ForkRequest] = Decoder(ForkRequest, at_most_bytes=LARGEST_REQUEST_BYTES)
decode_fork_answer: Decoder[ForkAnswer] = Decoder(ForkAnswer, at_most_bytes=LARGEST_ANSWER_BYTES)


class ForkServerHandle:
    """A process that serves as `elastane.run.worker.fork_loop` says.

    Args:
        child: started with pipes as its standard input and output.
    """

    def __init__(self, child: Child) -> None:
        self.child = child
        self.state = "importing"

    def start(self, processes: Iterable[ProcessStart], generation: int = 0) -> None:
        """Request processes; if the server is dead, nothing happens, and its end is reported."""
        self._request(ForkRequest(start=tuple(processes), generation=generation))

    def end(self) -> None:
        """Let the server end what its workers have left behind, and then itself."""
        if self.state != "ready":
            # It has no worker, and its imports may take long.
            self.child.kill()
            return
        self.child.close_input()
        asyncio.get_running_loop().call_later(END_S, self.child.kill)

    def signal(self, number: int) -> None:
        """Signal all processes of the present generation."""
        self._request(ForkRequest(signal=number))

    def _request(self, request: ForkRequest) -> None:
        self.child.write_line(msgspec.json.encode(request))

    async def read_answers(self) -> AsyncIterator[ForkAnswer]:
        """Yield the answers of the server until it ends.

        Raises:
            Malformed: a line is not an answer of a fork server.
        """
        pipe = self.child.process.stdout
        if pipe is None:
            raise TypeError("a fork server is started with pipes")
        reader = asyncio.StreamReader(limit=LARGEST_ANSWER_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                yield decode_fork_answer(line)
        except ValueError as error:  # `Malformed` itself, or asyncio's for a line that is too long
            raise Malformed(str(error)) from error
        finally:
            transport.close()
