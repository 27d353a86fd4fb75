"""A running controller with a store that is removed, replaced, cut, overwritten or made read-only."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import httpx
import msgspec
import pytest

from elastane.cluster.controller.store import failures, lease
from elastane.cluster.controller.store.database import Store, count_change, read_change
from elastane.cluster.controller.store.lease import Lease, StoreTaken
from elastane.cluster.controller.store.monitor import Monitor
from elastane.cluster.nouns.controller import (
    ControllerReady,
    ControllerSettings,
)
from elastane.common.services import StartFailure
from tests.full_disk import fill_disk
from tests.waiting import WAIT_S, wait_until

QUICK = """
from elastane.cluster.controller.store import lease, monitor
monitor.LOOK_S, monitor.PROBE_S, monitor.READ_ALL_S, monitor.SHARE = 0.05, 0.2, 0.2, 0.5
lease.PATIENCE_S = 0.3
from elastane.cluster.controller.__main__ import main
main()
"""
"""The controller as it is, but for how often its monitor looks."""

pytestmark = pytest.mark.processes


class Controller:
    def __init__(self, home, store):
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "log"
        reading, writing = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", QUICK, f"--ready-fd={writing}", f"--with={os.getpid()}"],
                stdin=subprocess.PIPE,
                stderr=log,
                pass_fds=(writing,),
            )
        os.close(writing)
        with self.process.stdin as asked:
            asked.write(
                msgspec.json.encode(ControllerSettings(home=str(home), store=f"sqlite:///{store}", devices=2))
            )
        with os.fdopen(reading, "rb") as told:
            line = told.readline()
        try:
            self.ready, self.refusal = msgspec.json.decode(line, type=ControllerReady), None
        except msgspec.ValidationError:
            self.ready, self.refusal = None, msgspec.json.decode(line, type=StartFailure)
            self.process.wait(WAIT_S)

    def get(self, path):
        auth = {"Authorization": f"Bearer {self.ready.token}"}
        return httpx.get(f"{self.ready.url}/v1{path}", headers=auth, timeout=WAIT_S)

    def checks(self):
        """Return the failing checks."""
        health = self.get("/health")
        assert health.status_code == 200
        return {problem["check"] for problem in health.json().get("problems", ())}

    def fails(self, check):
        wait_until(lambda: check in self.checks(), f"the check {check} fails")
        (problem,) = [one for one in self.get("/health").json()["problems"] if one["check"] == check]
        assert problem["do"]
        assert abs(problem["sinceS"] - time.time()) < 2 * WAIT_S
        return problem["what"]

    def serves(self):
        return self.get("/jobs").status_code == 200

    def lines(self, words):
        return [line for line in self.log.read_text().splitlines() if words in line]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


@pytest.fixture
def start():
    started = []

    def one(home, store):
        controller = Controller(home, store)
        started.append(controller)
        return controller

    yield one
    for controller in started:
        controller.process.kill()
        controller.process.wait()


@pytest.fixture
def store(tmp_path):
    (tmp_path / "at").mkdir()
    return tmp_path / "at" / "store.db"


@pytest.fixture
def running(start, tmp_path, store):
    controller = start(tmp_path / "home", store)
    assert controller.serves()
    # It has made its first checks.
    wait_until(lambda: store.with_name("store.db.lock").stat().st_size > 0, "its lease is noted")
    assert controller.checks() == set()
    return controller


def garble(path):
    """Overwrite all pages but the first with noise, as a broken disk does."""
    noise = random.Random(0).randbytes(path.stat().st_size - 4096)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(noise)


def checkpointed(path):
    """Move all stored data from the journal to the file."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def test_a_removed_store_is_not_used_until_it_is_restored(running, store):
    away = store.with_name("away.db")
    store.rename(away)
    assert "removed" in running.fails("file")
    refused = running.get("/jobs")
    assert refused.status_code == 503
    assert "jobs continue" in refused.json()["means"]
    assert "restore the same files" in refused.json()["do"]
    assert not store.exists(), "a new one was made in its place"

    away.rename(store)
    wait_until(running.serves, "it is used again")
    wait_until(lambda: running.checks() == set(), "all is well again")
    begun = [line for line in running.lines("the store's file was removed") if "condition ERROR" in line]
    over = [line for line in running.lines("over after") if "the store's file was removed" in line]
    assert (len(begun), len(over)) == (1, 1)


