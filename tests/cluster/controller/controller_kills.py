"""Kill the real controller again and again while jobs are submitted, scaled, paused, resumed and cancelled.

``python controller_kills.py --kills 200 --seed 1 [--store URL | --postgres] [--training 2]`` exits with 1 and
prints the broken promise, if there is one. Most jobs are small (`small_agent`), some really train.
Controllers are forked from one that has imported everything (`warm_controller`), and some are started as
``elastane up`` does. They are killed while they start, at a commit, and at any moment.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import select as waited
from statistics import median

import msgspec
import small_agent
from sqlalchemy import select
from warm_controller import Wanted

import elastane
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.store import history, jobs, tables, tokens
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import compute_digest, generate_secret, generate_token_id
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.config import SchedulingRules
from elastane.cluster.nouns.controller import ControllerSettings
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.tokens import NewToken
from elastane.common.connections.controller_connection import RequestRefused
from elastane.run.agent.presence import is_any_process_present, list_present_processes
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import decode_ledger_line, read_lines, read_run

HERE = Path(__file__).parent
PROCESSES = HERE.parents[1] / "run" / "processes"
DEVICES = 6
MOST_ALIVE = 8
QUIET_S = 6.0
WAIT_S = 120.0
TRAINING_STEPS = 100_000
ANSWERS_EVERY = 3
ASKS_S = 5.0
"""How long a controller may take to ask for agents; then it is killed anyway."""
COLD_EVERY = 15
"""Every so many controllers are started as users do."""


class PromiseBroken(Exception):
    """A promise is broken."""


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise PromiseBroken(otherwise)


class RandomUser:
    """A user that sends random requests until it is stopped, and records what was promised.

    Args:
        url: of the controller.
        token: of a submitter.
        seed: of the requests.
        most_steps: of a job.
        kinds: of devices that its jobs accept; empty: any.
    """

    def __init__(
        self, url: str, token: str, seed: int, *, most_steps: int = 80, kinds: tuple[str, ...] = ()
    ) -> None:
        self._most_steps = most_steps
        self._resources = WorkerResources(kinds=kinds)
        self._cluster = Cluster(url, token, timeout_s=240.0)
        self._drawn = random.Random(seed)
        self._numbers = itertools.count(1)
        self.submitted: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.changes = self.answers = 0
        self.failure: BaseException | None = None
        self._alive: list[str] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop sending requests, and resume every paused job."""
        self._enough.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        for name in self.submitted:
            self._change(lambda name=name: self._cluster.jobs.resume(name))

    def train(self, name: str, most: int) -> None:
        spec = JobSpec(
            name=name,
            team="t",
            script=str(PROCESSES / "scripts" / "training.py"),
            args=("--seconds=0.004", f"--steps={TRAINING_STEPS}"),
            env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
            elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=most),
        )
        self.submitted[name] = self._cluster.jobs.submit(spec, key=name).number

    def cancel(self, name: str) -> None:
        self._change(lambda: self._cluster.jobs.cancel(name))
        self.cancelled.add(name)

    def _run(self) -> None:
        try:
            while not self._enough.wait(self._drawn.uniform(0.02, 0.25)):
                self.answers += 1
                self._alive = [
                    name for name in self._alive if self._cluster.jobs.get(name).state not in ENDED
                ]
                if len(self._alive) < MOST_ALIVE and self._drawn.random() < 0.5:
                    self._submit()
                elif self._alive:
                    self._ask_of(self._drawn.choice(self._alive))
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self.failure = error

    def _submit(self) -> None:
        name = f"job-{next(self._numbers)}"
        least = self._drawn.choice([1, 1, 1, 2])
        spec = JobSpec(
            name=name,
            team="t",
            script=str(HERE / "small_agent.py"),
            args=(f"--steps={self._drawn.randint(10, self._most_steps)}",),
            env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
            resources_per_worker=self._resources,
            elastic_policy=ElasticPolicy(min_replicas=least, max_replicas=self._drawn.randint(least, 4)),
        )
        number = self._cluster.jobs.submit(spec, key=name).number
        if self._drawn.random() < 0.2:
            again = self._cluster.jobs.submit(spec, key=name).number
            expect(again == number, f"{name} was submitted twice: {number} and {again}")
        self.submitted[name] = number
        self._alive.append(name)

    def _ask_of(self, name: str) -> None:
        cluster, what = self._cluster, self._drawn.choice(["scale", "scale", "pause", "resume", "cancel"])
        match what:
            case "scale":
                most = self._drawn.randint(2, 4)
                self._change(lambda: cluster.jobs.scale(name, max_replicas=most))
            case "pause":
                self._change(lambda: cluster.jobs.pause(name))
            case "resume":
                self._change(lambda: cluster.jobs.resume(name))
            case "cancel" if self._change(lambda: cluster.jobs.cancel(name)):
                self.cancelled.add(name)

    def _change(self, asked) -> bool:
        try:
            asked()
        except RequestRefused as refused:
            # It may have ended meanwhile.
            expect("an ended job accepts no more requests" in refused.problem.means, f"refused: {refused}")
            return False
        self.changes += 1
        return True


