"""What a coordinator counts of a run."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastane.common.exposition import encode_readings
from elastane.run.coordinator.run_meters import RunMeters
from elastane.run.nouns import run_metrics
from elastane.run.nouns.control import Answer, ProcessInfo
from elastane.run.nouns.records import EventLine

from .conftest import make_line

PEER = ProcessInfo(role="worker", pid=1, worker=0, state="member", sent_bytes=10, received_bytes=20)
STATUS = Answer(ok=True, state="training", step=7, steps=100, loss=0.5, target=2, processes=(PEER, PEER))


def event(kind, time, **fields):
    return EventLine(time=time, kind=kind, **fields)


def test_a_resize_lasts_from_its_request_to_the_first_step_with_that_number_of_workers():
    meters = RunMeters()
    meters.add_event(event("resize.requested", 100.0), 3)
    # The first of two joiners is early.
    meters.add_event(event("generation.started", 101.0, workers=(0, 1), pause_ms={0: 4.0}), 3)
    meters.add_event(event("generation.started", 103.0, workers=(0, 1, 2), pause_ms={0: 6.0, 1: 20.0}), 3)
    meters.add_event(event("generation.started", 200.0, workers=(0, 1, 2)), 3)
    found = meters.read(STATUS)
    resize, pause = found[run_metrics.RESIZE_TIME][()], found[run_metrics.PAUSE_TIME][()]
    assert (sum(resize.counts), resize.sum) == (1, 3.0)
    assert (sum(pause.counts), pause.sum) == (2, pytest.approx(0.024))


def test_a_recovery_lasts_from_the_first_of_several_deaths():
    meters = RunMeters()
    meters.add_event(event("worker.died", 10.0, workers=(1,)), 3)
    meters.add_event(event("worker.hung", 10.5, workers=(2,)), 3)
    meters.add_event(event("generation.started", 11.0, workers=(0,)), 3)
    found = meters.read(STATUS)
    assert found[run_metrics.RECOVERY_TIME][()].sum == 1.0
    assert found[run_metrics.EVENTS]["worker.died",] == 1
    assert found[run_metrics.EVENTS]["worker.hung",] == 1


def test_a_new_coordinator_knows_the_newest_checkpoint_and_counts_anew():
    meters = RunMeters()
    saved = event("checkpoint.saved", 50.0, detail={"name": "step-4", "step": 4, "bytes": 1000})
    meters.begin([saved, event("worker.died", 60.0)], make_line(6))
    found = meters.read(STATUS)
    assert found[run_metrics.CHECKPOINT_TIME] == {(): 50.0}
    assert found[run_metrics.CHECKPOINT_BYTES] == {(): 1000}
    assert found[run_metrics.WRITTEN_BYTES] == {(): 0}
    assert found[run_metrics.STEPS] == {(): 0}
    assert run_metrics.EVENTS not in found
    meters.add_step(make_line(7))
    found = meters.read(STATUS)
    assert (found[run_metrics.STEPS], found[run_metrics.SAMPLES]) == ({(): 1}, {(): 64})
    assert found[run_metrics.STEP_TIME] == {(): 0.1}


def test_a_page_has_the_state_of_the_run_and_few_series():
    body, _ = encode_readings(RunMeters().read(STATUS))
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert values["elastane_run_workers", "member"] == 2
    assert values["elastane_run_step_traffic_bytes", "received"] == 40
    assert values["elastane_run_loss",] == 0.5
    assert values["elastane_run_state", "training"] == 1
    assert len(values) < 100
