"""One controller at a time uses a store."""

import os
import signal
import subprocess
import sys
import threading

import msgspec
import psycopg
import pytest

from elastane.cluster.controller.store import lease
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.controller.store.lease import Lease, StoreTaken
from elastane.cluster.nouns.controller import ControllerSettings
from tests.waiting import WAIT_S

HOLDER = """
import sys, time
from elastane.cluster.controller.store.lease import Lease
with Lease(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(lease, "PATIENCE_S", 0.3)


@pytest.fixture
def holder(store_url):
    """Start another process that uses the store."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, store_url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def cut(url):
    """End every other connection to a PostgreSQL server, as its restart does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_store_with_a_controller_is_refused_to_another_one(store_url, holder):
    with pytest.raises(StoreTaken, match="another controller uses the store") as refused:
        Lease(store_url)
    assert "elastane down" in str(refused.value)


def test_a_killed_controller_leaves_its_store_to_the_next(store_url, holder, monkeypatch):
    monkeypatch.setattr(lease, "PATIENCE_S", WAIT_S)
    holder.send_signal(signal.SIGKILL)
    with Lease(store_url) as mine:
        assert mine.is_held()


def test_a_starting_controller_waits_briefly_for_an_ending_one(store_url, holder, monkeypatch):
    monkeypatch.setattr(lease, "PATIENCE_S", WAIT_S)
    ending = threading.Timer(0.3, holder.kill)
    ending.start()
    with Lease(store_url) as mine:
        assert mine.is_held()
    ending.join()


def test_a_closed_lease_can_be_taken_again(store_url):
    with Lease(store_url):
        pass
    with Lease(store_url) as mine:
        assert mine.is_held()


def test_links_to_one_database_are_one_store(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    with Lease(f"sqlite:///{tmp_path}/store.db"), pytest.raises(StoreTaken):
        Lease(f"sqlite:///{tmp_path}/link.db")


def test_databases_beside_each_other_have_leases_of_their_own(tmp_path):
    with Lease(f"sqlite:///{tmp_path}/store.db"), Lease(f"sqlite:///{tmp_path}/store.sqlite") as other:
        assert other.is_held()


def test_a_cut_connection_loses_the_lease_for_good(store_url):
    if not store_url.startswith("postgresql"):
        pytest.skip("a file's lock cannot be cut")
    with Lease(store_url) as mine:
        cut(store_url)
        assert not mine.is_held()
        with Lease(store_url) as other:
            assert other.is_held()
            assert not mine.is_held()


def test_a_controller_that_loses_its_database_connection_ends_with_the_reason(store_url, tmp_path):
    if not store_url.startswith("postgresql"):
        pytest.skip("a file does not hang up")
    wish = tmp_path / "wish.json"
    wish.write_bytes(msgspec.json.encode(ControllerSettings(home=str(tmp_path), store=store_url)))
    reading, writing = os.pipe()
    with (
        wish.open("rb") as asked,
        subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "elastane.cluster.controller"),
                *(f"--ready-fd={writing}", f"--with={os.getpid()}"),
            ],
            stdin=asked,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(writing,),
        ) as controller,
    ):
        os.close(writing)
        with os.fdopen(reading) as told:
            assert told.readline()
        cut(store_url)
        _, said = controller.communicate()
    assert controller.returncode == 1
    assert "is gone, so another controller may have it" in said
    assert "then start the controller again" in said
    with Lease(store_url) as mine:
        assert mine.is_held()


def test_an_unreachable_database_is_reported(tmp_path):
    with pytest.raises(StoreError, match="reports an error"):
        Lease(f"postgresql://elastane@/none?host={tmp_path}")


def test_a_folder_that_is_not_writable_is_reported(tmp_path):
    if os.geteuid() == 0:
        (tmp_path / "store.db.lock").mkdir()
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(lease.BadInput, match=r"cannot write .*store\.db\.lock"):
        Lease(f"sqlite:///{tmp_path}/store.db")
