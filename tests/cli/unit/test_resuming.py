"""Changes of a resume in a run directory, and refusals that change nothing."""

import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from elastane.common.errors import BadInput, Damaged, NoSuchFile
from elastane.run.attempts.resumption import (
    STATE_LOST,
    find_newest_valid,
    prepare_resumption,
)
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.machines.claims.terms import OwnTerm
from elastane.run.machines.claims.urls import open_claim_list
from elastane.run.nouns.checkpoints import Manifest, PartFile, format_checkpoint_name
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import CLAIMS
from elastane.run.nouns.spec import CheckpointPolicy, PastDivision, Probe
from elastane.run.observability.run_files import (
    decode_event_line,
    decode_ledger_line,
    read_lines,
    read_record,
)

EVENTS = (
    EventLine(time=100.0, kind="run.started"),
    EventLine(time=100.1, kind="coordinator.started"),
    EventLine(time=101.0, kind="worker.joined", who="worker 0", workers=(0,)),
    EventLine(time=101.0, kind="worker.joined", who="worker 4", workers=(4,)),
    EventLine(time=102.0, kind="coordinator.started"),
    EventLine(time=103.0, kind="run.failed"),
)


def publish(catalog, step, resumed=0):
    name = format_checkpoint_name(step, resumed)
    written = catalog.write(name, "part-0.distcp", [b"x" * 100])
    part = PartFile(name="part-0.distcp", bytes=written.bytes, checksum=written.checksum)
    catalog.publish(
        Manifest(name=name, step=step, resumed=resumed, created="2026-01-01T00:00:00Z", parts=(part,))
    )


def damage(catalog, step):
    with Path(f"{catalog.storage.url}/{format_checkpoint_name(step)}/part-0.distcp").open("r+b") as file:
        file.write(b"y")


class DeadRun:
    """A run of four steps without a process left, with checkpoints after the second and third step."""

    def __init__(self, run_dir, script):
        self.run_dir = run_dir
        record = read_record(run_dir)
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
        self.write(
            spec=msgspec.structs.replace(
                record.spec, script=str(script), checkpoints=CheckpointPolicy(every_steps=1)
            ),
            pinned=msgspec.structs.replace(record.pinned, script_digest=digest),
        )
        self.write_events(EVENTS)
        self.claims = run_dir.root / CLAIMS
        self.claims.mkdir()
        self.catalog = Catalog(LocalStorage(run_dir.checkpoints))
        self.messages = []
        for step in (2, 3):
            publish(self.catalog, step)

    @property
    def record(self):
        return read_record(self.run_dir)

    def write(self, **changes):
        record = msgspec.structs.replace(self.record, **changes)
        self.run_dir.run.write_bytes(msgspec.json.encode(record))

    def write_events(self, events):
        self.run_dir.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))

    def resume(self, **options):
        return prepare_resumption(self.run_dir, self.record.spec, self.messages.append, **options)

    @property
    def steps(self):
        return [line.step for line in read_lines(self.run_dir.ledger, decode_ledger_line, torn_tail=False)]

    @property
    def events(self):
        return read_lines(self.run_dir.events, decode_event_line, torn_tail=False)

    def read_contents(self):
        return {path: path.read_bytes() for path in self.run_dir.root.rglob("*") if path.is_file()}


@pytest.fixture
def dead_run(finished_run, script):
    return DeadRun(finished_run(), script)


def test_the_ledger_is_cut_at_the_checkpoint_and_the_lost_lines_are_kept(dead_run):
    before = dead_run.run_dir.ledger.read_bytes().splitlines()
    record = dead_run.resume()
    assert dead_run.steps == [1, 2, 3]
    assert dead_run.run_dir.lost_ledger.read_bytes().splitlines() == before[3:]
    assert record == dead_run.record
    assert (record.resumed.checkpoint, record.resumed.step, record.resumed.times) == (
        format_checkpoint_name(3),
        3,
        1,
    )
    assert dead_run.messages[-1] == f"resuming from {format_checkpoint_name(3)}; 1 later steps are made again"


def test_numbers_of_workers_and_terms_are_not_used_twice(dead_run):
    record = dead_run.resume()
    assert (record.resumed.first_worker, record.resumed.first_term) == (5, 3)


def test_a_term_without_any_event_is_not_used_twice(dead_run):
    """Two coordinators claimed terms 3 and 4 and died before their first events."""
    for number in (3, 4):
        assert OwnTerm(open_claim_list(str(dead_run.claims)), number).claim() == number
    assert dead_run.resume().resumed.first_term == 5


def test_a_resume_is_recorded_as_an_event(dead_run):
    dead_run.resume(why="every copy of the state was lost")
    event = dead_run.events[-1]
    assert (event.kind, event.step) == ("run.resumed", 3)
    assert event.why.startswith(f"every copy of the state was lost: from {format_checkpoint_name(3)}")
    assert (event.detail["lost_steps"], event.detail["times"]) == (1, 1)