class Controllers:
    """Controllers that run one after the other.

    Args:
        wish: settings of each.
        folder: for their logs.
        agent: command of the agents.
    """

    def __init__(self, wish: ControllerSettings, folder: Path, agent: tuple[str, ...]) -> None:
        self._wish = wish
        self._folder = folder
        self._environment = os.environ | {"ELASTANE_HOME": wish.home}
        self._warm = subprocess.Popen(
            [sys.executable, str(HERE / "warm_controller.py"), *agent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        self._agent = agent
        self._cold: subprocess.Popen[bytes] | None = None
        self.log = folder / "controller.log"
        self._ready = folder / "ready"
        self.pid = 0
        self._process: int | None = None

    def begin(self, *, moments: int = 0, asks: int = 0, cold: bool = False) -> None:
        expect(not self.alive, "two controllers would live at once")
        self._ready.unlink(missing_ok=True)
        wish = msgspec.json.encode(self._wish).decode()
        if cold:
            self.pid = self._begin_cold(wish)
        else:
            wanted = Wanted(wish, str(self._ready), str(self.log), moments, asks)
            self._warm.stdin.write(msgspec.json.encode(wanted) + b"\n")
            self._warm.stdin.flush()
            self.pid = int(self._warm.stdout.readline())
        if self._process is not None:
            os.close(self._process)
        self._process = os.pidfd_open(self.pid)

    def _begin_cold(self, wish: str) -> int:
        """Start a controller like ``elastane up``, but with another command for agents."""
        program = (
            "import sys; from functools import partial\n"
            "from elastane.cluster.controller import __main__, server\n"
            "server.LocalEngine = partial(server.LocalEngine, agent=tuple(sys.argv[3:]))\n"
            "sys.argv[3:] = []; __main__.main()"
        )
        with self.log.open("ab") as log, self._ready.open("wb") as ready:
            self._cold = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-c", program),
                    *(f"--ready-fd={ready.fileno()}", f"--with={os.getpid()}", *self._agent),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(ready.fileno(),),
                start_new_session=True,
                env=self._environment,
            )
        with self._cold.stdin as asked:
            asked.write(wish.encode())
        return self._cold.pid

    @property
    def alive(self) -> bool:
        # Its address is free when its last thread is gone, not before.
        return self._process is not None and not waited((self._process,), (), (), 0)[0]

    @property
    def is_ready(self) -> bool:
        return self._ready.exists() and self._ready.read_bytes().endswith(b"\n")

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.is_ready or not self.alive, "a controller is ready")

    def let_live(self, seconds: float) -> None:
        """Return after so many seconds, or when the controller has ended."""
        if self._process is not None:
            waited((self._process,), (), (), seconds)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            waited((self._process,), (), ())
        if self._cold is not None:
            self._cold.wait()
            self._cold = None

    def close(self) -> None:
        if self.alive:
            self.kill()
        self._warm.communicate()


