"""The agent's side of the fork server of unmodified scripts."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence

import msgspec

from elastane.common.untrusted_data import Malformed
from elastane.run.agent.processes import Child
from elastane.run.nouns.rundir import RunDir
from elastane.run.scripts.agent.rank_requests import (
    LARGEST_ANSWER_BYTES,
    RankServerAnswer,
    RankServerRequest,
    RankStart,
    decode_rank_answer,
)

COMMAND = (sys.executable, "-P", "-m", "elastane.run.scripts.processes.script_server")
"""The command of the server, up to its options; ``-P`` as for the other processes of a run."""
LOG = "fork-server"


class RankServerHandle:
    """A process of `elastane.run.scripts.processes.script_server`: JSON lines over its stdin and stdout.

    Args:
        run_dir: of the run.
        lifeline: the read end of the agent's pipe.
        threads: threads that each process computes with, unless the user has set ``OMP_NUM_THREADS``.
        command: of the server; None: `COMMAND`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, run_dir: RunDir, *, lifeline: int, threads: int, command: Sequence[str] | None = None
    ) -> None:
        options = ("--run-dir", str(run_dir.root), "--lifeline", str(lifeline))
        self.child = Child(
            (*(command or COMMAND), *options),
            run_dir.log(LOG),
            pass_fds=(lifeline,),
            pipe_in=True,
            pipe_out=True,
            threads=threads if "OMP_NUM_THREADS" not in os.environ else None,
        )
        self.state = "importing"

    def start(self, generation: int, ranks: tuple[RankStart, ...]) -> None:
        self._request(RankServerRequest(generation=generation, start=ranks))

    def signal(self, number: int) -> None:
        """Signal all processes of the present generation."""
        self._request(RankServerRequest(signal=number))

    def _request(self, request: RankServerRequest) -> None:
        self.child.write_line(msgspec.json.encode(request))

    async def read_answers(self) -> AsyncIterator[RankServerAnswer]:
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
                yield decode_rank_answer(line)
        except ValueError as error:  # `Malformed` itself, or asyncio's for a line that is too long
            raise Malformed(str(error)) from error
        finally:
            transport.close()