def test_a_run_that_has_saved_no_checkpoint_yet_begins_again(dead_run):
    for step in (2, 3):
        dead_run.catalog.delete(format_checkpoint_name(step))
    record = dead_run.resume(why=STATE_LOST)
    assert (record.resumed.checkpoint, record.resumed.step, record.resumed.first_worker) == ("", 0, 5)
    assert dead_run.steps == []
    assert dead_run.events[-1].why.startswith(f"{STATE_LOST}: from the beginning")
    assert dead_run.messages[-1] == "starting again from the beginning; 4 steps are made again"


def test_a_run_does_not_begin_again_if_its_checkpoints_are_not_there(dead_run):
    """Perhaps their file system is not mounted."""
    dead_run.write_events((*EVENTS, EventLine(time=102.5, kind="checkpoint.saved", step=3)))
    for step in (2, 3):
        dead_run.catalog.delete(format_checkpoint_name(step))
    before = dead_run.read_contents()
    with pytest.raises(NoSuchFile):
        dead_run.resume()
    assert dead_run.read_contents() == before


def test_a_second_resume_keeps_the_lines_that_the_first_one_lost(dead_run):
    dead_run.resume()
    damage(dead_run.catalog, 3)
    record = dead_run.resume()
    assert (record.resumed.times, record.resumed.step) == (2, 2)
    lost = read_lines(dead_run.run_dir.lost_ledger, decode_ledger_line, torn_tail=False)
    assert [line.step for line in lost] == [4, 3]
    assert dead_run.steps == [1, 2]


def test_torn_lines_are_not_counted(dead_run):
    for path in (dead_run.run_dir.ledger, dead_run.run_dir.events):
        path.write_bytes(path.read_bytes() + b'{"step": 5, "gene')
    dead_run.resume()
    assert dead_run.steps == [1, 2, 3]
    assert dead_run.events[-1].kind == "run.resumed"
    assert len(dead_run.events) == len(EVENTS) + 1


def test_a_resume_may_change_the_copies_and_no_other_pinned_option(dead_run):
    spec = msgspec.structs.replace(dead_run.record.spec, copies=2)
    pinned = dead_run.record.pinned
    record = prepare_resumption(dead_run.run_dir, spec, dead_run.messages.append)
    assert record.pinned == msgspec.structs.replace(pinned, copies=2)


def resume_as(dead_run, processes, workers=1, **options):
    spec = msgspec.structs.replace(
        dead_run.record.spec, processes=processes, min_workers=1, max_workers=workers
    )
    return prepare_resumption(dead_run.run_dir, spec, dead_run.messages.append, **options)


def test_a_resume_with_other_processes_leaves_the_division_to_the_first_worker(dead_run):
    pinned = msgspec.structs.replace(
        dead_run.record.pinned, division="halves", probe=Probe(values="", result="", machine={})
    )
    dead_run.write(pinned=pinned, spec=msgspec.structs.replace(dead_run.record.spec, processes=2))
    record = resume_as(dead_run, 1, 2)
    assert record.pinned == msgspec.structs.replace(pinned, division=None, probe=None)
    assert record.divisions == (PastDivision(3, "halves", 1),)
    assert "with 1 processes per worker in place of 2: from" in dead_run.events[-1].why
    assert dead_run.resume().divisions == record.divisions, "no step was made with the other division"


def test_the_divisions_of_steps_that_are_made_again_are_forgotten(dead_run):
    dead_run.write(divisions=(PastDivision(1, "quarters", 9), PastDivision(3, "halves", 5)))
    damage(dead_run.catalog, 3)
    record = resume_as(dead_run, 2)
    # Steps 2 and 3 were made by halves; the present division begins after step 3.
    assert record.divisions == (PastDivision(1, "quarters", 9), PastDivision(2, "halves", 5))


def test_a_resume_with_as_many_processes_keeps_the_division(dead_run):
    assert dead_run.resume().divisions == ()
    assert dead_run.record.pinned.division == ""


def test_an_accepted_change_may_divide_the_model_otherwise(dead_run):
    record = dead_run.resume(adapted=True)
    assert record.divisions == (PastDivision(3, "", 1),)


def test_a_damaged_checkpoint_is_skipped_by_name(dead_run):
    damage(dead_run.catalog, 3)
    assert dead_run.resume().resumed.step == 2
    (named,) = [line for line in dead_run.messages if "skipping" in line]
    assert f"skipping checkpoint {format_checkpoint_name(3)}: part-0.distcp: its checksum is" in named


def test_of_two_attempts_the_later_one_has_the_newer_checkpoint(dead_run):
    publish(dead_run.catalog, 1, resumed=1)
    assert dead_run.resume().resumed.checkpoint == format_checkpoint_name(1, 1)


