"""Compare the steps of a run that is scraped and watched with its steps while it is not, in turns.

``python benchmarks/watched_step.py --size 10m --turns 12`` trains one job with one worker, so that the other
core of a small machine is free for what looks at the run. Turns alternate within the run: nothing looks at
it; or ten pages of a dashboard show it (`elastane dashboard RUN`), and its metrics are scraped every second.

Prints one JSON object: the median step of both kinds of turns in seconds, the ratio of each watched turn to
the one before it, and, as the measure of chance, the ratio of each turn to the next one of the same kind.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
from elastane.cluster.nouns.dashboard import DashboardReady, DashboardSettings
from elastane.run.connections.coordinator_request import read_address
from elastane.run.connections.endpoint import build_bearer_header

import ticks
from elastane_run import ElastaneRun
from job import Job
from page_watchers import Watchers, sign_in, start_dashboard
from spread import format_spread

VIRTUAL_RANKS = 4
SETTLED_S = 3.0
PAGES = 10
SCRAPE_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="10m", help="a key of workload.SIZES")
    parser.add_argument("--turns", type=int, default=12, help="of each kind")
    parser.add_argument("--seconds", type=float, default=15.0, help="the duration of a turn")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options.size, 10**6, VIRTUAL_RANKS, Path(folder) / "ticks")
        with (
            ElastaneRun(job, Path(folder), start=1, most=1) as run,
            start_dashboard(DashboardSettings(run_dir=str(run.run_dir.root))) as dashboard,
        ):
            run.wait_for_members(1)
            turns = [
                measure_turn(run, dashboard if number % 2 else None, options.seconds)
                for number in range(2 + 2 * options.turns)
            ][2:]
    alone, watched = turns[::2], turns[1::2]
    found = {
        "size": options.size,
        "cores": os.cpu_count(),
        "load_before": load,
        "alone_s": format_spread(alone, digits=4),
        "watched_s": format_spread(watched, digits=4),
        "watched_over_alone": format_ratios(zip(alone, watched, strict=True)),
        "chance": format_ratios([*pairwise(alone), *pairwise(watched)]),
    }
    print(json.dumps(found, indent=1))


def format_ratios(pairs: Iterable[tuple[float, float]]) -> str:
    return format_spread([after / before for before, after in pairs], digits=3)


def measure_turn(run: ElastaneRun, dashboard: DashboardReady | None, seconds: float) -> float:
    """Return the median step of a turn in seconds; with a dashboard the run is watched and scraped."""
    with ExitStack() as stack:
        if dashboard is not None:
            stack.enter_context(Watchers(dashboard, sign_in(dashboard, ""), ("/",), PAGES))
            scraper = Scraper(run)
            stack.callback(scraper.end)
        # What opens the pages is over by then. The times of steps are read only afterwards.
        begin_s = time.monotonic() + SETTLED_S
        time.sleep(SETTLED_S + seconds)
        end_s = time.monotonic()
    seen = [tick for tick in run.read_ticks() if begin_s <= tick.at_s <= end_s]
    return median(ticks.compute_durations_s(seen).values())


class Scraper:
    """Scrapes the metrics of a run every second, in a thread."""

    def __init__(self, run: ElastaneRun) -> None:
        endpoint, secret = read_address(run.run_dir)
        self._url = f"http://{endpoint.host}:{endpoint.port}/metrics"
        self._headers = build_bearer_header(secret)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._scrape)
        self._thread.start()

    def _scrape(self) -> None:
        with httpx.Client(headers=self._headers, timeout=10) as client:
            while not self._ending.wait(SCRAPE_S):
                client.get(self._url).raise_for_status()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


if __name__ == "__main__":
    main()
