"""Measure how long list and describe take with many jobs in the store, at a steady rate of requests.

``python benchmarks/api_load.py --jobs 10000 --rate 50 --seconds 20`` starts the API in a process of its own,
over a real socket, and sends requests from this one. Each request is sent when it is due, even if the one
before has no answer yet, and timed from then on, so a server that falls behind shows it. Half of the requests
list 100 jobs, half describe one. ``--store`` takes an empty PostgreSQL database. Prints one JSON object.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import msgspec
import uvicorn
from elastane.cluster.controller.jobs.observation_record import close_job
from elastane.cluster.controller.jobs.requests import create_job
from elastane.cluster.controller.rest.app import build_application
from elastane.cluster.controller.rest.context import Controller, Rate, Settings
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store import jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.nouns.job_records import HeldWorkers, ObservedJob, State
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.plans import Plan

TEAMS = 50
IN_ONE_TRANSACTION = 1000
WARM_UP_S = 2.0


def fill_store(store: Store, count: int) -> None:
    """Store jobs of many teams, of which a third has run and ended."""
    rng = random.Random(1)
    for begin in range(0, count, IN_ONE_TRANSACTION):
        with store.begin_write() as tx:
            for number in range(begin, min(begin + IN_ONE_TRANSACTION, count)):
                spec = JobSpec(
                    name=f"job-{number}",
                    team=f"team-{number % TEAMS}",
                    script="/train.py",
                    args=("--epochs", "3", "--data", "s3://bucket/some/where"),
                    env={"OMP_NUM_THREADS": "4"},
                    elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=16),
                )
                job = jobs.insert_job(tx, create_job(spec, "ada", time.time()))
                speeds = tuple((workers, workers * 90.0) for workers in (1, 2, 4, 8))
                observed = ObservedJob(
                    seen_s=time.time(), held={"h100": HeldWorkers(workers=4)}, step=number, speeds=speeds
                )
                state: State = "finished" if rng.random() < 1 / 3 else "running"
                after = msgspec.structs.replace(job, observed=observed, step=number, state=state)
                jobs.write_job(tx, job, after if state == "running" else close_job(after, time.time()))


def open_listener() -> socket.socket:
    """Return a socket like that of `elastane.cluster.controller.server`, which another process can take."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    return listening


def serve(url: str, listening: socket.socket) -> None:
    """Serve the API on this socket, until the process is ended."""
    settings = Settings(per_token=Rate(per_s=1e6, burst=1_000_000))
    controller = Controller(
        Store(url), wake=lambda: None, plan=lambda _: Plan(), explain=lambda *_: (), settings=settings
    )
    # Longer than in the client: otherwise a request may meet a connection that has just been closed.
    config = uvicorn.Config(
        build_application(controller), log_level="warning", access_log=False, timeout_keep_alive=75
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listening])


async def send_requests(
    base: str, token: str, count: int, rate: float, seconds: float
) -> dict[str, list[float]]:
    """Return the milliseconds of each request, by kind of request; raise if one fails."""
    rng = random.Random(2)
    took: dict[str, list[float]] = {"list": [], "describe": []}
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    async with httpx.AsyncClient(
        base_url=base, headers={"Authorization": f"Bearer {token}"}, limits=limits, timeout=30
    ) as client:

        async def send_one(due_s: float, kind: str, path: str, *, counted: bool) -> None:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            (await client.get(path)).raise_for_status()
            if counted:
                took[kind].append((time.monotonic() - due_s) * 1000)

        # The socket listens before the server runs, so this request waits for the server.
        (await client.get("/v1/health")).raise_for_status()
        begin_s = time.monotonic() + 0.1
        tasks = []
        for index in range(int(rate * (WARM_UP_S + seconds))):
            kind = "list" if index % 2 else "describe"
            path = (
                f"/v1/jobs?limit=100&team=team-{rng.randrange(TEAMS)}"
                if kind == "list"
                else f"/v1/jobs/job-{rng.randrange(count)}"
            )
            counted = index >= rate * WARM_UP_S
            tasks.append(asyncio.create_task(send_one(begin_s + index / rate, kind, path, counted=counted)))
        await asyncio.gather(*tasks)
    return took


def summarize(milliseconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {
        "requests": len(milliseconds),
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(milliseconds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--store", default="", help="URL of an empty database; by default SQLite in a new folder"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.store or f"sqlite:///{Path(folder) / 'store.db'}"
        store = Store(url)
        fill_store(store, options.jobs)
        with store.begin_write() as tx:
            token = make_first_token(tx, "benchmark", time.time())
        if token is None:
            parser.error("the store is not empty")
        begin_s = time.monotonic()
        with store.begin_read() as tx:
            alive = len(take_cluster_snapshot(tx, time.time()).snapshot.jobs)
        snapshot_s = time.monotonic() - begin_s
        store.close()
        listening = open_listener()
        server = multiprocessing.get_context("spawn").Process(
            target=serve, args=(url, listening), daemon=True
        )
        server.start()
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        before = os.getloadavg()[0]
        took = asyncio.run(send_requests(base, token, options.jobs, options.rate, options.seconds))
        server.terminate()
        server.join()
    print(
        json.dumps(
            {
                "jobs": options.jobs,
                "rate_per_s": options.rate,
                "snapshot_s": round(snapshot_s, 3),
                "jobs_in_snapshot": alive,
                "load_before": before,
                "cores": os.cpu_count(),
                **{kind: summarize(some) for kind, some in took.items()},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