def test_a_checkpoint_past_the_end_of_the_ledger_is_skipped(dead_run):
    """An earlier attempt wrote it, then went back to an older checkpoint."""
    publish(dead_run.catalog, 9)
    assert dead_run.resume().resumed.step == 3
    assert (
        f"skipping checkpoint {format_checkpoint_name(9)}: ledger.jsonl: ends at step 4"
        in dead_run.messages[0]
    )


def test_a_checkpoint_past_the_ledger_is_valid_if_the_run_is_not_resumed(dead_run):
    publish(dead_run.catalog, 9)
    assert find_newest_valid(dead_run.run_dir, dead_run.record.spec, dead_run.messages.append).step == 9


# -- refused, and nothing changed ----------------------------------------------------------------------------


def check_refused(dead_run, error, words, **options):
    before = dead_run.read_contents()
    with pytest.raises(error, match=words):
        dead_run.resume(**options)
    assert dead_run.read_contents() == before


def test_a_finished_run_cannot_be_resumed(dead_run):
    why = "ended by its script after step 4: it has converged"
    dead_run.write_events((*EVENTS, EventLine(time=104.0, kind="run.finished", why=why)))
    check_refused(dead_run, BadInput, f"has finished\n  means: {why}")


def test_a_run_without_checkpoints_cannot_be_resumed(dead_run):
    dead_run.write(spec=msgspec.structs.replace(dead_run.record.spec, checkpoints=None))
    check_refused(dead_run, BadInput, "--checkpoint-every never")


def test_an_unfinished_checkpoint_does_not_count(dead_run):
    for step in (2, 3):
        dead_run.catalog.storage.delete(f"{format_checkpoint_name(step)}/COMPLETE")
    assert dead_run.resume().resumed.checkpoint == ""


def test_if_all_checkpoints_are_damaged_the_newest_is_named(dead_run):
    for step in (2, 3):
        damage(dead_run.catalog, step)
    check_refused(dead_run, Damaged, f"checkpoint {format_checkpoint_name(3)} is damaged: part-0.distcp")


def test_a_run_without_its_ledger_cannot_be_resumed(dead_run):
    dead_run.run_dir.ledger.write_bytes(b"")
    check_refused(dead_run, Damaged, "ledger.jsonl: ends at step 0")


def test_a_changed_script_is_refused_unless_the_user_accepts_it(dead_run, script):
    script.write_text("import elastane  # better\n")
    check_refused(dead_run, BadInput, "has changed since the run done began")
    record = dead_run.resume(adapted=True)
    assert record.pinned is None, "the first worker says what is pinned now"
    assert record.resumed.step == 3


def test_a_run_that_failed_before_its_first_checkpoint_begins_again_with_its_mended_script(dead_run):
    for step in (2, 3):
        dead_run.catalog.delete(format_checkpoint_name(step))
    Path(dead_run.record.spec.script).write_text("import elastane  # mended\n")
    record = dead_run.resume(adapted=True)
    assert (record.resumed.step, record.resumed.adapted, record.pinned) == (0, True, None)
    assert dead_run.resume().resumed.adapted, "its steps are not compared with those of the script before"


@pytest.mark.parametrize(
    ("processes", "workers", "words"),
    [
        (4, 1, "too few for 1 workers of 4 processes"),
        (2, 2, "too few for 2 workers of 2 processes(.|\n)*--workers 1:1"),
        (1, 1, "--processes 1, and 2 processes of the run divide each matrix"),
    ],
)
def test_processes_without_virtual_ranks_or_with_other_matrices_are_refused(
    dead_run, processes, workers, words
):
    if processes == 1:
        pinned = msgspec.structs.replace(dead_run.record.pinned, sharing=2)
        dead_run.write(pinned=pinned, spec=msgspec.structs.replace(dead_run.record.spec, processes=2))
    before = dead_run.read_contents()
    with pytest.raises(BadInput, match=words):
        resume_as(dead_run, processes, workers)
    assert dead_run.read_contents() == before


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", range(1, 7))
def test_a_killed_resume_can_be_repeated(dead_run, monkeypatch, at):
    """The kill comes just before each of the writes to the disk."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == at:
            raise Killed
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    try:
        dead_run.resume()
    except Killed:
        monkeypatch.undo()
        dead_run.resume()
    else:
        assert at == 6, "the lost lines, the ledger and run.json, with their directory"
    assert dead_run.steps == [1, 2, 3]
    lost = read_lines(dead_run.run_dir.lost_ledger, decode_ledger_line, torn_tail=False)
    assert {line.step for line in lost} == {4}
    assert (dead_run.record.resumed.step, dead_run.events[-1].kind) == (3, "run.resumed")
    assert dead_run.record.resumed.first_term == 3
