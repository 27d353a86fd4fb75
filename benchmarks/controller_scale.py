"""Measure the real controller with many jobs: the time to its first plan, its cost, and missed deaths.

``python benchmarks/controller_scale.py --jobs 10000 --running 2000`` fills a store with jobs, of which some
run. For those, another process simulates the agents: it holds the locks of the run directories, writes the
attempt and a line of the ledger every two seconds, and answers on a socket as a coordinator does. Then the
script starts ``python -m elastane.cluster.controller`` and measures

- ``restart_s``: from the start of the process to the first plan in the store;
- ``rest_cores``: the cost of the controller while all agents live and no request comes;
- ``api``: list and describe at a steady rate (see ``api_load.py``) with the loop running;
- ``busy_cores``: the same, while jobs are also submitted and cancelled;
- ``deaths``: agents that vanish without a report: how many of them were found, and after how many seconds.

Prints one JSON object. Cores are processor seconds per second of the controller and its child processes.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import msgspec
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.jobs.requests import create_job
from elastane.cluster.controller.store import jobs, tables
from elastane.cluster.controller.store.columns import encode_json
from elastane.cluster.controller.store.database import Store
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from elastane.cluster.nouns.job_records import Explanation, Grant, HeldWorkers, ObservedJob
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common import process_identity
from elastane.run.agent.presence import hold_presence
from elastane.run.attempts.attempt_file import write_attempt
from elastane.run.nouns.attempts import Attempt
from elastane.run.nouns.control import Answer, ProcessInfo, encode
from elastane.run.nouns.records import LedgerLine, Samples
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from sqlalchemy import select, update
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from api_load import send_requests, summarize
from processes import read_cpu_s

TEAMS = 50
IN_ONE_TRANSACTION = 1000
BEAT_S = 2.0
SCRIPT = "/nowhere/train.py"
PLAN_S = 120.0
DEATHS_S = 120.0


# -- agents, simulated -----------------------------------------------------------------------------------


class Agents:
    """Everything that a local engine can see of many agents, in one process.

    Args:
        places: the directories of their jobs.
        names: the names of their jobs.
    """

    def __init__(self, places: EngineDirectories, names: list[str]) -> None:
        self._run_dirs = {name: places.get_run_dir(name) for name in names}
        self._presence: dict[str, int] = {}
        self._steps = dict.fromkeys(names, 0)
        self._bearers: dict[str, str] = {}
        self._places = places

    def create_run_dirs(self, host: str, port: int) -> None:
        pid = os.getpid()
        started = process_identity.read_start_time(pid) or 0
        for name, run_dir in self._run_dirs.items():
            run_dir.logs.mkdir(parents=True)
            secret = f"secret-of-{name}"
            run_dir.secret.write_text(secret)
            self._bearers[f"Bearer {secret}"] = name
            record = RunRecord(spec=RunSpec(name=name, script=SCRIPT), created="2026-01-01T00:00:00Z")
            run_dir.run.write_bytes(msgspec.json.encode(record))
            run_dir.endpoint.write_bytes(msgspec.json.encode({"host": host, "port": port}))
            self._presence[name] = hold_presence(run_dir)
            write_attempt(run_dir, Attempt(number=1, pid=pid, started=started, began_s=time.time()))
            self._places.mark_unsettled(name)

    def append_step(self, name: str) -> None:
        if name not in self._presence:
            return
        self._steps[name] += 1
        line = LedgerLine(
            step=self._steps[name],
            generation=1,
            workers={0: ((0, 8),)},
            samples=Samples(0, 0, 64, 64, "0" * 16),
            loss=1.0,
            loss_hex=(1.0).hex(),
            time=time.time(),
            seconds={"step": BEAT_S},
        )
        with self._run_dirs[name].ledger.open("ab") as ledger:
            ledger.write(msgspec.json.encode(line) + b"\n")

    def kill(self, name: str) -> None:
        """Vanish as after a SIGKILL: the lock is free, and the process that the attempt names is gone."""
        write_attempt(
            self._run_dirs[name], Attempt(number=1, pid=os.getpid(), started=1, began_s=time.time())
        )
        os.close(self._presence.pop(name))

    def authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        bearer = request.headers.get("Authorization", "")
        if bearer in self._bearers:
            return None
        return connection.respond(HTTPStatus.UNAUTHORIZED, "")

    async def serve_connection(self, connection: ServerConnection) -> None:
        request = connection.request
        name = "" if request is None else self._bearers[request.headers["Authorization"]]
        worker = ProcessInfo(role="worker", pid=1, worker=0, generation=1, state="member")
        try:
            async for _ in connection:
                answer = Answer(ok=True, step=self._steps[name], target=1, processes=(worker,))
                await connection.send(encode(answer), text=True)
        except ConnectionClosed:
            return

    async def run(self, pipe: Connection) -> None:
        async with serve(
            self.serve_connection,
            "127.0.0.1",
            0,
            process_request=self.authenticate,
            compression=None,
            ping_interval=None,
        ) as server:
            host, port = server.sockets[0].getsockname()
            self.create_run_dirs(host, port)
            pipe.send("settled")
            names, beaten = list(self._run_dirs), 0
            begin_s = time.monotonic()
            while True:
                due = int((time.monotonic() - begin_s) / BEAT_S * len(names))
                for number in range(beaten, due):
                    self.append_step(names[number % len(names)])
                beaten = due
                await asyncio.sleep(0.02)
                while pipe.poll():
                    self.kill(pipe.recv())


def run_agents(home: str, names: list[str], pipe: Connection) -> None:
    raise_file_limit()
    asyncio.run(Agents(EngineDirectories(Path(home)), names).run(pipe))


def raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# -- the store -------------------------------------------------------------------------------------------


def fill_store(store: Store, count: int, running: int, home: Path) -> None:
    """Store this many jobs; the oldest ones run, the others wait."""
    for begin in range(0, count, IN_ONE_TRANSACTION):
        with store.begin_write() as tx:
            numbers = range(begin, min(begin + IN_ONE_TRANSACTION, count))
            for number in numbers:
                job = jobs.insert_job(tx, create_job(make_spec(number), "ada", time.time()))
                if number < running:
                    observed = ObservedJob(seen_s=time.time(), held={"local": HeldWorkers(workers=1)})
                    run_dir = str(RunDir(home / "runs" / job.name).root)
                    after = msgspec.structs.replace(job, state="running", observed=observed, run_dir=run_dir)
                    jobs.write_job(tx, job, after)
            run = [number for number in numbers if number < running]
            granted = {
                "granted": encode_json(Grant(workers={"local": 1})),
                "workers": 1,
                "started_s": time.time(),
                "admitted_s": time.time(),
            }
            names = [f"job-{number}" for number in run]
            for some in range(0, len(names), 500):
                here = tables.jobs.c.name.in_(names[some : some + 500])
                tx.execute(update(tables.jobs).where(here).values(granted))


def make_spec(number: int) -> JobSpec:
    return JobSpec(
        name=f"job-{number}",
        team=f"team-{number % TEAMS}",
        script=SCRIPT,
        args=("--epochs", "3", "--data", "s3://bucket/some/where"),
        env={"OMP_NUM_THREADS": "4"},
        elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=4),
    )


def is_planned(store: Store, name: str) -> bool:
    """Return whether a plan has decided about a job."""
    with store.begin_read() as tx:
        text = tx.execute(select(tables.jobs.c.explained).where(tables.jobs.c.name == name)).scalar_one()
    return msgspec.json.decode(text, type=Explanation).decided_s > 0


def list_crashed(store: Store, names: list[str]) -> set[str]:
    with store.begin_read() as tx:
        found = tx.execute(select(tables.jobs.c.name).where(tables.jobs.c.crashes > 0))
        return {row.name for row in found} & set(names)


# -- the controller --------------------------------------------------------------------------------------


@contextmanager
def start_controller(settings: ControllerSettings, log: Path) -> Iterator[tuple[int, ControllerReady]]:
    reading, writing = os.pipe()
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "elastane.cluster.controller", f"--ready-fd={writing}"],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            pass_fds=(writing,),
        )
    os.close(writing)
    assert process.stdin is not None, "it is a pipe"
    try:
        with process.stdin as stdin:
            stdin.write(msgspec.json.encode(settings))
        with os.fdopen(reading, "rb") as ready:
            line = ready.readline()
        if not line:
            raise SystemExit(log.read_text())
        yield process.pid, msgspec.json.decode(line, type=ControllerReady)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def list_processes(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += list_processes(int(child))
    return found


def measure_cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and its descendants."""
    return sum(map(read_cpu_s, list_processes(pid)))


