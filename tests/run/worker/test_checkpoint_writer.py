"""A worker copies its part of a checkpoint at one moment, writes it later, and publishes the checkpoint."""

import json
import os
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from torch import nn

from elastane.common.errors import StorageError
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import Retention, format_checkpoint_name, format_part_name
from elastane.run.nouns.control import CheckpointPart, PublishCheckpoint
from elastane.run.protocol.actions import TakeSnapshot
from elastane.run.worker.checkpoints import part_writer
from elastane.run.worker.checkpoints.copier import PlainState
from elastane.run.worker.checkpoints.part_records import REMEMBERED_PARTS, PartReports, name_record
from elastane.run.worker.checkpoints.reader import CheckpointReader, ReadRequest
from elastane.run.worker.checkpoints.state_slices import find_host_keys
from elastane.run.worker.checkpoints.writer import CheckpointWriter
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.placement import choose_placement
from elastane.run.worker.state.training_state import TrainingState
from tests.waiting import WAIT_S, wait_until

KEY = "model.weight"


class UnreliableStorage(LocalStorage):
    """Storage that can refuse or delay the files of parts."""

    def __init__(self, root):
        super().__init__(root)
        self.refusing = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def write(self, name, buffers):
        if self.refusing.is_set():
            raise StorageError(f"cannot write {name}: away")
        self.open.wait(WAIT_S)
        return super().write(name, buffers)


class Writers:
    """Two workers that hold the same state of one small model, and share its blocks."""

    def __init__(self, root):
        self.model = nn.Linear(3, 2, bias=False)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        layout = ModelLayout(self.model, optimizer)
        self.blocks = tuple(range(len(layout.blocks)))
        self.state = TrainingState(
            self.model, optimizer, None, layout, copies=None, placement=choose_placement(layout)
        )
        self.storage = UnreliableStorage(root)
        self.catalog = Catalog(self.storage)
        self.snapped, self.kept = SimpleQueue(), SimpleQueue()
        self.changes = 0
        self.workers = [self.build_writer(number) for number in (0, 1)]

    def build_writer(self, number):
        return CheckpointWriter(
            number,
            self.state,
            self.catalog,
            resumed=0,
            retention=Retention(last=2),
            describe=self.describe_plain,
            report_copied=self.snapped.put,
            report_publication=self.kept.put,
            report_change=self.count_change,
        )

    def describe_plain(self):
        plain = {
            "rest": json.dumps(self.state.replicated.describe()[0]),
            "on_host": find_host_keys(self.state),
            "cursors": {},
        }
        return PlainState(plain, {"loss": 2.5})

    def count_change(self):
        self.changes += 1

    def fill(self, value):
        with torch.no_grad():
            self.model.weight.fill_(value)

    def take_snapshot(self, step, *, writers=(0,)):
        """Let the first writer copy all blocks, and wait for it."""
        self.workers[writers[0]].copy_snapshot(TakeSnapshot(step, step, self.blocks, writers))
        assert self.snapped.get(timeout=WAIT_S) == step

    def commit(self, *writers):
        for number in writers or (0,):
            self.workers[number].commit()

    def find_part(self, step, worker=0):
        return next((p for p in self.workers[worker].parts if p.step == step), None)

    def wait_until(self, step, state):
        def find():
            part = self.find_part(step)
            return part if part is not None and part.state == state else None

        return wait_until(find, f"the part of step {step} is {state}", state=lambda: self.find_part(step))

    def publish(self, step, *, by=0, writers=(0,)):
        self.workers[by].publish(
            PublishCheckpoint(name=format_checkpoint_name(step), step=step, writers=writers)
        )
        return self.kept.get(timeout=WAIT_S)

    def read_stored(self, step):
        into = torch.empty(6)
        with CheckpointReader(
            self.storage, self.catalog.load_manifest(format_checkpoint_name(step))
        ) as reader:
            reader.read_many([ReadRequest(KEY, 0, 6, into)])
        return into.unique().tolist()


@pytest.fixture
def writers(tmp_path, monkeypatch):
    monkeypatch.setattr(part_writer, "FIRST_RETRY_S", 0.01)
    found = Writers(tmp_path / "checkpoints")
    yield found
    # Otherwise their threads would retry until the end of the session.
    found.storage.refusing.clear()
    found.storage.open.set()


