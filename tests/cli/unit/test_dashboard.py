"""``elastane dashboard``, and the dashboard of ``elastane up``, in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cluster.client.context import find_dashboard_url, read_running
from elastane.common.process_identity import read_start_time
from tests.cluster.dashboard.run_records import write_run
from tests.waiting import WAIT_S, wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def ready(home: Path):
    done = CliRunner().invoke(app, ["up", "-d", "--dashboard", "--json", "--listen=127.0.0.1:0"])
    assert done.exit_code == 0, done.stderr
    yield json.loads(done.stdout)
    if read_running() is not None:
        CliRunner().invoke(app, ["down"])


def test_a_dashboard_beside_the_controller_is_found_and_ends_with_it(ready):
    answer = httpx.get(ready["url"])
    assert (answer.status_code, answer.headers["Location"]) == (303, ready["dashboard"])
    with httpx.Client(base_url=ready["dashboard"], follow_redirects=True, timeout=WAIT_S) as browser:
        page = browser.post("/sign-in", data={"token": ready["token"]})
        assert "Utilisation" in page.text or "Reading the jobs" in page.text
    assert find_dashboard_url(ready["url"]) == ready["dashboard"]
    os.kill(ready["pid"], signal.SIGKILL)
    wait_until(lambda: not find_dashboard_url(ready["url"]), "the dashboard has ended too")


def test_a_run_without_a_controller_has_a_page_for_the_one_that_has_its_key(home, tmp_path):
    write_run(tmp_path / "train")
    words = ("dashboard", str(tmp_path / "train"), "--json", "--listen=127.0.0.1:0")
    with (
        subprocess.Popen(
            (sys.executable, "-m", "elastane", *words), stdout=subprocess.PIPE, text=True
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        found = json.loads(process.stdout.readline())
        with httpx.Client(base_url=found["url"], follow_redirects=True, timeout=WAIT_S) as browser:
            assert "elastane dashboard" in browser.get("/").text
            assert browser.get("/sign-in?key=wrong").status_code == 403
            page = browser.get(f"/sign-in?key={found['key']}")
            assert 'id="chart"' in page.text
            assert "killed" in page.text
            assert browser.get("/jobs").status_code == 404
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    assert read_start_time(found["pid"]) is None


def test_without_a_dashboard_the_api_says_how_to_start_one(home):
    done = CliRunner().invoke(app, ["up", "-d", "--json", "--listen=127.0.0.1:0"])
    url = json.loads(done.stdout)["url"]
    try:
        answer = httpx.get(url)
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert "elastane dashboard" in answer.text
    finally:
        CliRunner().invoke(app, ["down"])


def test_an_address_that_others_reach_needs_a_certificate(home, tmp_path):
    write_run(tmp_path / "train")
    done = CliRunner().invoke(app, ["dashboard", str(tmp_path / "train"), "--listen=0.0.0.0:0"])
    assert done.exit_code == 2
    assert "there is no certificate" in done.stderr