class Cores:
    """A counter of processor seconds per second, from its construction to `read`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin = time.monotonic(), measure_cpu_s(pid)

    def read(self) -> float:
        begin_s, used_s = self._begin
        return round((measure_cpu_s(self._pid) - used_s) / (time.monotonic() - begin_s), 3)


# -- the parts -------------------------------------------------------------------------------------------


def wait_until(done: Callable[[], bool], give_up_s: float, what: str) -> float:
    """Return the seconds until the condition holds."""
    begin_s = time.monotonic()
    while not done():
        if time.monotonic() - begin_s > give_up_s:
            raise SystemExit(f"not within {give_up_s:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - begin_s


def submit_and_cancel(url: str, token: str, seconds: float, per_s: float) -> None:
    """Submit a job and cancel the one before, again and again; runs in a process of its own."""
    end_s, last = time.monotonic() + seconds, ""
    with Cluster(url, token) as cluster:
        for number in range(10**6):
            if time.monotonic() > end_s:
                return
            spec = msgspec.structs.replace(make_spec(number), name=f"more-{os.getpid()}-{number}")
            cluster.jobs.submit(spec)
            if last:
                cluster.jobs.cancel(last)
            last = spec.name
            time.sleep(1 / per_s)


def measure_deaths(store: Store, pipe: Connection, names: list[str]) -> dict[str, object]:
    """Return how many of these agents were found dead, and how long that took."""
    died: dict[str, float] = {}
    took: dict[str, float] = {}
    rng = random.Random(3)
    begin_s, left = time.monotonic(), list(names)
    while len(took) < len(names) and time.monotonic() - begin_s < DEATHS_S:
        if left and rng.random() < 0.3:
            name = left.pop()
            died[name] = time.monotonic()
            pipe.send(name)
        for name in list_crashed(store, list(died)) - took.keys():
            took[name] = time.monotonic() - died[name]
        time.sleep(0.05)
    seconds = sorted(took.values())
    return {
        "died": len(died),
        "found": len(took),
        "median_s": round(median(seconds), 2) if seconds else None,
        "longest_s": round(seconds[-1], 2) if seconds else None,
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--changes", type=float, default=1.0, help="submissions a second, with a cancel each")
    parser.add_argument("--seconds", type=float, default=20.0, help="the duration of each part")
    parser.add_argument("--deaths", type=int, default=50)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    raise_file_limit()
    results: dict[str, object] = {"jobs": options.jobs, "running": options.running, "cores": os.cpu_count()}
    results["load_before"] = os.getloadavg()[0]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"sqlite:///{home / 'store.db'}"
        names = [f"job-{number}" for number in range(options.running)]
        mine, theirs = multiprocessing.Pipe()
        agents = context.Process(target=run_agents, args=(folder, names, theirs), daemon=True)
        agents.start()
        store = Store(url)
        fill_store(store, options.jobs, options.running, home)
        mine.recv()
        settings = ControllerSettings(
            home=folder, store=url, devices=max(1, options.running), user="benchmark"
        )
        begin_s = time.monotonic()
        with start_controller(settings, home / "controller.log") as (pid, ready):
            results["listens_s"] = round(time.monotonic() - begin_s, 2)
            waits = f"job-{options.jobs - 1}"
            wait_until(lambda: is_planned(store, waits), PLAN_S, "the first plan")
            results["restart_s"] = round(time.monotonic() - begin_s, 2)
            # A start still has writes to do, so this is not yet the cost at rest.
            time.sleep(options.seconds / 2)
            cores = Cores(pid)
            time.sleep(options.seconds)
            results["rest_cores"] = cores.read()
            cores = Cores(pid)
            took = asyncio.run(
                send_requests(ready.url, ready.token, options.jobs, options.rate, options.seconds)
            )
            results["api"] = {kind: summarize(some) for kind, some in took.items()}
            results["asked_cores"] = cores.read()
            cores = Cores(pid)
            changing = context.Process(
                target=submit_and_cancel,
                args=(ready.url, ready.token, options.seconds, options.changes),
                daemon=True,
            )
            changing.start()
            took = asyncio.run(
                send_requests(ready.url, ready.token, options.jobs, options.rate, options.seconds)
            )
            results["api_while_jobs_change"] = {kind: summarize(some) for kind, some in took.items()}
            results["busy_cores"] = cores.read()
            changing.join()
            results["deaths"] = measure_deaths(store, mine, names[: options.deaths])
            results["resident_mib"] = sum(measure_resident_mib(member) for member in list_processes(pid))
        store.close()
        agents.terminate()
        agents.join()
    print(json.dumps(results, indent=1))


def measure_resident_mib(pid: int) -> int:
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")
    )
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
