"""A dashboard before an API over a real socket, and browsers that are signed in."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import msgspec
import pytest
import uvicorn

from elastane.cluster.dashboard.app import build_dashboard
from elastane.cluster.dashboard.sessions import Sessions
from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.cluster.nouns.job_records import ObservedJob
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.connections.http_listener import open_http_listener
from tests.cluster.controller import job_rows
from tests.cluster.controller.conftest import (  # noqa: F401 - fixtures
    Api,
    api,
    make_spec,
    migrated_file,
    served,
    sqlite_store,
)
from tests.run.processes.skipping import skip_except_in_ci
from tests.waiting import WAIT_S, wait_until


@contextmanager
def serve_dashboard(settings: DashboardSettings, key: str = "") -> Iterator[tuple[str, Sessions]]:
    """Serve a dashboard on a free port of loopback, and yield its address and its sessions."""
    listener = open_http_listener("127.0.0.1", 0, certificate="", key="")
    port = listener.getsockname()[1]
    app = build_dashboard(settings, port=port, key=key)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    wait_until(lambda: server.started, "the dashboard listens")
    try:
        yield f"http://127.0.0.1:{port}", app.state.sessions
    finally:
        app.state.closing.set()
        app.state.feeds.close()
        server.should_exit = True
        thread.join()
        listener.close()


@dataclass
class Site:
    """A controller and its dashboard.

    Args:
        api: the API, without a network.
        api_url: of the controller.
        url: of the dashboard.
        sessions: of the dashboard.
    """

    api: Api
    api_url: str
    url: str
    sessions: Sessions
    clients: list[httpx.Client] = field(default_factory=list)

    def open(self) -> httpx.Client:
        """Return a browser without a session; it follows redirects."""
        client = httpx.Client(base_url=self.url, follow_redirects=True, timeout=WAIT_S)
        self.clients.append(client)
        return client

    def ask(self, role: str = "submitter", team: str = "vision", user: str = "ada") -> httpx.Client:
        """Return a client of the API with a new token; unlike `Api`, it can be used beside a browser."""
        token = self.api.token(role, team, user)
        client = httpx.Client(
            base_url=f"{self.api_url}/v1", headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_S
        )
        self.clients.append(client)
        return client

    def submit(self, *specs: JobSpec) -> None:
        """Submit jobs of ada."""
        ada = self.ask()
        for spec in specs:
            answer = ada.post("/jobs", content=msgspec.json.encode(spec))
            assert answer.status_code == 201, answer.text

    def read(self, job: str) -> dict:
        """Return the record of a job of team vision."""
        return self.ask("viewer", user="probe").get(f"/jobs/{job}").json()

    def sign_in(self, role: str = "submitter", team: str = "vision", user: str = "ada") -> httpx.Client:
        client = self.open()
        answer = client.post("/sign-in", data={"token": self.api.token(role, team, user)})
        assert answer.status_code == 200, answer.text
        return client

    def observe(self, name: str, **fields: object) -> None:
        """Store what an engine has seen of a job."""
        with self.api.store.begin_write() as tx:
            job_rows.observe(tx, name, self.api.clock(), **{"observed": ObservedJob(), **fields})


@pytest.fixture
def site(api, served) -> Iterator[Site]:  # noqa: F811
    with served(api) as url, serve_dashboard(DashboardSettings(cluster_url=url)) as dashboard:
        found = Site(api, url, *dashboard)
        yield found
        for client in found.clients:
            client.close()
        # The streams of the feeds end with those of the controller.
        api.app.state.closing.set()
    wait_for_feeds()


def wait_for_feeds() -> None:
    wait_until(
        lambda: not any(thread.name.startswith("feed-") for thread in threading.enumerate()),
        "the feeds have closed their connections",
    )


@pytest.fixture
def chromium():
    """A real browser; Debian's package brings it. While it runs, no test of this process can run a loop."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        skip_except_in_ci("there is no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # The sandbox needs namespaces, which a container may not have; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