def test_a_store_that_was_replaced_by_another_file_is_not_used(running, store):
    copy = store.with_name("copy.db")
    checkpointed(store)
    shutil.copy(store, copy)
    copy.replace(store)
    assert "replaced" in running.fails("file")
    assert not running.serves()
    assert running.end() == 0
    assert sqlite3.connect(store).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("journal", ["-wal", pytest.param("-shm", marks=pytest.mark.long)])
def test_a_lost_journal_is_noticed_and_nothing_is_lost_when_the_controller_ends(
    running, start, store, journal, tmp_path
):
    token = running.ready.token
    store.with_name(f"store.db{journal}").unlink()
    assert "journal" in running.fails("file")
    assert not running.serves()
    assert running.end() == 0
    again = start(tmp_path / "home", store)
    assert again.refusal is None
    again.ready = msgspec.structs.replace(again.ready, token=token)
    assert again.serves()


@pytest.mark.parametrize("schema_is_in_journal", [True, False])
def test_a_check_that_misses_the_loss_of_the_journal_loses_no_change(tmp_path, schema_is_in_journal):
    path = tmp_path / "store.db"
    opened = Store(f"sqlite:///{path}")
    if not schema_is_in_journal:
        checkpointed(path)
    with opened.begin_write() as tx:
        count_change(tx)
    path.with_name("store.db-wal").unlink()
    # As if the journal had been removed just after the check of the files.
    with pytest.raises(failures.StoreError):
        opened.soundness.check_writing()
    with suppress(failures.StoreError):
        opened.soundness.check_content()
    opened.close()
    again = Store(f"sqlite:///{path}")
    with again.begin_read() as tx:
        assert read_change(tx) == 1
    again.close()


