"""MLflow over HTTP: a server that loses any answer has each point once in the end."""

import os
import threading

import pytest

from elastane.run.trackers import feeding
from elastane.run.trackers.feeding import Feed, Subject
from elastane.run.trackers.mlflow_store import MLflowStore

from .conftest import collect, make_line
from .mlflow_server import serve_mlflow

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 6


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in os.environ:
        if name.startswith("MLFLOW_"):
            monkeypatch.delenv(name)
    for name in ("POLL_S", "FIRST_RETRY_S", "LONGEST_RETRY_S"):
        monkeypatch.setattr(feeding, name, 0.001)


@pytest.fixture
def feed(recorded, monkeypatch):
    """Return a function that feeds a server to the end of the run, and returns the lines for the user."""
    recorded.add(*map(make_line, range(1, STEPS + 1)))

    def run(address):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        said, ending = [], threading.Event()
        ending.set()
        subject = Subject(lambda: recorded.tracked, recorded.open_source, lambda: "finished")
        Feed("mlflow", MLflowStore(), subject, ending, said.append).run()
        return said

    return run


def list_points(kept):
    """Return the points of the only run, by name, in the order of their arrival."""
    [run] = kept.runs.values()
    found = {}
    for point in run["points"]:
        found.setdefault(point["key"], []).append((int(point["step"]), point["value"]))
    return found


def test_a_server_has_each_point_once_whichever_answer_is_lost(recorded, feed):
    expected = collect(recorded.open_source().read())
    with serve_mlflow() as (address, kept):
        feed(address)
        count = len(kept.requests)
        assert list_points(kept) == expected
    assert count > 6
    for lost in range(count):
        with serve_mlflow() as (address, kept):
            kept.lose = {lost}
            said = feed(address)
            assert list_points(kept) == expected, f"{kept.requests[lost]} was lost"
            [run] = kept.runs.values()
            assert run["info"][0]["status"] == "FINISHED"
            assert sorted(one["key"] for one in run["params"]) == ["script", "seed"]
        assert any("mlflow fails" in line for line in said)


def test_the_user_gets_the_address_of_the_run_without_its_password(feed):
    with serve_mlflow() as (address, _):
        [line] = feed(address.replace("//", "//ada:secret@"))
    assert line == f"mlflow: {address}/#/experiments/7/runs/run0"
