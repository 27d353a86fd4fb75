"""The process of the driver: it is started when it is needed, and again when it has died or hangs."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from elastane.cluster.engines.ray.sightings import Sight, decode_sight
from elastane.cluster.nouns.agents import Away
from elastane.common.safe_text import fold_text
from elastane.common.untrusted_data import Decoder, Malformed

DRIVER = Path(__file__).with_name("driver.py")
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LANG")
"""Variables that the driver gets, beside those of Ray."""
MOST_ANSWER_BYTES = 32 << 20
"""About fifty thousand actors."""
MOST_ERROR_BYTES = 4 << 10
"""The end of its standard error, of which the last line may say why it died."""
READ_BYTES = 64 << 10
START_S = 90.0
"""How long a driver may take to connect to Ray, in seconds."""
HANG_S = 20.0
"""A driver that has not answered a request for so long, or by errors only, is started again."""
AGAIN_S = 5.0
"""How long to wait after a driver that could not connect to Ray: an attempt takes a second of a processor."""
MOST_WAITING = 32
"""The most requests that a driver has not answered, of which most are too late."""
REAP_S = 5.0
HELLO = 0


class DriverAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the driver.

    Args:
        number: of the request; 0: it has connected to Ray, or could not.
        ok: what was asked for.
        away: why Ray did not do it.
    """

    number: int
    ok: Any = None
    away: str = ""


_decode_answer = Decoder[DriverAnswer](DriverAnswer, at_most_bytes=MOST_ANSWER_BYTES)


class _Running:
    """A driver that runs, and what it has not answered yet."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        loop = asyncio.get_running_loop()
        self.waiting: dict[int, tuple[float, asyncio.Future[DriverAnswer]]] = {
            HELLO: (time.monotonic(), loop.create_future())
        }
        self.hello = self.waiting[HELLO][1]
        self.errors = b""
        self.tasks = [loop.create_task(self._read_answers()), loop.create_task(self._read_errors())]

    @property
    def silent_s(self) -> float:
        """How long the oldest request has waited, in seconds."""
        return time.monotonic() - min((asked_s for asked_s, _ in self.waiting.values()), default=float("inf"))

    @property
    def complaint(self) -> str:
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return fold_text(lines[-1]) if lines else "it said nothing"

    async def _read_answers(self) -> None:
        """Pass on answers until the driver ends, or writes anything else; then it is killed."""
        assert self.process.stdout is not None, "the driver was started with pipes"
        try:
            while line := await self.process.stdout.readline():
                answer = _decode_answer(line)
                if answer.number in self.waiting:
                    _, future = self.waiting.pop(answer.number)
                    if not future.done():
                        future.set_result(answer)
            why = ""
        except (Malformed, ValueError) as error:
            why = f"the driver wrote no answer: {error}"
            self._kill_group()
            # A pipe stays open until it is read to its end.
            while await self.process.stdout.read(READ_BYTES):
                pass
        await self.kill()
        for number, (_, future) in self.waiting.items():
            if not future.done():
                future.set_result(DriverAnswer(number=number, away=why or self._explain_death()))
        self.waiting.clear()

    def _explain_death(self) -> str:
        return f"the driver has ended with code {self.process.returncode}: {self.complaint}"

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None, "the driver was started with pipes"
        while part := await self.process.stderr.read(READ_BYTES):
            self.errors = (self.errors + part)[-MOST_ERROR_BYTES:]

    def _kill_group(self) -> None:
        if self.process.returncode is None:
            # It leads its process group, and has not been reaped: the number is still its own.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Kill the driver, which has nothing to finish, and reap it."""
        self._kill_group()
        with suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await self.process.wait()

    async def close(self) -> None:
        await self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await asyncio.gather(*self.tasks)


