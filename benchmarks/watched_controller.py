"""Compare a controller with many open pages of its dashboard with one that has none, in turns.

``python benchmarks/watched_controller.py --jobs 10000 --running 1000 --watchers 100 --rounds 6`` fills a
store, simulates the agents of the running jobs, and starts the real controller (see ``controller_scale.py``).
Then rounds alternate: without a dashboard, and with open pages of one. In each round jobs are
submitted and cancelled, which makes plans, and 20 requests a second are timed. The first two rounds do not
count.

Prints one JSON object: of both kinds of rounds the median and p99 of a request, the mean duration of a plan
(from the controller's own histogram) and its cores, and the ratio of each round with pages to the one before
it, all as ``median (lowest to highest)``. The target of the ratios is 1.1.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from elastane.cluster.nouns.dashboard import DashboardSettings

from api_load import summarize
from controller_scale import (
    PLAN_S,
    Cores,
    fill_store,
    is_planned,
    raise_file_limit,
    run_agents,
    start_controller,
    submit_and_cancel,
    wait_until,
)
from page_watchers import Watchers, sign_in, start_dashboard
from spread import format_spread

PATHS = ("/", "/jobs", "/jobs?state=queued", "/jobs?q=job-1&sort=next", "/jobs/job-17")
EACH_S = 0.05
DISCARDED = 2
MEASURES = ("p50_ms", "p99_ms", "plan_s", "cores")


def main() -> None:
    options = parse_options()
    raise_file_limit()
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
        load = os.getloadavg()[0]
        with start_controller(settings, home / "controller.log") as (pid, ready):
            wait_until(lambda: is_planned(store, f"job-{options.jobs - 1}"), PLAN_S, "the first plan")
            rounds = [
                measure_round(ready, pid, options.watchers if number % 2 else 0, options.seconds)
                for number in range(DISCARDED + 2 * options.rounds)
            ][DISCARDED:]
        store.close()
        agents.terminate()
        agents.join()
    alone, watched = rounds[::2], rounds[1::2]
    found = {
        "jobs": options.jobs,
        "running": options.running,
        "watchers": options.watchers,
        "cores": os.cpu_count(),
        "load_before": load,
        "alone": {name: format_spread([one[name] for one in alone], digits=3) for name in MEASURES},
        "watched": {name: format_spread([one[name] for one in watched], digits=3) for name in MEASURES},
        "watched_over_alone": {
            name: format_spread(
                [after[name] / before[name] for before, after in zip(alone, watched, strict=True)]
            )
            for name in MEASURES
        },
        "rounds": rounds,
    }
    print(json.dumps(found, indent=1))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=1_000)
    parser.add_argument("--watchers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=6, help="of each kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="the duration of a round")
    return parser.parse_args()


def measure_round(ready: ControllerReady, pid: int, watchers: int, seconds: float) -> dict[str, float]:
    """Return the figures of one round, with this many open pages."""
    with ExitStack() as stack:
        if watchers:
            # A dashboard of its own: one that has had pages goes on asking for two minutes.
            dashboard = stack.enter_context(start_dashboard(DashboardSettings(cluster_url=ready.url)))
            cookies = sign_in(dashboard, ready.token)
            stack.enter_context(Watchers(dashboard, cookies, PATHS, watchers))
            wait_for_jobs(dashboard.url, cookies)
        changing = multiprocessing.get_context("spawn").Process(
            target=submit_and_cancel, args=(ready.url, ready.token, seconds + 5, 1.0), daemon=True
        )
        changing.start()
        time.sleep(2)  # until it has begun
        before, cores = read_plans(ready), Cores(pid)
        took = measure_requests(ready, seconds)
        (plans, took_s), used = read_plans(ready), cores.read()
        changing.join()
    count = plans - before[0]
    summary = summarize(took)
    return {
        "pages": watchers,
        "p50_ms": summary["p50_ms"],
        "p99_ms": summary["p99_ms"],
        "plans": count,
        "plan_s": (took_s - before[1]) / count if count else float("nan"),
        "cores": used,
    }


def wait_for_jobs(url: str, cookies: dict[str, str]) -> None:
    with httpx.Client(base_url=url, cookies=cookies, timeout=60) as client:
        wait_until(lambda: "Reading the jobs" not in client.get("/jobs").text, PLAN_S, "all jobs are read")


def measure_requests(ready: ControllerReady, seconds: float) -> list[float]:
    """Return the milliseconds of requests for one job, 20 of them each second."""
    took = []
    with Cluster(ready.url, ready.token) as cluster:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            cluster.jobs.get("job-17")
            took.append(1000 * (time.monotonic() - began_s))
            time.sleep(max(0.0, EACH_S - (time.monotonic() - began_s)))
    return took


def read_plans(ready: ControllerReady) -> tuple[float, float]:
    """Return the number of plans since the controller started, and their seconds together."""
    answer = httpx.get(
        f"{ready.url}/metrics?jobs=false", headers={"Authorization": f"Bearer {ready.token}"}, timeout=60
    )
    answer.raise_for_status()
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if line[:1] not in {"", "#"})
    return (
        float(values["elastane_plan_time_seconds_count"]),
        float(values["elastane_plan_time_seconds_sum"]),
    )


if __name__ == "__main__":
    main()
