"""Kill the real controller again and again while jobs on the agents of an engine for Ray come and go.

``python agent_kills.py --kills 200 --seed 1 [--ray PYTHON]`` exits with 1 and prints the broken promise, if
there is one. The Ray is a small one with real processes as actors; with ``--ray`` it is the real one of
that Python. Controllers, their kills and the requests are those of `controller_kills`, agents are
`small_member`. No agent may be lost, started twice, or left behind.
"""

import argparse
import os
import random
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from controller_kills import (
    Controllers,
    PromiseBroken,
    RandomUser,
    expect,
    free_port,
    kill_again_and_again,
    make_token,
    print_summary,
    wait_for,
)
from small_member import Start

import elastane
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.agents.stored_agent import format_agent_id
from elastane.cluster.controller.store import agent_rows, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.engines.ray.engine import NAMESPACE
from elastane.cluster.nouns.config import DeclaredEngine, SchedulingRules
from elastane.cluster.nouns.controller import ControllerSettings
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.pools import Pool
from elastane.common.process_identity import read_start_time
from elastane.run.observability.run_files import decode_ledger_line, read_lines

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KIND = "far"
MOST_STEPS = 150


class Site:
    """A place with an engine, and what else happens there while the controllers are killed: nothing here."""

    def declare(self, cluster: Cluster, home: Path) -> None:
        """Declare an engine with small agents, and its pool, `KIND`."""
        raise NotImplementedError

    def begin(self, url: str, token: str) -> None:
        """Begin, with the address of the controllers and the token of a submitter."""

    def end(self) -> None:
        """Let everything come to its end."""

    def look(self, home: Path, cluster: str) -> dict[str, object]:
        """Check the remains of a cluster, and return a summary of all that happened beside the story.

        Raises:
            PromiseBroken: a promise is broken.
        """
        return {}


class AnyRay(Site):
    """A Ray.

    Args:
        options: of an engine for it.
        list_actors: returns the names of the actors in a namespace.
    """

    def __init__(self, options: dict[str, str], list_actors: Callable[[str], list[str]]) -> None:
        self._options, self._list_actors = options, list_actors

    def declare(self, cluster: Cluster, home: Path) -> None:
        options = self._options | build_member_options(home)
        cluster.documents.declare(DeclaredEngine(name="ray", kind="ray", options=options))
        pool = Pool(name=KIND, device=KIND, devices=0, engine="ray", options={"cpusPerDevice": "1"})
        cluster.documents.declare(pool)

    def look(self, home: Path, cluster: str) -> dict[str, object]:
        wait_for(lambda: not self._list_actors(f"{NAMESPACE}{cluster}"), "no actor is left")
        return {}


@contextmanager
def open_any_ray(python: str) -> Iterator[AnyRay]:
    """Start a Ray. All its actors end with the context."""
    sys.path.append(str(ROOT))
    if not python:
        from tests.cluster.engines.ray_site import SmallRayHead

        head = SmallRayHead()
        try:
            yield AnyRay({"python": str(head.python)}, partial(head.tell, "list_actors"))
        finally:
            head.close()
        return
    from tests.cluster.engines.ray_daemons import open_ray

    os.environ["ELASTANE_RAY"] = python
    with open_ray() as daemons:
        options = {"python": python, "address": daemons.address, "answer": "15s"}
        yield AnyRay(options, daemons.list_actors)


def build_member_options(home: Path) -> dict[str, str]:
    """Return the options of an engine with small agents."""
    paths = os.pathsep.join([str(Path(elastane.__file__).parents[1]), str(HERE)])
    return {
        "command": shlex.join([sys.executable, str(HERE / "small_member.py")]),
        "setup": f"export TEST_HOME={shlex.quote(str(home))} PYTHONPATH={shlex.quote(paths)}",
    }


def read_starts(home: Path) -> list[Start]:
    decode = msgspec.json.Decoder(Start).decode
    return list(read_lines(home / "agents.jsonl", decode, torn_tail=True))


def is_alive(start: Start) -> bool:
    return read_start_time(start.pid) == start.started


def is_at_rest(store: Store, home: Path) -> bool:
    with store.begin_read() as tx:
        busy = jobs.list_planned_jobs(tx) or agent_rows.list_living_agents(tx)
    return not busy and not any(map(is_alive, read_starts(home)))


def describe_unrest(store: Store, home: Path) -> str:
    with store.begin_read() as tx:
        living = [(job.name, job.state) for job in jobs.list_planned_jobs(tx)]
        agents = [(agent.number, agent.job, agent.state) for agent in agent_rows.list_living_agents(tx)]
    return f"jobs {living}, agents {agents}, processes {list(filter(is_alive, read_starts(home)))}"