class RayDriver:
    """Asks the driver, and keeps one running.

    Args:
        python: path of its Python.
        address: of the Ray cluster.
        namespace: of the actors.
        answer_s: how long an answer may take, in seconds.
    """

    def __init__(self, python: str, address: str, namespace: str, answer_s: float) -> None:
        self._words = (python, "-I", str(DRIVER), address, namespace)
        self._answer_s = answer_s
        self._numbers = itertools.count(HELLO + 1)
        self._running: _Running | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._failed_s = float("-inf")
        self._failure = ""
        self._away_s: float | None = None
        """Since when Ray has done nothing; None: it did what the last request asked for."""
        self._turn = asyncio.Lock()

    async def ask(self, what: str, **arguments: Any) -> Any | Away:
        """Let the driver do something, and return its answer; one that comes too late is `Away`."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._ask(what, arguments, time.monotonic() + self._answer_s)
        except TimeoutError:
            if self._running is not None and not self._running.hello.done():
                return Away("the driver has not connected to Ray yet")
            return Away(f"Ray did not answer within {self._answer_s:g} s")

    async def look(self, cluster: str) -> Sight | Away:
        """Return what Ray shows of its nodes, and of the agents of a cluster."""
        answer = await self.ask("look")
        if isinstance(answer, Away):
            return answer
        try:
            return decode_sight(answer, cluster)
        except msgspec.ValidationError as error:
            return Away(f"the driver of Ray gave no readable answer: {error}")

    async def find_version(self, patience_s: float) -> str | Away:
        """Return the version of Ray, once the driver has connected to it."""
        running = await self._get_running()
        if isinstance(running, Away):
            return running
        await asyncio.wait([running.hello], timeout=patience_s)
        if not running.hello.done():
            return Away(f"the driver did not connect to Ray within {patience_s:g} s: {running.complaint}")
        hello = running.hello.result()
        if hello.away:
            return Away(hello.away)
        return str(hello.ok.get("ray", "")) if isinstance(hello.ok, dict) else ""

    async def close(self) -> None:
        """End the driver; actors go on."""
        if self._running is not None:
            closing = asyncio.ensure_future(self._running.close())
            self._running = None
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        # The call may be cancelled meanwhile; the next one waits for the same drivers.
        await asyncio.gather(*map(asyncio.shield, self._closing))

    async def _ask(self, what: str, arguments: Mapping[str, Any], until_s: float) -> Any | Away:
        """Do that.

        Args:
            until_s: the driver does nothing later; the clock is the same for all processes of a machine.
        """
        running = await self._get_running()
        if isinstance(running, Away):
            return running
        hello = await asyncio.shield(running.hello)
        if hello.away:
            return Away(fold_text(hello.away))
        if len(running.waiting) >= MOST_WAITING:
            return Away(f"Ray has not answered for {running.silent_s:.0f} s")
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        running.waiting[number] = time.monotonic(), future
        request = msgspec.json.encode({"number": number, "do": what, "with": arguments, "until_s": until_s})
        with suppress(BrokenPipeError, ConnectionResetError):
            assert running.process.stdin is not None, "the driver was started with pipes"
            running.process.stdin.write(request + b"\n")
            await running.process.stdin.drain()
        answer: DriverAnswer = await future
        if answer.away:
            self._away_s = self._away_s or time.monotonic()
            return Away(fold_text(answer.away))
        self._away_s = None
        return answer.ok

    async def _get_running(self) -> _Running | Away:
        """Return the driver that runs; start one if none runs, or if the driver hangs."""
        async with self._turn:
            running = self._running
            if running is not None:
                patience_s = HANG_S if running.hello.done() else START_S
                ended = running.process.returncode is not None
                if self._away_s is not None and time.monotonic() - self._away_s > HANG_S:
                    # Its connection may be lost for good, for example that to a raylet that was replaced.
                    self._away_s = None
                elif running.waiting and running.silent_s > patience_s:
                    self._failure = f"the driver has not answered for {running.silent_s:.0f} s"
                    self._failed_s = time.monotonic()
                elif not ended:
                    return running
                elif not running.hello.done() or running.hello.result().away:
                    self._failure = running.hello.result().away if running.hello.done() else running.complaint
                    self._failed_s = time.monotonic()
                await self.close()
            if (left_s := self._failed_s + AGAIN_S - time.monotonic()) > 0:
                return Away(f"{self._failure} (the driver starts again in {left_s:.0f} s)")
            try:
                self._running = _Running(await self._start())
            except OSError as error:
                return Away(f"cannot start the driver with {self._words[0]}: {error.strerror}")
            return self._running

    async def _start(self) -> asyncio.subprocess.Process:
        """Start a driver."""
        found = {k: v for k, v in os.environ.items() if k in PASSED or k.startswith("RAY_")}
        start = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=found,
                cwd="/",
                start_new_session=True,
                limit=MOST_ANSWER_BYTES,
            )
        )
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            # Its number would be lost with the call.
            await _Running(await start).close()
            raise
