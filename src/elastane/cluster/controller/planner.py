"""A process that plans, so that requests to the controller do not wait for the arithmetic of a plan.

It only reads the store. ``python -m elastane.cluster.controller.planner`` reads the URL of the store as its
first line, then one time per line. It answers each with a `PlannedChanges`, and ends when its standard input
does.
"""

import contextlib
import gc
import os
import subprocess
import sys
from typing import BinaryIO

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.planning import PlannedChanges, Scheduler, make_cluster_plan
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import UnreadableRecord
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.errors import ElastaneError

LENGTH_BYTES = 8


class PlannerGone(ElastaneError):
    """The process has ended. The next plan starts another one."""


class PlanImpossible(msgspec.Struct, frozen=True, tag=True):
    """The answer if nothing can be decided, with the arguments of an `UnreadableRecord`."""

    what: str
    why: str
    do: str


class Planner:
    """The controller's side of the process, which starts when it is first needed.

    Args:
        url: of the store, which the controller has opened and migrated.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process ahead of time: its imports take a second."""
        if self._process is None:
            self._process = self._start_process()

    def plan(self, now_s: float) -> PlannedChanges:
        """Return the decisions of a plan made now.

        Raises:
            PlannerGone: the process has ended without an answer; the controller's log has its output.
            UnreadableRecord: a record that the share of every job depends on cannot be read.
        """
        self.start()
        assert self._process is not None
        try:
            requests, answers = _get_pipes(self._process)
            requests.write(b"%r\n" % now_s)
            requests.flush()
            answer = msgspec.msgpack.decode(_read_answer(answers), type=PlannedChanges | PlanImpossible)
        except (OSError, EOFError) as error:
            code = self._process.wait()
            self.close()
            raise PlannerGone(
                f"the planner process has exited with status {code}",
                means="nothing was decided this time; jobs continue, and another planner starts",
                do="read the lines above in the controller's log",
            ) from error
        if isinstance(answer, PlanImpossible):
            raise UnreadableRecord(answer.what, answer.why, do=answer.do)
        return answer

    def _start_process(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "elastane.cluster.controller.planner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C ends the controller, and the controller ends this process.
            start_new_session=True,
        )
        requests, _ = _get_pipes(process)
        requests.write(self._url.encode() + b"\n")
        # If the process has ended already, the first request finds out.
        with contextlib.suppress(OSError):
            requests.flush()
        return process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in _get_pipes(process):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()


def _get_pipes(process: "subprocess.Popen[bytes]") -> tuple[BinaryIO, BinaryIO]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout  # type: ignore[return-value]


def _read_answer(answers: BinaryIO) -> bytes:
    length = int.from_bytes(answers.read(LENGTH_BYTES), "little")
    answer = answers.read(length)
    if not length or len(answer) < length:
        raise EOFError
    return answer


def _make_answer(tx: Connection, now_s: float, scheduler: Scheduler) -> PlannedChanges | PlanImpossible:
    try:
        return make_cluster_plan(tx, now_s, scheduler)
    except UnreadableRecord as error:
        return PlanImpossible(error.record, error.why, error.do)


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    # Requests to the controller come first.
    os.nice(5)
    store = Store(requests.readline().decode().strip(), prepared=True)
    scheduler = Scheduler(plan=plan, explain=explain_decision)
    # A plan leaves hardly any cycles, and searching all of its jobs for them takes a fifth of its time.
    gc.disable()
    for line in requests:
        with store.begin_read() as tx:
            answer = msgspec.msgpack.encode(_make_answer(tx, float(line), scheduler))
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "little") + answer)
        answers.flush()
        del answer
        gc.collect()


if __name__ == "__main__":
    main()