def test_a_part_is_copied_then_written_then_published(writers):
    writers.fill(1.0)
    writers.take_snapshot(5)
    assert writers.find_part(5).state == "copied"
    assert writers.catalog.list_names() == [], "the step may still be undone"
    writers.commit()
    part = writers.wait_until(5, "written")
    assert part.bytes == (writers.catalog.storage.list_files(format_checkpoint_name(5))[format_part_name(0)])
    kept = writers.publish(5)
    assert (kept.name, kept.step, kept.error, kept.metrics) == (
        format_checkpoint_name(5),
        5,
        "",
        {"loss": 2.5},
    )
    assert writers.catalog.verify(format_checkpoint_name(5)) == ()
    assert writers.read_stored(5) == [1.0]
    assert writers.changes >= 3


def test_a_part_holds_the_state_at_the_time_of_its_copy(writers):
    writers.fill(1.0)
    writers.storage.open.clear()
    writers.take_snapshot(5)
    writers.fill(2.0)
    writers.commit()
    writers.fill(3.0)
    writers.storage.open.set()
    writers.wait_until(5, "written")
    writers.publish(5)
    assert writers.read_stored(5) == [1.0]


def test_a_copy_of_a_repeated_step_replaces_the_first_one(writers):
    writers.fill(1.0)
    writers.take_snapshot(5, writers=(0, 1))
    writers.fill(2.0)
    writers.take_snapshot(5, writers=(0,))
    writers.commit()
    assert writers.wait_until(5, "written").writers == (0,)
    writers.publish(5)
    assert writers.read_stored(5) == [2.0]


def test_without_a_copy_a_commit_writes_nothing(writers):
    writers.commit()
    writers.workers[0].copy_snapshot(TakeSnapshot(1, 5, (), (1,)))
    assert writers.snapped.get(timeout=WAIT_S) == 1, "the round also waits for a worker that writes nothing"
    writers.commit()
    assert writers.workers[0].parts == ()


def test_a_refused_part_is_retried_until_storage_accepts_it(writers):
    writers.storage.refusing.set()
    writers.take_snapshot(5)
    writers.commit()
    failing = writers.wait_until(5, "failing")
    assert "away" in failing.error
    writers.storage.refusing.clear()
    assert writers.wait_until(5, "written").error == ""


def test_the_next_part_replaces_one_that_storage_refuses(writers):
    writers.storage.refusing.set()
    writers.take_snapshot(5)
    writers.commit()
    writers.wait_until(5, "failing")
    writers.take_snapshot(6)
    assert writers.find_part(5).state == "abandoned"
    assert "until the next one was due" in writers.find_part(5).error
    writers.storage.refusing.clear()
    writers.commit()
    writers.wait_until(6, "written")


def test_the_wait_for_a_part_that_is_being_written_has_a_limit(writers, monkeypatch):
    monkeypatch.setattr(part_writer, "LONGEST_WAIT_S", 0.05)
    writers.fill(1.0)
    writers.storage.open.clear()
    writers.take_snapshot(5)
    writers.commit()
    writers.take_snapshot(6)
    assert writers.find_part(6).state == "abandoned"
    assert "has not been written after" in writers.find_part(6).error
    writers.commit()
    writers.storage.open.set()
    writers.wait_until(5, "written")
    writers.publish(5)
    assert writers.read_stored(5) == [1.0], "the copy was not overwritten under its writer"


def test_the_next_copy_waits_until_the_last_one_is_written(writers):
    writers.fill(1.0)
    writers.storage.open.clear()
    writers.take_snapshot(5)
    writers.commit()
    taking_next = threading.Thread(target=writers.take_snapshot, args=(6,))
    taking_next.start()
    taking_next.join(0.1)
    assert taking_next.is_alive()
    writers.storage.open.set()
    taking_next.join(WAIT_S)
    assert [part.state for part in writers.workers[0].parts] == ["written", "copied"]


def test_a_second_publisher_changes_nothing_after_the_first_died_before_its_report(writers):
    writers.take_snapshot(5)
    writers.commit()
    writers.wait_until(5, "written")
    first = writers.publish(5)
    manifest = writers.catalog.load_manifest(format_checkpoint_name(5))
    folder = Path(writers.storage.url) / format_checkpoint_name(5)

    def find_times():
        # The record of a writer is deleted after the report.
        return {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != name_record(0)}

    written = find_times()
    again = writers.publish(5, by=1)
    assert (again.worker, again.error) == (1, "")
    assert again.bytes == first.bytes
    assert writers.catalog.load_manifest(format_checkpoint_name(5)) == manifest
    assert find_times() == written


def test_a_publication_that_fails_has_a_reason_and_can_be_repeated(writers):
    writers.take_snapshot(5)
    writers.commit()
    writers.wait_until(5, "written")
    writers.storage.refusing.set()
    assert "away" in writers.publish(5).error
    assert writers.catalog.list_summaries()[0].state == "unfinished"
    writers.storage.refusing.clear()
    assert writers.publish(5).error == ""


