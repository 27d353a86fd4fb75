"""The store after a kill of its writer, and on a full disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastane.cluster.controller.store import history, jobs
from elastane.cluster.controller.store.database import Store, read_change
from elastane.cluster.controller.store.failures import StoreFull
from tests.cluster.controller import job_rows

NOW_S = 1_800_000_000.0
ROUNDS = 30
SIZE = 4 << 20


def test_a_store_with_a_killed_writer_has_all_committed_changes_and_no_partial_one(store_url):
    seed = int.from_bytes(os.urandom(4), "little")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.cluster.controller.store_kills", store_url, str(ROUNDS), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=Path(__file__).parents[3],
    )
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr}"


@pytest.fixture
def small_disk(make_small_disk):
    return make_small_disk(SIZE)


def test_a_full_disk_refuses_changes_and_loses_no_committed_one(small_disk, make_spec, api_over):
    store = Store(f"sqlite:///{small_disk}/store.db")
    api = api_over(store)
    ada = api.user()
    (small_disk / "ballast").write_bytes(bytes(1 << 20))
    written = 0

    def write_until_refused():
        nonlocal written
        while True:
            with store.begin_write() as tx:
                job_rows.submit(tx, make_spec(f"job-{written}", env={"BALLAST": "x" * 20_000}), "ada", NOW_S)
                history.append_event(tx, "job.submitted", "x" * 20_000, NOW_S)
            written += 1

    with pytest.raises(StoreFull, match="disk under the store"):
        write_until_refused()
    refused = ada.post("/jobs", make_spec("one-more", env={"BALLAST": "x" * 100_000}))
    assert refused.status_code == 507
    assert "free some space" in refused.json()["do"]
    assert ada.get("/jobs?limit=1").status_code == 200
    (small_disk / "ballast").unlink()
    assert ada.post("/jobs", make_spec("one-more")).status_code == 201
    store.close()
    again = Store(f"sqlite:///{small_disk}/store.db")
    with again.begin_read() as tx:
        assert len(jobs.list_planned_jobs(tx)) == written + 1
        assert read_change(tx) == written + 1
        assert history.find_newest_event(tx) == written + 1
    again.close()


def test_no_writer_waits_for_minutes_behind_other_writers(api, make_spec, monkeypatch):
    ada = api.user()
    monkeypatch.setattr("elastane.cluster.controller.store.database.BUSY_S", 0.1)
    with api.store.begin_write():
        busy = ada.post("/jobs", make_spec())
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
        assert "is busy" in busy.json()["detail"]
        assert ada.get("/jobs").json()["items"] == []
    assert ada.post("/jobs", make_spec()).is_success