def look_at_jobs(asked: RandomUser, store: Store, home: Path) -> None:
    """Check every job after its end.

    Raises:
        PromiseBroken: a promise is broken.
    """
    with store.begin_read() as tx:
        found = {job.name: job for job in jobs.find_jobs(tx, list(asked.submitted))}
    expect(found.keys() == asked.submitted.keys(), f"lost: {sorted(asked.submitted.keys() - found.keys())}")
    for name, job in found.items():
        expect(job.state in ENDED and job.state != "failed", f"{name} is {job.state}: {job.why}")
        expect(job.state == "finished" or name in asked.cancelled, f"{name} was not to be {job.state}")
        expect(job.crashes == 0, f"{name} crashed {job.crashes} times: {job.why}")
        expect(not job.grant.workers and not job.observed.held and not job.workers, f"{name} holds devices")
        run_dir = EngineDirectories(home).get_run_dir(name)
        if run_dir.ledger.exists():
            ledger = [line.step for line in read_lines(run_dir.ledger, decode_ledger_line, torn_tail=False)]
            expect(ledger == list(range(1, len(ledger) + 1)), f"the ledger of {name} is {ledger}")
            steps = int(job.spec.args[0].partition("=")[2])
            expect(job.state != "finished" or len(ledger) == steps, f"{name} made {len(ledger)} of {steps}")
        else:
            expect(job.state == "cancelled", f"{name} finished without a step")
        begun = [start.attempt for start in read_starts(home) if start.job == name]
        expect(begun == list(range(1, len(begun) + 1)), f"{name} began its attempts {begun}")
        # An attempt may begin just before its job is cancelled, and after the job was observed.
        unseen = int(job.state == "cancelled" and job.attempts < len(begun))
        judged = f"{name} began {begun}, and {job.attempts} attempts were judged"
        expect(job.attempts + unseen == len(begun), judged)


def look_at_agents(store: Store, home: Path) -> int:
    """Check that each agent began once at most and that the store knows it; return their number.

    Raises:
        PromiseBroken: an agent was doubled or lost.
    """
    starts = Counter(start.agent for start in read_starts(home) if not start.job)
    often = {agent: count for agent, count in starts.items() if count > 1}
    expect(not often, f"begun several times: {often}")
    with store.begin_read() as tx:
        cluster = agent_rows.find_cluster_id(tx)
        unknown = [
            agent for agent in starts if agent_rows.find_agent(tx, int(agent.rpartition("-")[2])) is None
        ]
    expect(not unknown, f"the store does not know {unknown}")
    known = {format_agent_id(cluster, int(agent.rpartition("-")[2])) for agent in starts}
    expect(known == starts.keys(), f"of another cluster: {starts.keys() - known}")
    return len(starts)


def run_story(url: str, kills: int, seed: int, folder: Path, site: Site) -> dict[str, object]:
    """Run the whole story, and return its summary.

    Raises:
        PromiseBroken: a promise is broken.
    """
    drawn = random.Random(seed)
    operator, submitter = make_token(url, "operator", ""), make_token(url, "submitter", "t")
    home, port = folder / "home", free_port()
    home.mkdir()
    wish = ControllerSettings(home=str(home), store=url, port=port, devices=1)
    with ExitStack() as stack:
        controllers = Controllers(wish, folder, ("none",))
        stack.callback(controllers.close)
        stack.callback(end_remaining, home)
        controllers.begin()
        controllers.wait_until_ready()
        address = f"http://127.0.0.1:{port}"
        with Cluster(address, operator) as cluster:
            site.declare(cluster, home)
            cluster.documents.set_rules(SchedulingRules(cooldown_s=0.5, min_run_time_s=0.5))
        asked = RandomUser(address, submitter, seed, most_steps=MOST_STEPS, kinds=(KIND,))
        asked.begin()
        site.begin(address, submitter)
        wait_for(lambda: any(start.job for start in read_starts(home)), "an attempt begins")
        controllers.kill()
        began_s = time.monotonic()
        how = kill_again_and_again(controllers, kills, drawn, lambda: asked.answers, of_engine=True)
        killed_s = time.monotonic() - began_s
        controllers.begin()
        controllers.wait_until_ready()
        asked.end()
        site.end()
        store = Store(url)
        stack.callback(store.close)
        try:
            wait_for(lambda: is_at_rest(store, home), "everything has ended")
        except PromiseBroken as broken:
            raise PromiseBroken(f"{broken}: {describe_unrest(store, home)}") from None
        look_at_jobs(asked, store, home)
        agents = look_at_agents(store, home)
        with store.begin_read() as tx:
            cluster_id = agent_rows.find_cluster_id(tx)
        more = site.look(home, cluster_id)
    return {
        "kills": how,
        "jobs": len(asked.submitted),
        "changes": asked.changes,
        "agents": agents,
        "seconds": round(killed_s),
        **more,
    }


def end_remaining(home: Path) -> None:
    for start in filter(is_alive, read_starts(home)):
        with suppress(ProcessLookupError):
            os.kill(start.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ray", default="", help="a Python with Ray, in place of the small one")
    parsed = parser.parse_args()

    def run(folder: Path) -> dict[str, object]:
        with open_any_ray(parsed.ray) as ray:
            return run_story(f"sqlite:///{folder / 'store.db'}", parsed.kills, parsed.seed, folder, ray)

    print_summary(run, f"seed {parsed.seed}")


if __name__ == "__main__":
    main()
