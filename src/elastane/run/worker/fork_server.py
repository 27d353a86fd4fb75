"""The fork server of a run: it imports the modules of all workers once, then forks workers.

It is an `elastane.run.worker.fork_loop.ForkLoop`. Workers outlive it if it is killed. Processes that a worker
leaves behind become its children, and it ends them.
"""

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder
from elastane.run.agent.fork_server import LARGEST_REQUEST_BYTES, ForkRequest, ProcessStart
from elastane.run.agent.head_start import HEAD_START, LateOptions
from elastane.run.nouns.notices import withstand_notices
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record
from elastane.run.worker.compiler import LARGE_PARTS, list_large_parts, postpone_compiler
from elastane.run.worker.descendants import adopt_orphans, list_descendants
from elastane.run.worker.fork_loop import ForkLoop
from elastane.run.worker.gangs.gang_start import GangStart
from elastane.run.worker.gangs.seat import LONE_SEAT, Seat
from elastane.run.worker.worker_log import open_worker_log

MODULES = (
    "torch",
    "numpy",
    "safetensors.torch",
    "elastane.run.worker.worker",
    # What a script imports by its first `elastane.join`.
    "elastane.run.worker.session",
)
GANG_PARTS = (*LARGE_PARTS, "elastane.run.worker.state.local_shards")
"""What the division of a model among processes imports, which takes as long as the import of torch."""
decode_late_options: Decoder[LateOptions] = Decoder(LateOptions, at_most_bytes=LARGEST_REQUEST_BYTES)
LOST = 1
STRAY_S = 1.0
"""How long a process that a worker has left behind may take to end by itself."""
SWEEP_S = 0.02
END_S = 3.0
"""How long this server outlives its agent."""


class WorkerForkLoop(ForkLoop):
    """Forks workers.

    Args:
        run_dir: the directory of the run, as its node sees it.
        lifeline: see `ForkLoop`.
        attempt: how often the run had been resumed when the attempt of the agent began.
        streams: the descriptors of the workers' standard input, output and error; empty: input is empty, and
            the others go to the worker's log.

    Attributes:
        run: the name of the run.
        processes: the number of processes of each worker.
    """

    def __init__(self, run_dir: RunDir, lifeline: int, attempt: int, streams: tuple[int, ...] = ()) -> None:
        super().__init__(run_dir, lifeline)
        self._attempt, self._streams = attempt, streams
        self.run, self.processes = "", 1
        self._gang: GangStart | None = None
        self._stores: dict[int, int] = {}
        """The worker of each store's process, by process id."""
        self._sessions: set[int] = set()
        """The sessions of all workers so far; each worker leads one."""
        self._ending: dict[int, float] = {}
        """When each process that was left behind was asked to end, in monotonic seconds."""
        self._is_swept = True
        adopt_orphans()

    def handle(self, request: ForkRequest) -> None:
        if self.processes == 1:
            for start in request.start:
                self.fork(start)
            return
        for worker in dict.fromkeys(start.worker for start in request.start):
            self._fork_gang([start for start in request.start if start.worker == worker])

    def _fork_gang(self, starts: Sequence[ProcessStart]) -> None:
        """Fork all processes of a worker, and the store by which they find each other."""
        try:
            self._gang = GangStart(self.processes, (*self.own, self.lifeline))
        except OSError as error:
            self.refuse(starts[0], error)
            return
        self._stores[self._gang.store.pid] = starts[0].worker
        for start in starts:
            self.fork(start)
        self._gang.close()
        self._gang = None

    def become(self, start: ProcessStart) -> NoReturn:
        # A worker ends its process itself; this is the end of one that could not begin.
        os._exit(self._run_worker(start))

    def handle_end(self, pid: int) -> None:
        """Forget a process that a worker has left behind; end a worker that has lost its store."""
        self._ending.pop(pid, None)
        if (worker := self._stores.pop(pid, None)) is None:
            return
        for process, start in self.living.items():
            if start.worker == worker:
                os.kill(process, signal.SIGKILL)

    def reap(self) -> None:
        """Collect every ended child, and look for what ended workers have left behind."""
        workers = set(self.living)
        super().reap()
        self._sessions |= workers
        left = {start.worker for start in self.living.values()}
        for store, worker in self._stores.items():
            if worker not in left:
                os.kill(store, signal.SIGKILL)
        self._is_swept = self._is_swept and workers <= self.living.keys()

    def look(self) -> float | None:
        """End what ended workers have left behind; return when to look again, in seconds.

        A process in a session of its own may be of any worker, so it ends when none is left.
        """
        if self._is_swept:
            return None
        left = [pid for pid in list_descendants(os.getpid(), without=self.living) if self._is_left(pid)]
        now = time.monotonic()
        for pid in left:
            is_late = now - self._ending.setdefault(pid, now) > STRAY_S
            # The tracker of shared memory ignores the first signal and cleans up; others may want to, too.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        self._is_swept = not left
        return SWEEP_S if left else None

    def _is_left(self, pid: int) -> bool:
        try:
            session = os.getsid(pid)
        except OSError:
            return False
        return not self.living or (session in self._sessions and session not in self.living)

    def end(self) -> None:
        """Wait a moment for the workers, which end with the agent, and end what they have left behind."""
        self._is_swept = False
        give_up_s = time.monotonic() + END_S
        while (self.look() is not None or self.living) and time.monotonic() < give_up_s:
            time.sleep(SWEEP_S)
            self.reap()
            self._is_swept = False

    def _run_worker(self, start: ProcessStart) -> int:
        """Run a process of the worker in the forked process; return its exit code."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._streams:
                self._take_streams()
            else:
                self._redirect_to_log(name_log(start.worker, start.local))
            seat = LONE_SEAT
            if self._gang is not None:
                os.environ.update(self._gang.build_environment(start.local, self.run, os.environ))
                seat = self._gang.take_seat(start.local)
            _run_forked(self.run_dir, start.worker, self.lifeline, self._attempt, seat)
        except SystemExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException as error:  # noqa: BLE001 - the one place where a failure becomes an exit code
            traceback.print_exc()
            return _find_exit_code(error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def _redirect_to_log(self, name: str) -> None:
        """Send output to a log, make input empty, and close the server's own descriptors."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(self.run_dir.log(name), flags, 0o644)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for fd in (log, empty, *self.own):
            os.close(fd)
        sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)

    def _take_streams(self) -> None:
        """Take input and output of `elastane run`, mostly its terminal."""
        for standard, stream in enumerate(self._streams):
            os.dup2(stream, standard)
        for fd in (*self._streams, *self.own):
            os.close(fd)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)