def test_a_checkpoint_with_a_missing_part_is_not_published(writers):
    writers.take_snapshot(5, writers=(0, 1))
    writers.commit()
    writers.wait_until(5, "written")
    assert name_record(1) in writers.publish(5, writers=(0, 1)).error
    assert writers.catalog.list_summaries()[0].state == "unfinished"


def test_a_publication_deletes_checkpoints_beyond_the_retention(writers):
    for step in (5, 6, 7):
        writers.take_snapshot(step)
        writers.commit()
        writers.wait_until(step, "written")
        writers.publish(step)
    # The publisher deletes older checkpoints after its report.
    wait_until(
        lambda: writers.catalog.list_names() == [format_checkpoint_name(6), format_checkpoint_name(7)],
        "the oldest checkpoint is deleted",
        state=writers.catalog.list_names,
    )
    assert name_record(0) not in writers.storage.list_files(format_checkpoint_name(7))


def test_the_last_few_parts_are_reported_oldest_first(writers):
    steps = range(1, REMEMBERED_PARTS + 3)
    for step in steps:
        writers.take_snapshot(step)
        writers.commit()
        writers.wait_until(step, "written")
    assert [part.step for part in writers.workers[0].parts] == [*steps][-REMEMBERED_PARTS:]


def test_a_refusal_is_reported_and_withdrawn_once_storage_accepts_the_part(writers):
    refusals = SimpleQueue()
    writers.workers[0] = CheckpointWriter(
        0,
        writers.state,
        writers.catalog,
        resumed=0,
        retention=Retention(last=2),
        describe=writers.describe_plain,
        report_copied=writers.snapped.put,
        report_publication=writers.kept.put,
        report_change=writers.count_change,
        report_refusal=refusals.put,
    )
    writers.storage.refusing.set()
    writers.take_snapshot(5)
    writers.commit()
    assert refusals.get(timeout=WAIT_S) is True
    writers.wait_until(5, "failing")
    writers.storage.refusing.clear()
    while refusals.get(timeout=WAIT_S):
        pass
    writers.wait_until(5, "written")


def test_a_refused_worker_abandons_a_part_that_others_write_in_its_place(writers):
    writers.storage.refusing.set()
    writers.take_snapshot(5)
    writers.commit()
    writers.wait_until(5, "failing")
    writers.workers[0].copy_snapshot(TakeSnapshot(6, 6, (), (1,)))
    writers.snapped.get(timeout=WAIT_S)
    writers.wait_until(5, "abandoned")


def test_the_settled_state_is_written_without_a_commit_and_replaces_the_first_attempt(writers):
    writers.storage.refusing.set()
    writers.take_snapshot(5, writers=(1, 0))
    writers.workers[1].commit()
    writers.storage.refusing.clear()
    worker = writers.workers[0]
    worker.copy_snapshot(TakeSnapshot(7, 5, writers.blocks, (0,), attempt=(2, 1)))
    assert writers.snapped.get(timeout=WAIT_S) == 7
    part = writers.wait_until(5, "written")
    assert (part.writers, part.attempt) == ((0,), (2, 1))
    assert writers.publish(5).error == ""
    assert writers.catalog.verify(format_checkpoint_name(5)) == ()


def test_a_late_report_of_an_earlier_attempt_does_not_replace_that_of_a_later_one():
    """The copier may still be busy with the earlier attempt when this worker refuses the later one."""
    reports = PartReports(lambda: None)
    name = format_checkpoint_name(5)
    late = CheckpointPart(name=name, step=5, writers=(0, 1), state="written", attempt=(1, 2))
    refusal = CheckpointPart(name=name, step=5, writers=(0,), state="abandoned", attempt=(2, 1))
    for part in (refusal, late):
        reports.report(part)
    assert reports.parts == (refusal,)


def test_a_writer_keeps_a_priority_that_is_lower_than_its_usual_one(tmp_path):
    """Only root may raise it, so the thread of another user's writer would end."""
    found = []

    def write():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        before = {*threading.enumerate()}
        writers = Writers(tmp_path)
        writers.take_snapshot(5)
        writers.commit()
        writers.wait_until(5, "written")
        started = [one for one in threading.enumerate() if one not in before]
        found.extend(os.getpriority(os.PRIO_PROCESS, one.native_id) for one in started)

    # A new thread takes its priority from the one that starts it.
    writing = threading.Thread(target=write)
    writing.start()
    writing.join()
    assert set(found) == {19}