def test_a_truncated_store_is_neither_used_nor_opened(running, start, store, tmp_path):
    checkpointed(store)
    wait_until(lambda: running.checks() == set(), "it was looked at")
    os.truncate(store, store.stat().st_size // 2)
    running.fails("integrity")
    assert not running.serves()
    running.process.kill()
    running.process.wait()
    again = start(tmp_path / "home", store)
    assert "damaged" in again.refusal.what
    assert "backup" in again.refusal.do


def test_a_damaged_store_is_found_without_requests_and_serves_none(running, start, store, tmp_path):
    checkpointed(store)
    garble(store)
    running.fails("integrity")
    assert not running.serves()
    wait_until(lambda: "turns" in running.checks(), "nothing is planned from it")
    assert len(running.lines("the store is damaged")) <= 2
    running.process.kill()
    running.process.wait()
    again = start(tmp_path / "home", store)
    assert again.process.returncode == 1
    assert "damaged" in again.refusal.what


def test_an_older_state_written_into_the_running_store_is_noticed(running, store):
    checkpointed(store)
    connection = sqlite3.connect(store)
    connection.execute("UPDATE turns SET change = 100000")
    connection.commit()
    wait_until(lambda: b"100000" in store.with_name("store.db.lock").read_bytes(), "it was seen")
    connection.execute("UPDATE turns SET change = 5")
    connection.commit()
    connection.close()
    assert "lacks changes" in running.fails("age")
    assert not running.serves()


@pytest.mark.parametrize(
    "lost",
    [
        "the journal",
        pytest.param("the database", marks=pytest.mark.long),
        pytest.param("all in the database", marks=pytest.mark.long),
    ],
)
def test_a_store_that_lost_changes_while_no_controller_ran_is_refused_until_that_is_accepted(
    running, start, store, tmp_path, lost
):
    checkpointed(store)
    old = store.read_bytes()
    connection = sqlite3.connect(store)
    connection.execute("UPDATE turns SET change = 100000")
    connection.commit()
    wait_until(lambda: b"100000" in store.with_name("store.db.lock").read_bytes(), "it was noted")
    running.process.kill()
    running.process.wait()
    connection.close()
    for path in (store, store.with_name("store.db-wal"), store.with_name("store.db-shm")):
        path.unlink(missing_ok=True)
    if lost == "the journal":
        store.write_bytes(old)
    if lost == "all in the database":
        store.touch()

    refused = start(tmp_path / "home", store).refusal
    assert "lacks changes" in refused.what
    assert "100000" in refused.what
    assert "remove the file" in refused.do
    store.with_name("store.db.lock").unlink()
    assert start(tmp_path / "home", store).refusal is None


def test_a_full_disk_under_the_store_is_reported_until_it_has_room(start, make_small_disk, tmp_path):
    disk = make_small_disk(4 << 20)
    controller = start(tmp_path / "home", disk / "store.db")
    wait_until(lambda: controller.checks() == set(), "all is well")
    ballast = fill_disk(disk)
    assert "full" in controller.fails("writing")
    # The stored content is intact, so it is served.
    assert controller.serves()
    ballast.unlink()
    wait_until(lambda: controller.checks() == set(), "all is well again")


def test_a_read_only_file_system_under_the_store_is_reported(start, make_small_disk, tmp_path):
    disk = make_small_disk(4 << 20)
    controller = start(tmp_path / "home", disk / "store.db")
    wait_until(lambda: controller.checks() == set(), "all is well")
    # A mount of its own, so that open files do not keep it writable.
    done = subprocess.run(["mount", "--bind", disk, disk], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this machine does not let a test mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
        assert "accepts no changes" in controller.fails("writing")
        subprocess.run(["mount", "-o", "remount,bind,rw", disk], check=True)
        wait_until(lambda: controller.checks() == set(), "all is well again")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


# -- one controller, with any path to the store -----------------------------------------------------------


@contextmanager
def bound(directory, to):
    to.mkdir()
    if subprocess.run(["mount", "--bind", directory, to], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let a test mount")
    try:
        yield to / "store.db"
    finally:
        subprocess.run(["umount", "--lazy", to], check=True)


def hard_link(store, elsewhere):
    elsewhere.mkdir()
    os.link(store, elsewhere / "other.db")
    return elsewhere / "other.db"


def symbolic_link(store, elsewhere):
    elsewhere.mkdir()
    (elsewhere / "other.db").symlink_to(store)
    return elsewhere / "other.db"


def copied(store, elsewhere):
    shutil.copytree(store.parent, elsewhere)
    return elsewhere / "store.db"


@pytest.mark.parametrize("path", [hard_link, pytest.param(symbolic_link, marks=pytest.mark.long), copied])
def test_no_other_path_to_a_store_gives_it_a_second_controller(running, start, store, tmp_path, path):
    other = path(store, tmp_path / "elsewhere")
    second = start(tmp_path / "another home", other)
    assert second.process.returncode == 2
    assert "another controller uses" in second.refusal.what
    assert running.serves()
    assert running.checks() == set()


def test_no_bind_mount_gives_a_store_a_second_controller(running, start, store, tmp_path):
    with bound(store.parent, tmp_path / "bound") as other:
        second = start(tmp_path / "another home", other)
    assert "another controller uses the store" in second.refusal.what


def test_a_copy_can_be_used_once_the_controller_of_the_original_has_ended(running, start, store, tmp_path):
    other = copied(store, tmp_path / "elsewhere")
    running.end()
    assert start(tmp_path / "another home", other).refusal is None


def test_a_home_has_one_controller_with_any_store(running, start, tmp_path):
    second = start(tmp_path / "home", tmp_path / "other.db")
    assert second.process.returncode == 2
    assert "another controller uses" in second.refusal.what
    assert not (tmp_path / "other.db").exists()


def test_a_removed_and_recreated_store_keeps_its_first_controller(running, start, store, tmp_path):
    for path in (store, store.with_name("store.db-wal"), store.with_name("store.db-shm")):
        path.unlink()
    second = start(tmp_path / "another home", store)
    assert "another controller uses the store" in second.refusal.what


# -- in this process ---------------------------------------------------------------------------------------


def test_the_lock_survives_the_end_of_database_connections(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "PATIENCE_S", 0.1)
    url = f"sqlite:///{tmp_path}/store.db"
    (tmp_path / "elsewhere").mkdir()
    with Lease(url):
        Store(url).close()
        os.link(tmp_path / "store.db", tmp_path / "elsewhere" / "link.db")
        with pytest.raises(StoreTaken):
            Lease(f"sqlite:///{tmp_path}/elsewhere/link.db")


def test_a_request_that_finds_a_damaged_page_stops_all_use_of_the_store(sqlite_store, tmp_path):
    path = tmp_path / "store.db"
    checkpointed(path)
    garble(path)
    fresh = Store(f"sqlite:///{path}", prepared=True)
    with pytest.raises(failures.StoreDamaged), fresh.begin_read() as tx:
        tx.exec_driver_sql("SELECT * FROM turns, jobs").all()
    with pytest.raises(failures.StoreUnusable), fresh.begin_write():
        raise AssertionError("it was begun")
    fresh.close()


def test_a_compacted_store_is_used_again(sqlite_store, tmp_path):
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("CREATE TABLE ballast AS SELECT zeroblob(1000000)")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    noted = []
    watching = Monitor(sqlite_store, noted.append)
    watching.look()
    connection.execute("DROP TABLE ballast")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    watching.look()
    watching.look()
    assert sqlite_store.soundness.condition.list_problems() == ()
    assert len(noted) == 1
