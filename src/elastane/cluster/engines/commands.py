"""The programs of engines: runs them, each with a bound of its time and of its output, and looks for them."""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from elastane.cluster.nouns.agents import Away, EngineFinding
from elastane.common.safe_text import fold_text

MOST_OUTPUT_BYTES = 32 << 20
"""About fifty thousand jobs of one user of Slurm."""
MOST_ERROR_BYTES = 64 << 10
READ_BYTES = 64 << 10
REAP_S = 1.0
"""How long to wait for the end of a killed program, in seconds. One that waits for a disk ends later."""


class CommandAnswer(msgspec.Struct, frozen=True):
    """How a program ended.

    Args:
        code: its exit code; negative: the number of the signal that ended it.
        errors: what it wrote to standard error, of which the beginning is kept.
    """

    code: int
    output: str
    errors: str

    @property
    def complaint(self) -> str:
        """What it wrote to standard error, in one line; else how it ended."""
        return fold_text(self.errors.strip()) or f"exit code {self.code}"


async def run_command(
    words: tuple[str, ...],
    environment: Mapping[str, str],
    bound_s: float,
    *,
    text: str = "",
    most_bytes: int = MOST_OUTPUT_BYTES,
) -> CommandAnswer | Away:
    """Run a program to its end, and kill it with its process group if it does not end in time.

    Args:
        words: the program and its arguments.
        bound_s: how long it may take.
        text: its standard input.
        most_bytes: the most that it may write to standard output; an output that was cut would look complete.
    """
    name = Path(words[0]).name
    try:
        process = await _start(words, environment)
    except OSError as error:
        return Away(f"cannot start {name}: {error.strerror}")
    try:
        async with asyncio.timeout(bound_s):
            output, errors, _ = await asyncio.gather(
                _read(process.stdout, most_bytes),
                _read(process.stderr, MOST_ERROR_BYTES),
                _feed(process, text),
            )
            code = await process.wait()
    except TimeoutError:
        return Away(f"{name} did not end within {bound_s:g} s")
    finally:
        await _kill(process)
    if len(output) > most_bytes:
        return Away(f"{name} wrote more than {most_bytes} bytes")
    return CommandAnswer(code, output.decode(errors="replace"), errors.decode(errors="replace"))


async def _start(words: tuple[str, ...], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a program in a process group of its own."""
    start = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        # A cancelled start waits until all processes that hold the pipes have ended, and kills only one.
        await _kill(await start)
        raise


async def _read(stream: asyncio.StreamReader | None, most_bytes: int) -> bytes:
    """Return the beginning of a stream, with at least one byte more than the limit if it is longer."""
    assert stream is not None, "the program was started with pipes"
    kept = bytearray()
    # Read to the end in any case: a program with a full pipe does not end.
    while part := await stream.read(READ_BYTES):
        if len(kept) <= most_bytes:
            kept += part
    return bytes(kept)


async def _feed(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdin is not None, "the program was started with pipes"
    # A program that fails early reads nothing; its exit code says why.
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(text.encode())
        await process.stdin.drain()
    process.stdin.close()


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a program and its process group, if it has not ended, and close its pipes."""
    if process.returncode is not None:
        return
    # It leads its process group, and has not been reaped: the number is still its own.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            # A pipe with an output that is not read stays open.
            await asyncio.gather(_read(process.stdout, 0), _read(process.stderr, 0), process.wait())


def judge_command(word: str, setup: str, machines: str) -> EngineFinding:
    """Say whether the command of Elastane is there, as far as this machine, or the setup, can tell."""
    if shutil.which(word) is not None:
        return EngineFinding(True, f"{word} is here; {machines} need it at the same path")
    if Path(word).is_absolute() and setup.strip():
        # Lines of setup may mount it there; a PATH that they change does not matter.
        return EngineFinding(True, f"{word} is not on this machine; {machines} need it at that path")
    if setup.strip():
        return EngineFinding(True, f"{word} is not on this machine; the option setup has to provide it")
    return EngineFinding(
        False,
        f"the command {word} is not on this machine",
        "name another one with the option command, or load it with the option setup",
    )
