"""The fork server of unmodified scripts: it imports what the script imports, then forks its processes.

It holds two promises. A process of a new generation starts only after every process of the one before has
ended, and everything that those had started. And when the agent or this server ends, all of them end.
"""

import argparse
import gc
import os
import selectors
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from elastane.run.agent.presence import hold_presence
from elastane.run.nouns.resources import THREADS
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec, TorchrunContract
from elastane.run.observability.run_files import read_record
from elastane.run.scripts.agent.rank_requests import (
    RankServerAnswer,
    RankServerRequest,
    RankStart,
    decode_rank_request,
)
from elastane.run.scripts.processes.script_process import prepare_process, run_program, show_gpus
from elastane.run.scripts.processes.world_store import WorldStore, start_store
from elastane.run.worker.descendants import adopt_orphans, kill_descendants, list_descendants
from elastane.run.worker.script_imports import find_imports
from elastane.run.worker.script_preloading import ALWAYS, preload_imports

READ_BYTES = 65536
SWEEP_S = 0.005
SKIP = "--skip"
MOST_SKIPPED = 3
ALL = "*"
"""In place of packages to skip: import none that only the script names."""


class ScriptServerLoop:
    """The server's loop over three descriptors: requests, ended processes, the agent's lifeline.

    Args:
        run_dir: of the run.
        spec: of the run.
        lifeline: the read end of a pipe to which no process writes; it closes when the agent ends.
    """

    def __init__(self, run_dir: RunDir, spec: RunSpec, lifeline: int) -> None:
        self._run_dir = run_dir
        self._spec = spec
        self._contract = spec.contract or TorchrunContract()
        self._lifeline = lifeline
        # Every process of the run inherits the lock.
        self._presence = hold_presence(run_dir)
        self._answers = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._text = b""
        self._generation = 0
        self._living: dict[int, RankStart] = {}
        self._sweeping = False
        self._store = WorldStore(0, 0)
        adopt_orphans()

    def serve(self, left_out: frozenset[str]) -> None:
        """Serve until the agent closes standard input or dies; then no process of the run is left."""
        self._children, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._own = (self._children, wake, self._answers)
        self._answer(RankServerAnswer(event="ready", modules=tuple(sorted(left_out))))
        requests = sys.stdin.fileno()
        # Not epoll: a forked process would share it with this one.
        self._selector = selectors.PollSelector()
        for fd in (requests, self._lifeline, self._children):
            self._selector.register(fd, selectors.EVENT_READ)
        while True:
            readable = {key.fd for key, _ in self._selector.select(SWEEP_S if self._sweeping else None)}
            if self._children in readable:
                os.read(self._children, READ_BYTES)
            self._reap()
            if self._sweeping:
                self._sweep()
            if self._lifeline in readable or (requests in readable and not self._take_requests(requests)):
                while kill_descendants():
                    self._reap()
                return

    def _take_requests(self, fd: int) -> bool:
        data = os.read(fd, READ_BYTES)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._handle(decode_rank_request(line))
        return bool(data)

    def _handle(self, request: RankServerRequest) -> None:
        if request.generation > self._generation:
            # The agent has waited for the end of the generation before; this makes it certain.
            while kill_descendants():
                self._reap()
            self._generation = request.generation
            self._start_world(request.start)
        elif request.signal == signal.SIGKILL:
            kill_descendants()
        elif request.signal:
            # Only the processes of the script: they end their own loaders, which may be in use until then.
            for pid in self._living:
                os.kill(pid, request.signal)

    def _start_world(self, starts: Sequence[RankStart]) -> None:
        try:
            self._store = start_store((*self._own, self._lifeline))
        except OSError as error:
            for start in starts:
                self._refuse(start, error)
            return
        for start in starts:
            self._start(start)

    def _refuse(self, start: RankStart, error: OSError) -> None:
        sys.stderr.write(f"cannot start a process of worker {start.worker}: {error}; {THREADS.do}\n")
        sys.stderr.flush()
        self._answer(self._describe("exited", start, code=THREADS.exit_code))
        self._sweeping = not self._living

    def _start(self, start: RankStart) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._refuse(start, error)
            return
        if pid == 0:
            self._become(start, server)
        self._living[pid] = start
        self._answer(self._describe("started", start, pid=pid))

    def _become(self, start: RankStart, server: int) -> None:
        """Run the script in the forked process, which ends as an interpreter does.

        Raises:
            SystemExit: always.
        """
        for fd in self._own:
            os.close(fd)
        os.close(self._lifeline)
        prepare_process(self._run_dir, start, server, self._store.port)
        show_gpus(start, self._contract.processes)
        run_program(self._spec)
        raise SystemExit(0)

    def _reap(self) -> None:
        """Collect every ended child: processes of the script, and orphans that they have left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (start := self._living.pop(pid, None)) is not None:
                self._answer(self._describe("exited", start, pid=pid, code=os.waitstatus_to_exitcode(status)))
                self._sweeping = not self._living
            elif pid == self._store.pid and self._living:
                sys.stderr.write("the store of the world died, so all its processes are killed\n")
                sys.stderr.flush()
                kill_descendants()

    def _sweep(self) -> None:
        """Kill what the ended processes have left behind, and report when nothing is left."""
        kill_descendants()
        self._reap()
        if not list_descendants(os.getpid()):
            self._sweeping = False
            self._answer(RankServerAnswer(event="gone", generation=self._generation))

    def _describe(self, event: str, start: RankStart, *, pid: int = 0, code: int = 0) -> RankServerAnswer:
        return RankServerAnswer(
            event=event,
            generation=self._generation,
            worker=start.worker,
            local=start.local,
            pid=pid,
            code=code,
        )

    def _answer(self, answer: RankServerAnswer) -> None:
        os.write(self._answers, msgspec.json.encode(answer) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument(SKIP, default="", help="packages that are not imported: wandb,grpc")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_dir = RunDir(options.run_dir)
    spec = read_record(run_dir).spec
    left_out = frozenset(filter(None, options.skip.split(",")))
    blas_threads = os.environ.get("OPENBLAS_NUM_THREADS")
    # The import of NumPy starts threads of its BLAS, before any fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    imports = [] if ALL in left_out else find_imports(Path(spec.script))
    if culprit := preload_imports((*ALWAYS, *imports), left_out):
        # Other packages may import the culprit; do not find out about all of them one by one.
        skipped = left_out | {culprit}
        begin_again(options, skipped if len(skipped) <= MOST_SKIPPED else skipped | {ALL})
    if blas_threads is None:
        del os.environ["OPENBLAS_NUM_THREADS"]
    else:
        os.environ["OPENBLAS_NUM_THREADS"] = blas_threads
    # All processes share the imported memory; a garbage collection would touch, and so copy, every page.
    gc.collect()
    gc.freeze()
    ScriptServerLoop(run_dir, spec, options.lifeline).serve(left_out)


def begin_again(options: argparse.Namespace, left_out: frozenset[str]) -> None:
    """Replace this process by a new server that leaves out some packages; it keeps its descriptors."""
    sys.stderr.write(f"not imported ahead, because a fork would lose its threads: {sorted(left_out)}\n")
    sys.stderr.flush()
    module = "elastane.run.scripts.processes.script_server"
    arguments = ["--run-dir", str(options.run_dir), "--lifeline", str(options.lifeline)]
    os.set_inheritable(options.lifeline, True)
    os.execv(  # noqa: S606 - this very program
        sys.executable, [sys.executable, "-P", "-m", module, *arguments, SKIP, ",".join(sorted(left_out))]
    )


if __name__ == "__main__":
    main()
