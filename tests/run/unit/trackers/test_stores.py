"""TensorBoard, MLflow and Weights & Biases: each gets what it lacks after an interruption at any moment."""

import gc
import itertools
import os
import signal
import socket
import struct
import subprocess
import threading
from zlib import crc32

import pytest

from elastane.run.trackers import mlflow_store
from elastane.run.trackers.feeding import Feed, Subject
from elastane.run.trackers.metric_rows import MetricRow, make_step_row, select_missing
from elastane.run.trackers.mlflow_store import MLflowStore
from elastane.run.trackers.wandb_store import WandbStore, find_record_files, find_writers, read_wandb_records
from tests.lazy_modules import LazyModule
from tests.waiting import WAIT_S, wait_until

from .conftest import collect, make_line
from .readers import find_mlflow_run, read_mlflow, read_tensorboard, read_tensorboard_texts, read_wandb

tensorboard_store = LazyModule("elastane.run.trackers.tensorboard_store")
# Libraries of trackers use deprecated functions of each other.
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 6


def to_float32(series):
    """Return what TensorBoard has of these values."""
    return {
        name: [(step, struct.unpack("f", struct.pack("f", value))[0]) for step, value in points]
        for name, points in series.items()
    }


def feed(store, recorded):
    """Feed all steps that the ledger has, as a process does before it is killed."""
    known = store.open(recorded.tracked)
    rows, _ = select_missing(recorded.open_source(max(1, known.get("train/loss", 0))).read(), known)
    if rows:
        store.write(rows)


def feed_to_the_end(store, recorded, outcome="finished"):
    feed(store, recorded)
    store.close(outcome, STEPS)


# -- TensorBoard -------------------------------------------------------------------------------------------


def test_tensorboard_has_each_point_once_after_a_kill_at_any_byte(recorded, expected):
    """The last file ends with any part of a record; a record in a later file must still be read."""
    recorded.add(*map(make_line, range(1, 4)))
    feed(tensorboard_store.TensorBoardStore(), recorded)
    (path,) = recorded.run_dir.trackers.tensorboard.iterdir()
    whole = path.read_bytes()
    recorded.add(*map(make_line, range(4, STEPS + 1)))
    for size in range(0, len(whole), 7):
        for other in recorded.run_dir.trackers.tensorboard.iterdir():
            other.unlink()
        path.write_bytes(whole[:size])
        feed_to_the_end(tensorboard_store.TensorBoardStore(), recorded)
        assert read_tensorboard(recorded.run_dir.trackers.tensorboard) == to_float32(expected(STEPS)), size


def test_tensorboard_has_the_parameters_and_the_outcome_once(recorded):
    recorded.add(*map(make_line, range(1, 4)))
    feed_to_the_end(tensorboard_store.TensorBoardStore(), recorded, "interrupted")
    recorded.add(*map(make_line, range(4, STEPS + 1)))
    for _ in range(2):
        feed_to_the_end(tensorboard_store.TensorBoardStore(), recorded)
    texts = read_tensorboard_texts(recorded.run_dir.trackers.tensorboard)
    assert texts["outcome"] == ["finished"]
    (parameters,) = texts["parameters"]
    assert "| script | t.py |" in parameters


def test_zeros_at_the_end_of_a_file_hide_nothing(recorded, expected):
    """A power cut can leave a file with its size but without its content."""
    recorded.add(*map(make_line, range(1, 4)))
    feed(tensorboard_store.TensorBoardStore(), recorded)
    (path,) = recorded.run_dir.trackers.tensorboard.iterdir()
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    recorded.add(*map(make_line, range(4, STEPS + 1)))
    feed_to_the_end(tensorboard_store.TensorBoardStore(), recorded)
    assert read_tensorboard(recorded.run_dir.trackers.tensorboard) == to_float32(expected(STEPS))


def test_a_full_disk_leaves_no_torn_record_before_later_ones(recorded, expected, monkeypatch):
    recorded.add(*map(make_line, range(1, 4)))
    store, write, calls = tensorboard_store.TensorBoardStore(), os.write, itertools.count()
    feed(store, recorded)
    recorded.add(*map(make_line, range(4, STEPS + 1)))
    rows = recorded.open_source(4).read()

    def refuse(fd, content):
        if next(calls):
            raise OSError(28, "No space left on device")
        return write(fd, bytes(content)[:33])

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(OSError, match="No space"):
        store.write(rows)
    monkeypatch.undo()
    store.write(rows)
    store.close("finished", STEPS)
    assert read_tensorboard(recorded.run_dir.trackers.tensorboard) == to_float32(expected(STEPS))


def test_a_moved_run_directory_does_not_come_back(recorded):
    recorded.run_dir.root.rename(recorded.run_dir.root.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        tensorboard_store.TensorBoardStore().open(recorded.tracked)
    assert not recorded.run_dir.root.exists()


# -- MLflow ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["database", "folder"])
def mlflow_uri(request, monkeypatch, recorded, tmp_path):
    if request.param == "database":
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return f"sqlite:///{recorded.run_dir.trackers.mlflow / 'mlflow.db'}"
    uri = f"file:{tmp_path / 'store'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


def test_mlflow_has_each_point_once_in_one_run_over_all_processes(recorded, expected, mlflow_uri):
    for first in (1, 3, 5):
        recorded.add(make_line(first), make_line(first + 1))
        feed(MLflowStore(), recorded)
    # The next process finds half of a step.
    recorded.add(make_line(7))
    run, client = find_mlflow_run(mlflow_uri)
    assert run.info.status == "RUNNING"
    client.log_metric(run.info.run_id, "train/loss", 1 / 7, timestamp=1, step=7)
    feed_to_the_end(MLflowStore(), recorded)
    assert read_mlflow(mlflow_uri) == expected(7)
    run, _ = find_mlflow_run(mlflow_uri)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "made-up")
    assert run.data.params == recorded.tracked.parameters


