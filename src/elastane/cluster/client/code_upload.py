"""Sending of the code of a directory to the controller, for the jobs that use it."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.connections.controller_connection import ControllerConnection, NotFound
from elastane.common.errors import BadInput
from elastane.run.machines.joining.code_archive import write_archive
from elastane.run.machines.joining.shipped_code import CodeFile, compute_code_digest, list_code

LARGE_BYTES = 16 << 20
"""While an archive of more bytes is sent, each quarter is reported."""
MIB = 1 << 20


def send_code(
    connection: ControllerConnection, root: Path, spec: JobSpec, say: Callable[[str], object]
) -> str:
    """Send the code of a job, unless the controller has it from the team of the job; return its digest.

    Args:
        root: directory of the code.
        spec: has the paths in the code.
        say: takes a sentence for the user.

    Raises:
        BadInput: the code cannot be sent, or lacks the script.
        RequestRefused: the token may not submit jobs of the team, or the code has no room.
    """
    files = list_code(root)
    _check_script(root, files, spec.script)
    try:
        digest = compute_code_digest(root, files)
        path, params = f"/code/{digest}", {"team": spec.team}
        try:
            connection.send("GET", path, params=params)
        except NotFound:
            _send_archive(connection, root, files, digest, params, say)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"a file below {root} cannot be read or packed: {error}",
            means="nothing was submitted",
            do="leave it out in .elastaneignore, or free some space for temporary files",
        ) from error
    return digest


def _check_script(root: Path, files: Sequence[CodeFile], script: str) -> None:
    if script and os.path.normpath(script) not in {file.name for file in files}:
        raise BadInput(
            f"the code of {root} lacks the script {script}",
            means="it does not exist there, or an ignore file leaves it out; nothing was submitted",
            do="correct the path, or the lines in .elastaneignore or .gitignore",
        )


def _send_archive(
    connection: ControllerConnection,
    root: Path,
    files: Sequence[CodeFile],
    digest: str,
    params: dict[str, str],
    say: Callable[[str], object],
) -> None:
    with tempfile.TemporaryFile() as archive:
        if write_archive(root, files, archive) != digest:
            raise BadInput(
                f"the code of {root} has changed while it was read",
                means="the machines of a job need one state of the code; nothing was submitted",
                do="submit the job again",
            )
        size_bytes = archive.tell()
        say(f"sending the code of {root}: {len(files):,} files, {size_bytes / MIB:.1f} MiB")
        reported = 0

        def report(sent_bytes: int) -> None:
            nonlocal reported
            quarters = 4 * sent_bytes // size_bytes
            if size_bytes > LARGE_BYTES and quarters > reported:
                reported = quarters
                say(f"  {25 * quarters} % is sent")

        connection.upload(f"/code/{digest}", archive, params=params, sent=report)