@contextmanager
def fork_server(folder: Path):
    """Start the fork server that imports torch once for all jobs that train."""
    path = folder / "warm"
    process = subprocess.Popen(
        [sys.executable, "-P", str(PROCESSES / "warm_process.py"), str(path)],
        stdin=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        wait_for(lambda: path.exists() or process.poll() is not None, "the warm process listens")
        expect(process.poll() is None, "the warm process ended")
        yield (sys.executable, "-S", "-E", str(PROCESSES / "warm_client.py"), str(path))
    finally:
        process.communicate()


def free_port() -> int:
    """Return a free port that outgoing connections do not use: otherwise a client could connect to itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def kill_again_and_again(
    controllers: Controllers,
    kills: int,
    drawn: random.Random,
    answers: Callable[[], int],
    *,
    of_engine: bool = False,
) -> dict[str, int]:
    """Return the number of kills by kind. Now and then a controller lives until it has answered a request.

    Args:
        of_engine: some are killed just before or after they ask an engine for agents.
    """
    how = dict.fromkeys(("starting", "at a commit", "at any moment"), 0)
    weights = [2, 4, 4]
    if of_engine:
        how["at a request for agents"] = 0
        weights.append(5)
    for number in range(kills):
        cold = number % COLD_EVERY == COLD_EVERY - 1
        kind = drawn.choices(list(how), weights)[0]
        moments = drawn.randint(1, 40) if kind == "at a commit" and not cold else 0
        asks = drawn.randint(1, 2) if kind == "at a request for agents" and not cold else 0
        controllers.begin(moments=moments, asks=asks, cold=cold)
        if kind == "starting":
            time.sleep(drawn.uniform(0, 1.5 if cold else 0.3))  # not a wait: the instant is drawn
        else:
            controllers.wait_until_ready()
            controllers.let_live(ASKS_S if asks else 2.0 if moments else drawn.uniform(0, 1.0))
            expect(moments or asks or controllers.alive, "a controller ended by itself")
            if number % ANSWERS_EVERY == 0:
                before = answers()
                wait_for(lambda before=before: answers() > before or not controllers.alive, "it answers")
        controllers.kill()
        how[kind] += 1
    return how


# -- what must hold ------------------------------------------------------------------------------------------


def look(asked: RandomUser, store: Store, places: EngineDirectories, devices: int) -> None:
    """Check everything after the cluster has come to rest.

    Raises:
        PromiseBroken: a promise is broken.
    """
    with store.begin_read() as tx:
        found = {job.name: job for job in jobs.find_jobs(tx, list(asked.submitted))}
        told = history.list_events_after(tx, 0, 10**9)
        count = len(tx.execute(select(tables.jobs.c.number)).all())
        usage = tx.execute(select(tables.usage).order_by(tables.usage.c.job, tables.usage.c.from_s)).all()
    lost = asked.submitted.keys() - found.keys()
    expect(not lost, f"lost: {sorted(lost)}")
    expect(count == len(found), f"{count} jobs, {len(found)} of them submitted")
    expect(not places.list_unsettled(), f"unsettled: {places.list_unsettled()}")
    for name, job in found.items():
        submitted = sum(one.kind == "job.submitted" and one.job == name for one in told)
        expect(submitted == 1, f"{name} was submitted {submitted} times")
        expect(job.number == asked.submitted[name], f"{name} has another number than was promised")
        look_at(job, places.get_run_dir(name), wanted_no_more=name in asked.cancelled)
    for one, following in itertools.pairwise(usage):
        same = (one.job, one.pool, one.terms) == (following.job, following.pool, following.terms)
        expect(not same or one.until_s <= following.from_s, f"usage of {one.job} was counted twice")
    look_at_devices(places, list(found), devices)


def look_at(job, run_dir, *, wanted_no_more: bool) -> None:
    name = job.name
    expect(job.state in ENDED, f"{name} is {job.state}")
    expect(job.state != "failed", f"{name} has failed: {job.why}")
    expect(job.state == "finished" or wanted_no_more, f"{name} was {job.state}, and nobody asked for that")
    expect(job.crashes == 0, f"{name} crashed {job.crashes} times")
    expect(not job.grant.workers and not job.observed.held and not job.workers, f"{name} holds devices")
    expect(not is_any_process_present(run_dir), f"{name} has processes: {list_present_processes(run_dir)}")
    if not run_dir.attempt.exists():
        expect(job.state == "cancelled", f"{name} finished without an attempt")
        return
    begun = [
        int(line.split()[1])
        for line in run_dir.log("agent").read_text().splitlines()
        if line.startswith("attempt ") and " begins with " in line
    ]
    expect(begun == list(range(1, len(begun) + 1)), f"{name} lived {begun}")
    expect(job.attempts == len(begun), f"{name} lived {begun}, and {job.attempts} attempts were judged")
    ledger = [line.step for line in read_lines(run_dir.ledger, decode_ledger_line, torn_tail=False)]
    expect(ledger == list(range(1, len(ledger) + 1)), f"the ledger of {name} is {ledger}")
    if is_training(run_dir):
        run = read_run(run_dir)
        expect(not verify_run(run).problems, f"{name}: {verify_run(run).problems}")
        bad = {event.kind for event in run.events} & {"worker.died", "worker.hung", "coordinator.died"}
        expect(not bad, f"{name}: {bad}")
    elif job.state == "finished":
        steps = int(job.spec.args[0].partition("=")[2])
        expect(len(ledger) == steps, f"{name} made {len(ledger)} of {steps} steps")


def is_training(run_dir) -> bool:
    return not (run_dir.root / "journal.jsonl").exists()


def look_at_devices(places: EngineDirectories, names: list[str], devices: int) -> None:
    """Check that each job has one agent at a time, and that there are never more workers than devices."""
    changes: list[tuple[float, int, str]] = []
    for name in names:
        if is_training(places.get_run_dir(name)):
            changes += list_worker_changes(places, name)
            continue
        decode = msgspec.json.Decoder(small_agent.Used).decode
        journal = read_lines(places.get_run_dir(name).root / "journal.jsonl", decode, torn_tail=False)
        for one, following in itertools.pairwise(journal):
            own = one.pid == following.pid
            expect(
                own or not one.workers, f"{name}: attempt {following.attempt} began while {one.attempt} lived"
            )
        used = 0
        for line in journal:
            changes.append((line.time_s, line.workers - used, name))
            used = line.workers
        expect(used == 0, f"{name} has kept {used} workers")
    used = 0
    for time_s, change, name in sorted(changes):
        used += change
        expect(used <= devices, f"{used} of {devices} devices in use, with {name}, at {time_s:.3f}")


def list_worker_changes(places: EngineDirectories, name: str) -> list[tuple[float, int, str]]:
    """Return the changes of the number of workers that computed the steps of a ledger."""
    changes, used, time_s = [], 0, 0.0
    for line in read_lines(places.get_run_dir(name).ledger, decode_ledger_line, torn_tail=False):
        time_s = line.time
        changes.append((time_s, len(line.workers) - used, name))
        used = len(line.workers)
    return [*changes, (time_s, -used, name)]


def list_step_intervals(run_dir, from_s: float, until_s: float) -> list[float]:
    """Return the seconds between the steps of one generation between two times."""
    ledger = read_lines(run_dir.ledger, decode_ledger_line, torn_tail=True)
    return [
        following.time - one.time
        for one, following in itertools.pairwise(ledger)
        if one.generation == following.generation and from_s <= one.time and following.time <= until_s
    ]


def summarize(some: list[float]) -> dict[str, float]:
    ordered = sorted(some)
    return {
        "steps": len(some),
        "median_ms": round(median(ordered) * 1000, 1),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))] * 1000, 1),
        "longest_ms": round(ordered[-1] * 1000, 1),
    }


# -- the story -----------------------------------------------------------------------------------------------


def make_token(url: str, role: str, team: str) -> str:
    secret = generate_secret()
    store = Store(url)
    with store.begin_write() as tx:
        tokens.insert_token(
            tx,
            generate_token_id(),
            compute_digest(secret),
            NewToken(user=role, role=role, team=team),
            time.time(),
        )
    store.close()
    return secret


def run_story(url: str, kills: int, seed: int, training: int, folder: Path) -> dict[str, object]:
    """Run the whole story, and return its summary.

    Raises:
        PromiseBroken: a promise is broken.
    """
    drawn = random.Random(seed)
    operator, submitter = make_token(url, "operator", ""), make_token(url, "submitter", "t")
    home, port = folder / "home", free_port()
    wish = ControllerSettings(home=str(home), store=url, port=port, devices=DEVICES + training * 2)
    places = EngineDirectories(home)
    names = [f"training-{number}" for number in range(training)]
    with ExitStack() as stack:
        warm = stack.enter_context(fork_server(folder)) if training else ("none",)
        agent = (sys.executable, "-S", "-E", str(HERE / "any_agent.py"), *warm, "--")
        controllers = Controllers(wish, folder, agent)
        stack.callback(controllers.close)
        controllers.begin()
        controllers.wait_until_ready()
        address = f"http://127.0.0.1:{port}"
        with Cluster(address, operator) as cluster:
            cluster.documents.set_rules(SchedulingRules(cooldown_s=0.5, min_run_time_s=0.5))
        asked = RandomUser(address, submitter, seed)
        stack.callback(kill_remaining_processes, places)
        for name in names:
            asked.train(name, 2)
        asked.begin()
        wait_for(lambda: all(count_steps(places, name) > 5 for name in names), "the training")
        quiet_from_s = time.time()
        time.sleep(QUIET_S)  # not a wait: the training that is measured without kills
        quiet_until_s = time.time()
        controllers.kill()
        how = kill_again_and_again(controllers, kills, drawn, lambda: asked.answers)
        killed_until_s = time.time()
        controllers.begin()
        controllers.wait_until_ready()
        asked.end()
        for name in names:
            asked.cancel(name)
        store = Store(url)
        stack.callback(store.close)
        wait_for(lambda: is_at_rest(store, places), "everything has ended")
        look(asked, store, places, wish.devices)
    said: dict[str, object] = {
        "kills": how,
        "jobs": len(asked.submitted),
        "changes": asked.changes,
        "seconds": round(killed_until_s - quiet_until_s),
    }
    for name in names:
        run_dir = places.get_run_dir(name)
        quiet = summarize(list_step_intervals(run_dir, quiet_from_s, quiet_until_s))
        killed = summarize(list_step_intervals(run_dir, quiet_until_s, killed_until_s))
        said[name] = {"without kills": quiet, "with kills": killed}
    return said


def count_steps(places: EngineDirectories, name: str) -> int:
    return len(read_lines(places.get_run_dir(name).ledger, decode_ledger_line, torn_tail=True))


def is_at_rest(store: Store, places: EngineDirectories) -> bool:
    with store.begin_read() as tx:
        return not jobs.list_planned_jobs(tx) and not places.list_unsettled()


def wait_for(done, what: str) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not done():
        expect(time.monotonic() < give_up_s, f"not so after {WAIT_S:g} s: {what}")
        time.sleep(0.05)


def kill_remaining_processes(places: EngineDirectories) -> None:
    for name in places.list_unsettled():
        for pid in set(list_present_processes(places.get_run_dir(name))) - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def print_summary(run: Callable[[Path], dict[str, object]], name: str) -> None:
    """Run a story of this name in a folder, and print its summary; exit with a broken promise."""
    folder = Path(tempfile.mkdtemp(prefix="elastane-killing-"))
    try:
        summary = run(folder)
    except PromiseBroken as broken:
        sys.exit(f"{name}: {broken}\nits files are in {folder}")
    shutil.rmtree(folder)
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--training", type=int, default=2, help="jobs that really train")
    parser.add_argument("--store", default="", help="URL of an empty database; by default SQLite")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL of its own")
    options = parser.parse_args()

    def run(folder: Path) -> dict[str, object]:
        with ExitStack() as stack:
            url = options.store or f"sqlite:///{folder / 'store.db'}"
            if options.postgres:
                from postgres import postgres_server

                url = stack.enter_context(postgres_server())("postgres")
            return run_story(url, options.kills, options.seed, options.training, folder)

    print_summary(run, f"seed {options.seed}")


if __name__ == "__main__":
    main()
