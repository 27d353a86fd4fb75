"""The messages between the agent and the fork server of unmodified scripts, one JSON object per line."""

from typing import Annotated

import msgspec

from elastane.common.untrusted_data import Decoder
from elastane.run.nouns.membership import WorkerId

Natural = Annotated[int, msgspec.Meta(ge=0)]
LARGEST_REQUEST_BYTES = 16 << 20
LARGEST_ANSWER_BYTES = 1 << 20


class RankStart(msgspec.Struct, frozen=True):
    """One process to start.

    Args:
        worker: its worker.
        local: its number in the worker.
        place: the place of its worker among all workers, for the division of GPUs.
        environment: its variables, beside those of the fork server.
        log: the name of its log.
    """

    worker: Natural
    local: Natural
    place: Natural
    environment: dict[str, str]
    log: str


class RankServerRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start a generation of processes, or signal all processes of the present one.

    Args:
        generation: of the processes to start; 0: start none.
        start: the processes.
        signal: sent to each process; SIGKILL also reaches every process that they have started.
    """

    generation: Natural = 0
    start: tuple[RankStart, ...] = ()
    signal: Natural = 0


class RankServerAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer of the fork server.

    Args:
        event: ``ready``; ``started`` and ``exited`` of one process; ``gone``: no process of the generation is
            left, nor any that they have started.
        generation: of the process.
        worker: of the process.
        local: of the process.
        pid: of the process; 0 if it could not be started.
        code: of ``exited``, negative for a signal.
        modules: of ``ready``: the modules that it did not import because they start threads or fail.
    """

    event: str
    generation: Natural = 0
    worker: Natural = 0
    local: Natural = 0
    pid: Natural = 0
    code: int = 0
    modules: tuple[str, ...] = ()


decode_rank_request: Decoder[RankServerRequest] = Decoder(
    RankServerRequest, at_most_bytes=LARGEST_REQUEST_BYTES
)
decode_rank_answer: Decoder[RankServerAnswer] = Decoder(RankServerAnswer, at_most_bytes=LARGEST_ANSWER_BYTES)


def name_rank_log(worker: WorkerId, local: int, processes: int) -> str:
    """Return the name of a process's log: ``worker-2``, or ``worker-2-1`` of several in a worker."""
    return f"worker-{worker}" + (f"-{local}" if processes > 1 else "")
