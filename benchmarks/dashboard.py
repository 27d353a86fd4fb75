"""Measure the dashboard before a controller with many jobs, in a real browser.

``python benchmarks/dashboard.py --jobs 10000 --watchers 100`` fills a store, starts the API and the dashboard
in processes of their own, and opens pages in headless Chromium (Debian's package ``chromium``). It prints one
JSON object: the first paint of the first page and of a filtered list, requests and bytes, the time from a
change to the page and to each of many other open pages, memory and CPU time of the dashboard with many open
pages, and requests to the controller meanwhile. The other pages are streams without a browser.
``watched_controller.py`` compares a controller with and without open pages, with the loop of its scheduler.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.nouns.dashboard import DashboardReady, DashboardSettings
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from playwright.sync_api import Page, sync_playwright

from api_load import fill_store, open_listener, serve
from page_watchers import Watchers, sign_in, start_dashboard
from processes import read_cpu_s

WAIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--watchers", type=int, default=100)
    parser.add_argument("--tries", type=int, default=10, help="of each measurement")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which the open pages are measured")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_cluster(Path(folder), options.jobs) as (url, token),
        start_dashboard(DashboardSettings(cluster_url=url)) as ready,
    ):
        found = {"jobs": options.jobs, "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        found |= measure_pages(ready, url, token, options.tries, options.watchers)
        found |= measure_watchers(ready, url, token, options.watchers, options.seconds)
    print(json.dumps(found, indent=1))


@contextlib.contextmanager
def serve_cluster(folder: Path, jobs: int) -> Iterator[tuple[str, str]]:
    """Serve the API of a store with jobs, and yield its address and an operator's token."""
    store_url = f"sqlite:///{folder / 'store.db'}"
    store = Store(store_url)
    fill_store(store, jobs)
    with store.begin_write() as tx:
        token = make_first_token(tx, "benchmark", time.time())
    store.close()
    assert token is not None
    listening = open_listener()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(store_url, listening), daemon=True
    )
    server.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", token
    server.terminate()
    server.join()


def measure_pages(
    ready: DashboardReady, cluster_url: str, token: str, tries: int, watchers: int
) -> dict[str, Any]:
    """Return the times of pages in a browser, in milliseconds; of changes also those of other open pages."""
    program = shutil.which("chromium")
    assert program, "apt-get install chromium"
    with sync_playwright() as playwright, Cluster(cluster_url, token) as cluster:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1366, "height": 860}).new_page()
        page.set_default_timeout(1000 * WAIT_S)
        page.goto(f"{ready.url}/sign-in")
        page.fill("#token", token)
        began_s = time.monotonic()
        page.click("button[type=submit]")
        page.wait_for_url(f"{ready.url}/")
        page.get_by_text("Reading the jobs").wait_for(state="detached")
        all_jobs_s = time.monotonic() - began_s
        weight = weigh(page, f"{ready.url}/")
        first = [measure_paint(page, f"{ready.url}/") for _ in range(tries)]
        filtered = [measure_paint(page, f"{ready.url}/jobs?q=job-1&state=running") for _ in range(tries)]
        with Watchers(ready, sign_in(ready, token), ("/jobs?q=fresh",), watchers) as others:
            changes = [measure_change(page, ready, cluster, number, others) for number in range(tries)]
        browser.close()
    return {
        "all_jobs_read_after_sign_in_s": round(all_jobs_s, 2),
        **weight,
        "first_paint_ms": summarize(first),
        "filtered_paint_ms": summarize(filtered),
        "change_to_page_ms": summarize([browser_ms for browser_ms, _ in changes]),
        "change_to_each_open_page_ms": summarize([ms for _, each in changes for ms in each]),
        "open_pages_at_a_change": watchers,
    }


def weigh(page: Page, url: str) -> dict[str, Any]:
    """Return the number of requests and bytes of a page with an empty cache."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    requests: list[str] = []
    sizes: list[float] = []
    session.on("Network.requestWillBeSent", lambda event: requests.append(event["request"]["url"]))
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(url, wait_until="load")
    page.wait_for_timeout(1000)
    session.detach()
    foreign = [address for address in requests if not address.startswith(url)]
    return {"requests": len(requests), "bytes": int(sum(sizes)), "requests_elsewhere": len(foreign)}


def measure_paint(page: Page, url: str) -> float:
    """Return the milliseconds from the request for a page to its first content on the screen."""
    page.goto(url, wait_until="load")
    entries = "performance.getEntriesByName('first-contentful-paint')"
    while not page.evaluate(f"{entries}.length"):
        page.wait_for_timeout(20)
    painted: float = page.evaluate(f"{entries}[0].startTime")
    return painted


def measure_change(
    page: Page, ready: DashboardReady, cluster: Cluster, number: int, others: Watchers
) -> tuple[float, list[float]]:
    """Return the milliseconds from the event of a new job to its row, on the page and on each other page."""
    page.goto(f"{ready.url}/jobs?q=fresh", wait_until="load")
    page.wait_for_timeout(500)
    name = f"fresh-{number}"
    page.evaluate(
        f"() => {{ window.seen = new Promise((found) => new MutationObserver(() => "
        f"document.body.textContent.includes('{name}') && found(Date.now()))"
        f".observe(document.body, {{childList: true, subtree: true}})); }}"
    )
    others.expect(name)
    policy = ElasticPolicy(min_replicas=1, max_replicas=4)
    cluster.jobs.submit(JobSpec(name=name, team="team-0", script="/train.py", elastic_policy=policy))
    began_ms = 1000 * next(iter(cluster.jobs.events(name))).time_s
    seen_ms: float = page.evaluate("window.seen")
    return seen_ms - began_ms, [1000 * at_s - began_ms for at_s in others.wait_for_text()]


def measure_watchers(
    ready: DashboardReady, cluster_url: str, token: str, watchers: int, seconds: float
) -> dict[str, Any]:
    """Return what open pages cost the dashboard, and the requests of the controller meanwhile."""
    alone = measure_requests(cluster_url, token, seconds)
    before_bytes = read_memory(ready.pid)
    paths = ("/", "/jobs", *(f"/jobs?page={number}" for number in range(1, 30)))
    with Watchers(ready, sign_in(ready, token), paths, watchers):
        began_cpu_s, began_s = read_cpu_s(ready.pid), time.monotonic()
        watched = measure_requests(cluster_url, token, seconds)
        used = (read_cpu_s(ready.pid) - began_cpu_s) / (time.monotonic() - began_s)
    return {
        "watchers": watchers,
        "dashboard_mb": round(read_memory(ready.pid) / 1e6),
        "dashboard_mb_before": round(before_bytes / 1e6),
        "dashboard_cores": round(used, 3),
        "controller_request_ms_alone": alone,
        "controller_request_ms_watched": watched,
    }


def measure_requests(cluster_url: str, token: str, seconds: float) -> dict[str, float]:
    """Return the time of requests to the controller, 20 of them each second."""
    took = []
    with Cluster(cluster_url, token) as cluster:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            cluster.jobs.get("job-17")
            took.append(1000 * (time.monotonic() - began_s))
            time.sleep(max(0.0, 0.05 - (time.monotonic() - began_s)))
    return summarize(took)


def summarize(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {
        "p50": round(cuts[49], 1),
        "p99": round(cuts[98], 1),
        "least": round(min(values), 1),
        "most": round(max(values), 1),
    }


def read_memory(pid: int) -> int:
    """Return the memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
