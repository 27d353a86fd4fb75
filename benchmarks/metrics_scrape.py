"""Measure a scrape of the controller's metrics with many jobs in the store.

``python benchmarks/metrics_scrape.py --jobs 10000 --scrapes 30`` fills a store with jobs of 50 teams. A fifth
of them runs, and the others wait. It starts the API in a process of its own, and scrapes it over a real
socket. Between two scrapes it stores events, as a busy cluster does. Prints one JSON object: the duration of
a scrape as ``median (lowest to highest)``, the processor time of the server for one, its size, and the number
of its series. The target is 0.2 s and 5,000 series.
"""

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
import msgspec
from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.jobs.requests import create_job
from elastane.cluster.controller.store import documents, history, jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.nouns.config import Config, Quota, Team
from elastane.cluster.nouns.job_records import Grant, HeldWorkers, ObservedJob
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.usage import Use
from sqlalchemy import Connection

from api_load import serve
from processes import read_cpu_s
from spread import format_spread

TEAMS, POOLS = 50, 20
IN_ONE_TRANSACTION = 1000
EVENTS_BETWEEN = 200
LARGEST_S, MOST_SERIES = 0.2, 5000


def fill_store(store: Store, count: int) -> None:
    """Store a configuration with many teams and pools, and jobs of which a fifth runs."""
    pools = tuple(Pool(name=f"pool-{n}", device="h100", devices=1000) for n in range(POOLS))
    teams = tuple(
        Team(name=f"team-{n}", quotas=tuple(Quota(pool=pool.name, nominal_quota=8) for pool in pools))
        for n in range(TEAMS)
    )
    with store.begin_write() as tx:
        documents.write_documents(tx, diff_configs(Config(), Config(pools=pools, teams=teams)), time.time())
    for begin in range(0, count, IN_ONE_TRANSACTION):
        with store.begin_write() as tx:
            for number in range(begin, min(begin + IN_ONE_TRANSACTION, count)):
                store_job(tx, number)


def store_job(tx: Connection, number: int) -> None:
    """Store a job, with events that a scrape counts."""
    now_s = time.time()
    spec = JobSpec(
        name=f"job-{number}",
        team=f"team-{number % TEAMS}",
        script="/train.py",
        args=("--epochs", "3", "--data", "s3://bucket/some/where"),
        elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=16),
    )
    job = jobs.insert_job(tx, create_job(spec, "ada", now_s))
    history.append_event(tx, "job.submitted", "submitted", now_s, team=job.team, job=job.name)
    if number % 5:
        return
    pool = f"pool-{number // 5 % POOLS}"
    after = msgspec.structs.replace(
        job,
        state="running",
        grant=Grant(workers={pool: 4}),
        workers=4,
        started_s=now_s,
        observed=ObservedJob(
            seen_s=now_s,
            held={pool: HeldWorkers(workers=4)},
            step=number,
            speeds=((2, 180.0), (4, 350.0)),
            unsaved_s=60.0,
        ),
        uses=(Use(pool=pool, terms="owned", devices=4, price=2.0),),
        using_since_s=now_s,
    )
    jobs.write_job(tx, job, after)
    history.append_event(tx, "job.started", "started", now_s, team=job.team, job=job.name)


def store_news(store: Store, count: int) -> None:
    """Store as many events as a busy cluster has between two scrapes."""
    with store.begin_write() as tx:
        for number in range(count):
            history.append_event(
                tx, "job.grown", "grown", time.time(), team=f"team-{number % TEAMS}", job=f"job-{number * 5}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--scrapes", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        store = Store(url)
        fill_store(store, options.jobs)
        with store.begin_write() as tx:
            token = make_first_token(tx, "benchmark", time.time())
        with socket.create_server(("127.0.0.1", 0)) as listening:
            process = multiprocessing.get_context("fork").Process(target=serve, args=(url, listening))
            process.start()
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            try:
                found = {
                    name: measure_scrapes(
                        store, f"{address}/metrics{query}", token or "", options.scrapes, process.pid or 0
                    )
                    for name, query in (("with_jobs", ""), ("without_jobs", "?jobs=false"))
                }
            finally:
                process.terminate()
                process.join()
        store.close()
    print(json.dumps({"jobs": options.jobs, "cores": os.cpu_count(), **found}, indent=1))


def measure_scrapes(store: Store, url: str, token: str, count: int, pid: int) -> dict[str, object]:
    """Return the durations, the processor time and the sizes of scrapes, after one that does not count.

    Args:
        pid: of the server, which does nothing else.
    """
    took_s, page, cpu_s = [], "", 0.0
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        for number in range(count + 1):
            store_news(store, EVENTS_BETWEEN)
            begin_s, cpu_begin_s = time.perf_counter(), read_cpu_s(pid)
            answer = client.get(url)
            if number:
                took_s.append(time.perf_counter() - begin_s)
                cpu_s += read_cpu_s(pid) - cpu_begin_s
            answer.raise_for_status()
            page = answer.text
    series = sum(bool(line) and not line.startswith("#") for line in page.splitlines())
    return {
        "seconds": format_spread(took_s, digits=3),
        "cpu_s": round(cpu_s / count, 3),
        "series": series,
        "kib": round(len(page) / 1024),
        "reaches_target": median(took_s) <= LARGEST_S and series <= MOST_SERIES,
    }


if __name__ == "__main__":
    main()
