"""The controller in ``elastane run``: the loop, plan and store of a cluster, for one run.

The run does not need its controller. It begins before the controller is loaded, and keeps its number of
workers if the controller fails.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Self

from elastane.cluster.nouns.config import Config
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.rest import JobExplanation
from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.extras import require_for_import
from elastane.common.log_lines import LogFile, configure_handler
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec

if TYPE_CHECKING:
    from elastane.cluster.controller.loop import Loop
    from elastane.cluster.controller.store.database import Store

TEAM = "local"
LOG = "controller"
DECISIONS = 20
FAREWELL_S = 5.0
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
LARGEST_STORE_BYTES = 256 << 20
"""The limit of each file of a store in the directory of another user."""


class RunController:
    """A context manager that sets the number of workers of a run, from a thread of its own.

    Args:
        run_dir: of the run; it holds the store, so that other terminals can read the reasons.
        attempt: number of the run's attempt, from 1.
        devices: of this machine: their number, and ``cpu`` or ``gpu``.
        say: reports a failure; training continues.
    """

    def __init__(
        self,
        run_dir: RunDir,
        spec: RunSpec,
        attempt: int,
        devices: tuple[int, str],
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._job = build_run_job(spec, attempt, kind=devices[1])
        self._pool = build_run_pool(self._job, devices)
        self._say = say
        self._over = threading.Event()
        self._loop: Loop | None = None
        self._thread = threading.Thread(target=self._decide, name="controller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._loop is not None:
            self._loop.close()
        self._thread.join(FAREWELL_S)

    def _decide(self) -> None:
        try:
            with _log_to_file(self._run_dir.log(LOG)):
                self._run_loop()
        # Failures of the controller end here: a full disk, a damaged store.
        except (ElastaneError, OSError) as error:
            self._say(f"the number of workers stays as it is: {error}")
        except ModuleNotFoundError as error:
            self._say(
                f"the number of workers stays as it is: there is no module {error.name}; for a run that "
                "grows onto idle devices: pip install 'elastane[controller]'"
            )

    def _run_loop(self) -> None:
        # These imports take a second. The run does not wait for them.
        from elastane.cluster.controller.loop import Loop
        from elastane.cluster.controller.planning import Scheduler
        from elastane.cluster.controller.store.database import Store
        from elastane.cluster.engines.foreground import ForegroundEngine
        from elastane.cluster.scheduler.plan import plan
        from elastane.cluster.scheduler.run_explanations import explain_run_decision

        if not self._run_dir.controller.exists():
            with TemporaryDirectory(prefix=".controller-", dir=self._run_dir.root) as folder:
                new = Path(folder, self._run_dir.controller.name)
                Store(f"sqlite:///{new}").close()
                # Another terminal sees a complete store or none.
                replace_file(self._run_dir.controller, new.read_bytes(), durable=False, mode=0o600)
        store = Store(f"sqlite:///{self._run_dir.controller}")
        try:
            self._submit(store)
            engine = ForegroundEngine(self._job.name, self._run_dir)
            self._loop = Loop(store, engine, Scheduler(plan=plan, explain=explain_run_decision))
            if not self._over.is_set():
                asyncio.run(self._loop.run())
        finally:
            store.close()

    def _submit(self, store: "Store") -> None:
        from elastane.cluster.controller.cluster.declarations import diff_configs
        from elastane.cluster.controller.jobs.requests import create_job
        from elastane.cluster.controller.store import documents, jobs

        now_s = time.time()
        with store.begin_write() as tx:
            wanted = Config(pools=(self._pool,))
            documents.write_documents(tx, diff_configs(documents.read_declared_config(tx), wanted), now_s)
            jobs.insert_job(tx, create_job(self._job, "", now_s))


@contextmanager
def _log_to_file(log: Path) -> Iterator[None]:
    """Write the log lines of the controller to a file instead of the terminal."""
    handler = configure_handler(LogFile(log, delay=True))
    logger = logging.getLogger("elastane")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(handler)
        handler.close()


def read_run_explanation(run_dir: RunDir) -> JobExplanation | None:
    """Return why a run has its number of workers; None: no controller has decided it.

    Raises:
        StoreError: the store cannot be read.
    """
    if not run_dir.controller.exists():
        return None
    with require_for_import("controller", "to read why a run has its size"):
        from elastane.cluster.controller.rest.job_bodies import render_explanation
        from elastane.cluster.controller.store import history, jobs
        from elastane.cluster.controller.store.database import Store

    with _find_readable_store(run_dir) as path:
        store = Store(f"sqlite:///{path}", prepared=True)
        try:
            with store.begin_read() as tx:
                newest = jobs.list_job_page(tx, jobs.JobFilters(), after=None, limit=1).items
                job = jobs.find_job(tx, newest[0].name) if newest else None
                if job is None:
                    return None
                return render_explanation(job, history.list_decisions(tx, job.name, DECISIONS))
        finally:
            store.close()


@contextmanager
def _find_readable_store(run_dir: RunDir) -> Iterator[Path]:
    """Yield the path of a run's store that SQLite may open, and beside which it may write.

    SQLite follows links, for its other files too. In the directory of another user they could lead to files
    of this one, so a copy is opened.
    """
    store = run_dir.controller
    names = [store.name, *(f"{store.name}{suffix}" for suffix in SQLITE_SUFFIXES)]
    try:
        links = set(run_dir.files.list_links(run_dir.root)).intersection(names)
        if links:
            raise BadInput(f"{run_dir.root / links.pop()} is a symbolic link", means="no run makes it one")
        if run_dir.root.stat().st_uid == os.geteuid():
            yield store
            return
        with TemporaryDirectory(prefix="elastane-") as folder:
            for name in names:
                if run_dir.files.has_file(run_dir.root / name):
                    content = run_dir.files.read(run_dir.root / name, LARGEST_STORE_BYTES)
                    Path(folder, name).write_bytes(content)
            yield Path(folder, store.name)
    except Malformed as error:
        raise BadInput(f"{store} cannot be read: {error}") from error


def build_run_job(spec: RunSpec, attempt: int, *, kind: str) -> JobSpec:
    """Return the job that stands for an attempt of a run in the store of its own controller.

    Args:
        kind: of device. If it is ``cpu``, a process takes one core for each of its threads.
    """
    processes = spec.worker_processes
    return JobSpec(
        name=spec.name if attempt == 1 else f"{spec.name}.{attempt}",
        team=TEAM,
        script="" if spec.module else spec.script,
        module=spec.module,
        args=spec.args,
        contract="elastane" if spec.contract is None else "torchrun",
        nproc_per_node=1 if spec.contract is None else processes,
        processes=spec.processes,
        resources_per_worker=WorkerResources(devices=processes * (spec.threads if kind == "cpu" else 1)),
        elastic_policy=ElasticPolicy(
            min_replicas=spec.min_workers, max_replicas=spec.max_workers, replica_discrete_values=spec.sizes
        ),
        training=JobTraining(
            seed=spec.seed,
            threads=spec.threads,
            virtual_ranks=spec.virtual_ranks,
            convergence=spec.convergence,
            numerics=spec.numerics,
            copies="all" if spec.copies is None else spec.copies,
        ),
    )


def build_run_pool(job: JobSpec, devices: tuple[int, str]) -> Pool:
    """Return this machine as a pool, which is always large enough for the job's minimum."""
    count, kind = devices
    count = max(count, job.elastic_policy.min_replicas * job.worker_devices)
    return Pool(name="local", device=kind, devices=count, devices_per_node=count)