def test_mlflow_takes_more_points_than_one_request_has(recorded, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"file:{tmp_path / 'store'}")
    monkeypatch.setattr(mlflow_store, "MOST_METRICS", 7)
    recorded.add(*map(make_line, range(1, 20)))
    feed_to_the_end(MLflowStore(), recorded)
    assert read_mlflow(uri) == expected(19)


@pytest.fixture
def silent_server():
    """A server on loopback that takes connections and never answers; it gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_that_never_answers_delays_nobody(recorded, monkeypatch, silent_server):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent_server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    assert_refused(recorded)


def test_a_server_that_refuses_is_told_without_its_password(recorded, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
    assert_refused(recorded)


def assert_refused(recorded):
    said, heard = [], threading.Event()

    def say(line):
        said.append(line)
        heard.set()

    recorded.add(make_line(1))
    subject = Subject(lambda: recorded.tracked, recorded.open_source, lambda: "finished")
    feed = Feed("mlflow", MLflowStore(), subject, threading.Event(), say)
    threading.Thread(target=feed.run, daemon=True).start()
    assert heard.wait(WAIT_S)
    assert said[0].startswith("mlflow fails: API request")
    assert "secret" not in said[0]


# -- Weights & Biases --------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch):
    """Keep W&B on this machine, and end the process that its client starts."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    import wandb

    wandb.teardown()
    # The client does not wait for the end of a process that was killed, and Python warns of that later.
    for started in [one for one in gc.get_objects() if isinstance(one, subprocess.Popen)]:
        started.poll()
    gc.collect()


def read_offline(recorded):
    return read_wandb(recorded.run_dir.trackers.wandb, recorded.tracked.id)


@pytest.mark.usefixtures("offline")
def test_wandb_has_each_point_once_over_all_processes(recorded, expected):
    for first in (1, 3):
        recorded.add(make_line(first), make_line(first + 1))
        feed_to_the_end(WandbStore(), recorded, "interrupted")
    # The second file ends in the middle of a record, as after a kill.
    path = find_record_files(recorded.run_dir.trackers.wandb, recorded.tracked.id)[-1]
    path.write_bytes(path.read_bytes()[:-700])
    recorded.add(make_line(5), make_line(6))
    feed_to_the_end(WandbStore(), recorded)
    assert read_offline(recorded) == expected(STEPS)


@pytest.mark.long
@pytest.mark.usefixtures("offline")
def test_wandb_has_each_point_once_after_the_death_of_its_own_process(recorded, expected):
    ending, known = threading.Event(), (recorded.run_dir.trackers.wandb, recorded.tracked.id)
    recorded.add(*map(make_line, range(1, 200)))
    subject = Subject(lambda: recorded.tracked, recorded.open_source, lambda: "finished")
    feed = Feed("wandb", WandbStore(), subject, ending, print)
    threading.Thread(target=feed.run, daemon=True).start()
    wait_until(lambda: feed.step == 199, "the client has all rows")
    (writer,) = find_writers(*known)
    os.kill(writer, signal.SIGKILL)
    recorded.add(*map(make_line, range(200, 300)))
    wait_until(lambda: feed.error or feed.step == 299, "the client notices it, or has the other rows")
    ending.set()
    wait_until(lambda: feed.done, "the feed is done")
    assert read_wandb(*known) == expected(299)


@pytest.mark.usefixtures("offline")
def test_an_evaluation_after_its_step_gets_a_row_of_its_own(recorded):
    recorded.add(make_line(1), make_line(2))
    store = WandbStore()
    store.open(recorded.tracked)
    rows = recorded.open_source().read()
    late = MetricRow(2, 0.0, {"evaluation/correct": 0.5})
    store.write([*rows, late, make_step_row(make_line(3))])
    store.close("finished", 3)
    points = read_offline(recorded)
    assert points["evaluation/correct"] == [(2, 0.5)]
    assert [step for step, _ in points["train/loss"]] == [1, 2, 3]
    assert collect(rows)["train/loss"] == points["train/loss"][:2]


def test_a_record_of_wandb_may_be_longer_than_a_block(tmp_path):
    path = tmp_path / "run.wandb"

    def frame(kind, piece):
        return struct.pack("<IHB", crc32(piece, crc32(bytes((kind,)))), len(piece), kind) + piece

    first = 32768 - 7 - 7
    content = frame(2, b"a" * first) + frame(3, b"b" * (32768 - 7)) + frame(4, b"c" * 10) + frame(1, b"next")
    path.write_bytes(bytes(7) + content)
    assert list(read_wandb_records(path)) == [
        b"a" * first + b"b" * (32768 - 7) + b"c" * 10,
        b"next",
    ]
    # A flipped bit costs the rest of its block.
    path.write_bytes(bytes(7) + content[:100] + b"?" + content[101:])
    assert b"next" in list(read_wandb_records(path))