def _find_exit_code(error: BaseException) -> int:
    from elastane.run.worker.exhaustion import find_own_exhaustion

    resource = find_own_exhaustion(error)
    return LOST if resource is None else resource.exit_code


def name_log(worker: int, process: int) -> str:
    """Return the name of the log of a worker, or of one of its further processes."""
    return f"worker-{worker}" + (f"-{process}" if process else "")


def _run_forked(run_dir: RunDir, worker: int, lifeline: int, attempt: int, seat: Seat) -> NoReturn:
    from elastane.run.worker.worker import run_worker

    run_worker(run_dir, worker, lifeline, attempt, seat)


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    withstand_notices()
    # The import of NumPy starts threads of its BLAS, before any fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    has_head_start = sys.argv[1:2] == [HEAD_START]
    if has_head_start:
        import_modules()
    options = parser.parse_args(read_late_options() if has_head_start else None)
    streams = tuple(map(int, options.streams.split(","))) if options.streams else ()
    run_dir = RunDir(options.run_dir, options.node)
    server = WorkerForkLoop(run_dir, options.lifeline, options.attempt, streams)
    import_modules()
    spec = read_record(run_dir).spec
    server.run, server.processes = spec.name, spec.processes
    parts = list_large_parts(Path(spec.script)) if spec.processes == 1 else GANG_PARTS
    preload_modules((*parts, *spec.preload))
    server.serve()


def import_modules() -> None:
    """Import what every worker needs."""
    importlib.import_module("torch")
    postpone_compiler()
    for module in MODULES:
        importlib.import_module(module)


def read_late_options() -> tuple[str, ...]:
    """Wait for the options of this server, and go on as if it had begun with them."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(sys.stdin.fileno(), LARGEST_REQUEST_BYTES)):
            # The agent has ended, or needs no fork server.
            sys.exit(0)
        line += part
    late = decode_late_options(line)
    os.chdir(late.folder)
    log = os.open(late.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    return late.options


if __name__ == "__main__":
    main()
