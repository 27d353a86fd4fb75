"""The fork server: it imports the modules of all workers once, then forks workers that start at once.

``{"start": 3}`` on standard input forks worker 3; ``{"ready": true}``, ``{"started": 3, "pid": p}`` and
``{"exited": 3, "pid": p, "code": c}`` are the answers on standard output. The server only imports and never
computes: threads do not survive a fork, and a forked worker would wait for them forever.
"""

import argparse
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder
from elastane.run.agent.presence import hold_presence
from elastane.run.nouns.resources import THREADS
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record
from elastane.run.worker.worker_log import open_worker_log

MODULES = (
    "torch",
    "torch._dynamo",
    "numpy",
    "safetensors.torch",
    "elastane.run.worker.worker",
    # What a script imports by its first `elastane.join`.
    "elastane.run.worker.session",
)
READ_BYTES = 65536


class Request(msgspec.Struct, frozen=True):
    """A line of the agent: the number of the worker to start."""

    start: Annotated[int, msgspec.Meta(ge=0)]


_decode: Decoder[Request] = Decoder(Request, at_most_bytes=READ_BYTES)
LOST = 1


class ForkServerLoop:
    """The server's loop over three descriptors: requests, ended workers, the agent's lifeline.

    Args:
        run_dir: the directory of the run, as its node sees it.
        lifeline: the read end of a pipe to which no process writes; it closes when the agent ends.
        attempt: how often the run had been resumed when the attempt of the agent began.
        streams: the descriptors of the workers' standard input, output and error; empty: input is empty, and
            the others go to the worker's log.
    """

    def __init__(self, run_dir: RunDir, lifeline: int, attempt: int, streams: tuple[int, ...] = ()) -> None:
        self._run_dir = run_dir
        self._lifeline, self._attempt = lifeline, attempt
        self._streams = streams
        # Every worker inherits the lock.
        self._presence = hold_presence(run_dir)
        # Answers have their own copy of standard output, so that printed text cannot mix with them.
        self._answers = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._requests = b""
        self._workers: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until the agent closes standard input or dies."""
        children, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wakeup = (children, wake)
        self._answer({"ready": True})
        requests = sys.stdin.fileno()
        # Not epoll: a forked worker would share it with this process.
        selector = selectors.PollSelector()
        for fd in (requests, self._lifeline, children):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            readable = {key.fd for key, _ in selector.select()}
            if children in readable:
                os.read(children, READ_BYTES)
                self._reap()
            if self._lifeline in readable:
                return
            if requests in readable and not self._take_requests(requests):
                return

    def _take_requests(self, fd: int) -> bool:
        data = os.read(fd, READ_BYTES)
        *lines, self._requests = (self._requests + data).split(b"\n")
        for line in lines:
            self._start(_decode(line).start)
        return bool(data)

    def _start(self, worker: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            # Running workers must not lose their parent because another worker fails to start.
            sys.stderr.write(f"cannot start worker {worker}: {error}; {THREADS.do}\n")
            sys.stderr.flush()
            self._answer({"exited": worker, "pid": 0, "code": THREADS.exit_code})
            return
        if pid == 0:
            os._exit(self._run_worker(worker))
        self._workers[pid] = worker
        self._answer({"started": worker, "pid": pid})

    def _reap(self) -> None:
        # One wake-up may stand for several ended children.
        for pid in list(self._workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                self._answer({"exited": self._workers.pop(pid), "pid": pid, "code": code})

    def _answer(self, message: dict[str, int | bool]) -> None:
        os.write(self._answers, json.dumps(message).encode() + b"\n")

    def _run_worker(self, worker: int) -> int:
        """Run the worker in the forked process; return its exit code."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._streams:
                self._take_streams()
            else:
                self._redirect_to_log(worker)
            return _run_forked(self._run_dir, worker, self._lifeline, self._attempt)
        except SystemExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException as error:  # noqa: BLE001 - the one place where a failure becomes an exit code
            traceback.print_exc()
            return _find_exit_code(error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def _redirect_to_log(self, worker: int) -> None:
        """Send output to the worker's log, make input empty, and close the server's own descriptors."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(self._run_dir.log(f"worker-{worker}"), flags, 0o644)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for fd in (log, empty, self._answers, *self._wakeup):
            os.close(fd)
        sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)

    def _take_streams(self) -> None:
        """Take input and output of `elastane run`, mostly its terminal."""
        for standard, stream in enumerate(self._streams):
            os.dup2(stream, standard)
        for fd in (*self._streams, self._answers, *self._wakeup):
            os.close(fd)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)


def _find_exit_code(error: BaseException) -> int:
    from elastane.run.worker.exhaustion import find_own_exhaustion

    resource = find_own_exhaustion(error)
    return LOST if resource is None else resource.exit_code


def _run_forked(run_dir: RunDir, worker: int, lifeline: int, attempt: int) -> int:
    from elastane.run.worker.worker import run_worker

    return run_worker(run_dir, worker, lifeline, attempt)


def preload_modules(names: Iterable[str]) -> None:
    """Import what the workers need; a worker that needs a missing module fails with its own traceback."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"not loaded before the workers start: {name}: {escape_line(str(error))}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", default="", help="name of this node; empty: the first one")
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--attempt", type=int, required=True, help="how often the run had been resumed")
    parser.add_argument("--streams", default="", help="descriptors of the workers' standard streams: 5,6,7")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    streams = tuple(map(int, options.streams.split(","))) if options.streams else ()
    run_dir = RunDir(options.run_dir, options.node)
    server = ForkServerLoop(run_dir, options.lifeline, options.attempt, streams)
    # The import of NumPy starts threads of its BLAS, before any fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in MODULES:
        importlib.import_module(module)
    preload_modules(read_record(run_dir).spec.preload)
    # All workers share the imported memory; a garbage collection would touch, and so copy, every page.
    gc.collect()
    gc.freeze()
    server.serve()


if __name__ == "__main__":
    main()
