"""A real Prometheus scrapes a real cluster with the configuration in deploy/."""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.run.processes.skipping import skip_except_in_ci
from tests.waiting import WAIT_S, wait_until
from tools import write_grafana

from .small_cluster import open_cluster, read_json, submit_training

pytestmark = [pytest.mark.processes, pytest.mark.early]

DEPLOYED = Path(__file__).parents[3] / "deploy" / "prometheus"


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch) -> Iterator[Callable]:
    with open_cluster(stage, tmp_path, monkeypatch) as run:
        yield run


class Prometheus:
    """A Prometheus server on loopback.

    Args:
        root: directory with its configuration and its data.
    """

    def __init__(self, root: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}/api/v1"
        options = {
            "config.file": root / "prometheus.yml",
            "storage.tsdb.path": root / "data",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        with (root / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", *(f"--{name}={value}" for name, value in options.items())],
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **parameters: str):
        """Return the data of an answer; None while it does not answer."""
        try:
            answer = httpx.get(f"{self._url}/{path}", params=parameters)
        except httpx.TransportError:
            answer = None
        if answer is None or answer.status_code != 200:
            assert self.process.poll() is None, "Prometheus has ended"
            return None
        return answer.json()["data"]

    def find(self, query: str):
        """Return the labels and the value of each series of a query."""
        found = self.ask("query", query=query)
        return [(one["metric"], float(one["value"][1])) for one in found["result"]] if found else []

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)


@pytest.fixture
def start_prometheus(tmp_path):
    if shutil.which("prometheus") is None:
        skip_except_in_ci("Prometheus is not installed (package prometheus)")
    started = []

    def start(address: str, token: str) -> Prometheus:
        root = tmp_path / "prometheus"
        root.mkdir()
        config = (DEPLOYED / "prometheus.yml").read_text()
        assert config.count("127.0.0.1:7425") == 2
        config = config.replace("127.0.0.1:7425", address).replace("15s", "5s")
        (root / "prometheus.yml").write_text(config)
        shutil.copy(DEPLOYED / "alerts.yml", root)
        (root / "elastane.token").write_text(token)
        started.append(Prometheus(root))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_prometheus_scrapes_the_controller_and_finds_the_runs_of_its_jobs(
    run_elastane, start_prometheus, tmp_path
):
    token = read_json(run_elastane, "token", "create", "--user", "prometheus", "--role", "scraper")["secret"]
    context = json.loads((tmp_path / "elsewhere" / "cluster.json").read_text())
    submit_training(run_elastane, "watched", "--workers", "2:2", args=("--seconds=0.02", "--steps=100000"))
    prometheus = start_prometheus(context["url"].removeprefix("http://"), token)

    def find(query: str, what: str):
        return wait_until(
            lambda: prometheus.find(query),
            what,
            state=lambda: (
                prometheus.ask("targets"),
                (tmp_path / "prometheus" / "prometheus.log").read_text(),
            ),
        )

    ((labels, _),) = find("elastane_job_step > 0", "a step of the job is scraped from the controller")
    assert (labels["job"], labels["job_name"], labels["team"]) == ("elastane", "watched", "default")
    ((labels, workers),) = find('elastane_run_workers{state="member"} == 2', "both workers are scraped")
    assert (labels["job"], labels["job_name"], workers) == ("elastane-runs", "watched", 2)
    find("rate(elastane_run_steps_total[1m]) > 0", "the run makes steps between two scrapes")
    ((labels, _),) = find('elastane_job_events_total{event="submitted"} == 1', "the submission is counted")
    find('count(up{job=~"elastane.*"} == 1) == 2', "both pages are scraped without an error")
    groups = prometheus.ask("rules")["groups"]
    assert [group["name"] for group in groups] == ["elastane"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    check_panels(prometheus)
    check_pages(context["url"], token)
    run_elastane("cancel", "watched", "--wait")


def check_panels(prometheus: Prometheus) -> None:
    """Run the query of each panel of the dashboard for Grafana, with an interval as Grafana chooses it."""
    queries = {query for row in write_grafana.ROWS.values() for _, _, panel in row for query, _ in panel}
    answers = {
        query: prometheus.ask("query", query=query.replace("$__rate_interval", "1m")) for query in queries
    }
    assert len(queries) > 15
    assert [query for query, answer in answers.items() if answer is None] == []
    # What this small cluster has, the panels show.
    with_series = {query for query, answer in answers.items() if answer["result"]}
    assert {write_grafana.USED_SHARE, "sum by (state) (elastane_jobs)", "elastane_job_workers"} <= with_series


def check_pages(url: str, token: str) -> None:
    """Let Prometheus' own tool look for mistakes in the pages."""
    for path in ("/metrics", "/v1/jobs/watched/metrics"):
        answer = httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        checked = subprocess.run(
            ["promtool", "check", "metrics", "--extended"],
            input=answer.content,
            capture_output=True,
            check=False,
        )
        assert checked.returncode == 0, (checked.stdout + checked.stderr).decode()
