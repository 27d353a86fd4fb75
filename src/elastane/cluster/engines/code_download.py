"""The code of a job on a machine that sees nothing of the controller but its address."""

import tempfile
import time
from pathlib import Path
from typing import IO

from elastane.cluster.engines.local.job_code import place_code
from elastane.common.connections.controller_connection import ControllerConnection, ControllerUnreachable
from elastane.run.machines.joining.code_archive import LARGEST_ARCHIVE_BYTES

ALONE_S = 600.0
"""How long a controller that does not answer is asked again."""


def fetch_code(controller: ControllerConnection, agent: str, digest: str, into: Path) -> Path:
    """Return the directory of the code of an agent's job, after it was fetched if it was missing.

    Args:
        controller: a connection with the key of the agent's ticket.
        agent: its id.
        digest: of the code; its directory in ``into`` has this name.
        into: a folder of this user, in which no process uses another copy of this code; it may be missing.

    Raises:
        RequestRefused: the ticket is not valid any more, or the controller has lost the code.
        ControllerUnreachable: it does not answer.
        BadInput: it has sent other code, or there is a link in the place of the folder.
        OSError: the code cannot be written.
    """

    def open_archive() -> IO[bytes]:
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = tempfile.TemporaryFile(dir=into)  # noqa: SIM115 - the caller closes it
        try:
            _download(controller, agent, archive)
        except BaseException:
            archive.close()
            raise
        archive.seek(0)
        return archive

    return place_code(into, digest, open_archive)


def _download(controller: ControllerConnection, agent: str, archive: IO[bytes]) -> None:
    give_up_s = time.monotonic() + ALONE_S
    while True:
        try:
            controller.download(f"/agents/{agent}/code", archive, LARGEST_ARCHIVE_BYTES)
        except ControllerUnreachable:
            if time.monotonic() > give_up_s:
                raise
        else:
            return
