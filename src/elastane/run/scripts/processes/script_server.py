"""The fork server of unmodified scripts: it imports what the script imports, then forks its processes.

It holds two promises. A process of a new generation starts only after every process of the one before has
ended, and everything that those had started. And when the agent or this server ends, all of them end.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from elastane.run.agent.fork_server import ForkAnswer, ForkRequest, ProcessStart
from elastane.run.nouns.notices import NOTICES, withstand_notices
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec, TorchrunContract
from elastane.run.observability.run_files import read_record
from elastane.run.scripts.processes.script_process import prepare_process, run_program, show_gpus
from elastane.run.worker.descendants import adopt_orphans, kill_descendants, list_descendants
from elastane.run.worker.fork_loop import ForkLoop
from elastane.run.worker.script_imports import ALWAYS, find_imports, preload_imports
from elastane.run.worker.world_store import WorldStore, start_store

SWEEP_S = 0.005
SKIP = "--skip"
MOST_SKIPPED = 3
ALL = "*"
"""In place of packages to skip: import none that only the script names."""


class ScriptForkLoop(ForkLoop):
    """Forks the processes of one world after the other."""

    def __init__(self, run_dir: RunDir, spec: RunSpec, lifeline: int) -> None:
        super().__init__(run_dir, lifeline)
        self._spec = spec
        self._contract = spec.contract or TorchrunContract()
        self._pid = os.getpid()
        self._is_swept = True
        self._store = WorldStore(0, 0)
        adopt_orphans()

    def handle(self, request: ForkRequest) -> None:
        if request.generation > self.generation:
            # The agent has waited for the end of the generation before; this makes it certain.
            self.end()
            self.generation = request.generation
            self._start_world(request.start)
        elif request.signal == signal.SIGKILL:
            kill_descendants()
        elif request.signal:
            # Only the processes of the script: they end their own loaders, which may be in use until then.
            for pid in self.living:
                os.kill(pid, request.signal)

    def _start_world(self, starts: Sequence[ProcessStart]) -> None:
        self._is_swept = False
        try:
            self._store = start_store((*self.own, self.lifeline))
        except OSError as error:
            for start in starts:
                self.refuse(start, error)
            return
        for start in starts:
            self.fork(start)

    def become(self, start: ProcessStart) -> NoReturn:
        """Run the script in the forked process, which ends as an interpreter does.

        Raises:
            SystemExit: always.
        """
        for fd in self.own:
            os.close(fd)
        os.close(self.lifeline)
        prepare_process(self.run_dir, start, self._pid, self._store.port)
        show_gpus(start, self._contract.processes)
        run_program(self._spec)
        raise SystemExit(0)

    def handle_end(self, pid: int) -> None:
        if pid == self._store.pid and self.living:
            sys.stderr.write("the store of the world died, so all its processes are killed\n")
            sys.stderr.flush()
            kill_descendants()

    def look(self) -> float | None:
        """Kill what the ended processes of a world have left behind, and report when nothing is left."""
        if self._is_swept or self.living:
            return None
        kill_descendants()
        self.reap()
        self._is_swept = not list_descendants(os.getpid())
        if not self._is_swept:
            return SWEEP_S
        self.answer(ForkAnswer("gone", generation=self.generation))
        return None

    def end(self) -> None:
        """Kill every process of the run."""
        while kill_descendants():
            self.reap()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument(SKIP, default="", help="packages that are not imported: wandb,grpc")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    withstand_notices()
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
    ScriptForkLoop(run_dir, spec, options.lifeline).serve(left_out=left_out)


def begin_again(options: argparse.Namespace, left_out: frozenset[str]) -> None:
    """Replace this process by a new server that leaves out some packages; it keeps its descriptors."""
    sys.stderr.write(f"not imported ahead, because a fork would lose its threads: {sorted(left_out)}\n")
    sys.stderr.flush()
    module = "elastane.run.scripts.processes.script_server"
    arguments = ["--run-dir", str(options.run_dir), "--lifeline", str(options.lifeline)]
    os.set_inheritable(options.lifeline, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    os.execv(  # noqa: S606 - this very program
        sys.executable, [sys.executable, "-P", "-m", module, *arguments, SKIP, ",".join(sorted(left_out))]
    )


if __name__ == "__main__":
    main()
