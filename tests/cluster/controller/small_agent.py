"""Attempts without training: everything about an attempt is real except its steps.

This is the program of `elastane.run.attempts`, with its lock, its number, its files and its control socket.
It writes a line of the ledger every few hundredths of a second, up to the number of ``--steps=`` of the
script. ``journal.jsonl`` beside it records which process has used how many workers at which times.
"""

import asyncio
import os
import time
from pathlib import Path

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from elastane.run.attempts import __main__ as attempts
from elastane.run.attempts import job_attempt
from elastane.run.nouns.attempts import AttemptOutcome
from elastane.run.nouns.control import (
    Answer,
    AskEvict,
    AskResize,
    AskStop,
    ProcessInfo,
    decode_to_coordinator,
    encode,
)
from elastane.run.nouns.records import EventLine, LedgerLine, Samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.line_files import read_last_line
from elastane.run.observability.run_files import decode_ledger_line, read_record

STEP_S = 0.05
JOINING_S, LEAVING_S, STOPPING_S = 0.1, 0.15, 0.05


class Used(msgspec.Struct):
    """A line of ``journal.jsonl``: the number of workers from now on."""

    pid: int
    attempt: int
    time_s: float
    workers: int


class SmallAttempt:
    """One attempt.

    Args:
        run_dir: of the job.
        attempt: its number.
        workers: number at the start.
    """

    def __init__(self, run_dir: RunDir, attempt: int, workers: int) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._workers = self._target = workers
        self._changing: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._ended = False
        args = read_record(run_dir).spec.args
        self._steps = int(next(arg.partition("=")[2] for arg in args if arg.startswith("--steps=")))
        last = read_last_line(run_dir.ledger, decode_ledger_line)
        self._step = 0 if last is None else last.step

    async def lived(self) -> AttemptOutcome:
        self._note()
        async with serve(self._answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            endpoint = self._run_dir.endpoint
            endpoint.write_bytes(msgspec.json.encode({"host": host, "port": port}))
            try:
                while self._step < self._steps:
                    try:
                        async with asyncio.timeout(STEP_S):
                            await self._stopped.wait()
                    except TimeoutError:
                        self._make_step()
                    else:
                        await asyncio.sleep(STOPPING_S)  # not a wait: a stop takes time
                        return self._over(AttemptOutcome(code=130, why="stopped"))
                append(self._run_dir.events, EventLine(time=time.time(), kind="run.finished"))
                return self._over(AttemptOutcome(code=0, why="all steps are made"))
            finally:
                endpoint.unlink()

    def _over(self, outcome: AttemptOutcome) -> AttemptOutcome:
        self._ended = True
        if self._changing is not None:
            self._changing.cancel()
        self._workers = self._target = 0
        self._note()
        return outcome

    def _make_step(self) -> None:
        self._step += 1
        line = LedgerLine(
            step=self._step,
            generation=self._attempt,
            workers={worker: ((worker, worker + 1),) for worker in range(self._workers)},
            samples=Samples(0, 0, 1, 1, "0" * 16),
            loss=1.0,
            loss_hex=(1.0).hex(),
            time=time.time(),
            seconds={"step": STEP_S},
        )
        append(self._run_dir.ledger, line)

    def _note(self) -> None:
        """Record the used workers: joining ones count from their request on, leaving ones until their end."""
        workers = max(self._workers, self._target)
        used = Used(pid=os.getpid(), attempt=self._attempt, time_s=time.time(), workers=workers)
        append(self._run_dir.root / "journal.jsonl", used)

    async def _answer(self, connection: ServerConnection) -> None:
        try:
            async for frame in connection:
                match decode_to_coordinator(frame):
                    case AskResize(workers=workers):
                        self._resize(workers)
                    case AskStop():
                        self._stopped.set()
                    case AskEvict():
                        self._workers = min(self._workers, self._target)
                await connection.send(encode(self._status()), text=True)
        except ConnectionClosed:
            return

    def _resize(self, workers: int) -> None:
        if self._ended or workers == self._target:
            return
        self._target = workers
        self._note()
        if self._changing is not None:
            self._changing.cancel()
        self._changing = asyncio.create_task(self._change())

    async def _change(self) -> None:
        change_s = LEAVING_S if self._target < self._workers else JOINING_S
        await asyncio.sleep(change_s)  # not a wait: a change takes time
        self._workers = self._target
        self._note()

    def _status(self) -> Answer:
        rows = tuple(ProcessInfo(role="worker", pid=0, worker=worker) for worker in range(self._workers))
        return Answer(ok=True, step=self._step, target=self._target, processes=rows)


def append(path: Path, value: msgspec.Struct) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(value) + b"\n")


def outcome_of(run_dir: RunDir, wish: job_attempt.AttemptRequest, _: object) -> AttemptOutcome:
    return asyncio.run(SmallAttempt(run_dir, wish.attempt, wish.workers).lived())


if __name__ == "__main__":
    job_attempt.determine_outcome = outcome_of
    attempts.main()
