"""A head start of the fork server: it imports torch while this process still learns what its run needs.

Most of the time until a machine's first step goes into that import. The guess is that the run changes nothing
in the environment of this process, because libraries read it when they are loaded. If the guess is wrong, the
process ends, and the fork server begins as usual.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from elastane.run.agent.environment import build_worker_environment
from elastane.run.nouns.notices import hold_notices

FORK_SERVER = (sys.executable, "-P", "-m", "elastane.run.worker.fork_server")
"""``-P`` keeps the working directory out of the module path: it may contain a user's ``logging.py``."""
USUAL_THREADS = 1
"""The default of `elastane.run.nouns.spec.RunSpec`, whose import would take longer than all of this."""
HEAD_START = "--head-start"
"""The first option of a fork server that reads its other options when it has imported everything."""


class LateOptions(msgspec.Struct, frozen=True):
    """The options of a fork server that had a head start: the first line of its standard input.

    Args:
        log: path of the file that receives its standard error from now on.
        folder: its working directory from now on.
    """

    options: tuple[str, ...]
    log: str
    folder: str


@dataclass(slots=True)
class HeadStart:
    """A fork server that imports, and waits for its options.

    Args:
        lifeline: both ends of the pipe that closes when the agent ends; the process has inherited the first.
        has_agent: the agent has the pipe, and closes it.
    """

    process: "subprocess.Popen[bytes]"
    environment: Mapping[str, str]
    folder: Path
    lifeline: tuple[int, int]
    has_agent: bool = False

    def end(self) -> None:
        """End the process; it has no worker."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if not self.has_agent:
            for end in self.lifeline:
                os.close(end)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Return whether the process is as one that begins now with this environment."""
        # Python has resolved relative entries in the folder in which it began.
        entries = environment.get("PYTHONPATH", "").split(os.pathsep)
        is_here = entries == [""] or all(Path(entry).is_absolute() for entry in entries)
        return (
            self.process.poll() is None
            and self.environment == environment
            and (is_here or self.folder == Path.cwd())
        )


_begun: HeadStart | None = None
"""A process has one at most, for its first fork server."""


def begin_head_start(command: Sequence[str] = FORK_SERVER) -> None:
    """Start a fork server for the run that this process will take part in, with the usual settings."""
    global _begun  # noqa: PLW0603 - see above
    if find_spec("torch") is None:
        # The command says so.
        return
    environment = build_worker_environment(os.environ, USUAL_THREADS)
    lifeline = os.pipe()
    try:
        with hold_notices():
            process = subprocess.Popen(
                (*command, HEAD_START, str(lifeline[0])),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=lifeline[:1],
                start_new_session=True,
                env=environment,
                bufsize=0,
            )
    except OSError:
        # The start of the fork server will fail too, and explain it.
        for end in lifeline:
            os.close(end)
        return
    _begun = HeadStart(process, environment, Path.cwd(), lifeline)
    atexit.register(drop_head_start)


def open_lifeline() -> tuple[int, int]:
    """Return both ends of the pipe that closes when the agent of a run ends; the agent closes them."""
    if _begun is None or _begun.has_agent:
        return os.pipe()
    _begun.has_agent = True
    return _begun.lifeline


def take_head_start(environment: Mapping[str, str], lifeline: int) -> "subprocess.Popen[bytes] | None":
    """Return the process with the head start if it fits, and end it otherwise; it is taken once.

    Args:
        environment: with which the fork server would begin.
        lifeline: of the agent.
    """
    global _begun
    begun, _begun = _begun, None
    if begun is None:
        return None
    if begun.lifeline[0] == lifeline and begun.fits(environment):
        return begun.process
    begun.end()
    return None


def drop_head_start() -> None:
    """End the process with the head start, if none has taken it: this process needs no fork server now."""
    global _begun
    begun, _begun = _begun, None
    if begun is not None:
        begun.end()
