"""The bytes that a worker exchanges with other machines in a step."""

from elastane.run.nouns.control import TrafficBytes
from elastane.run.nouns.membership import Generation, Member
from elastane.run.worker.links.frames import StreamBytes
from elastane.run.worker.links.traffic import WINDOW_STEPS, TrafficMeter


def make_meter() -> tuple[TrafficMeter, dict[int, StreamBytes]]:
    """Return the meter of worker 0, with peer 1 on its machine and 100 on another."""
    streams = {1: StreamBytes(), 100: StreamBytes()}
    meter = TrafficMeter(0, streams)
    nodes = {0: "a", 1: "a", 100: "b"}
    members = tuple(Member(worker, "127.0.0.1", 1, node=node) for worker, node in nodes.items())
    meter.place(Generation(3, 1, members, planned=True))
    return meter, streams


def exchange(streams: dict[int, StreamBytes], sent: int, received: int = 0) -> None:
    streams[1].sent += 10**6
    streams[100].sent += sent
    streams[100].received += received


def test_only_bytes_to_other_machines_count() -> None:
    meter, streams = make_meter()
    for step in range(WINDOW_STEPS + 1):
        assert meter.find_bytes(3) is None
        exchange(streams, 50, 60)
        meter.end_step(3, step)
    assert meter.find_bytes(3) == TrafficBytes(sent=50, received=60)


def test_copied_state_does_not_count() -> None:
    meter, streams = make_meter()
    for step in range(WINDOW_STEPS + 1):
        exchange(streams, 10**9 if step < WINDOW_STEPS // 2 else 50)
        meter.end_step(3, step)
    assert meter.find_bytes(3) == TrafficBytes(sent=50, received=0)


def test_each_generation_is_measured_anew() -> None:
    meter, streams = make_meter()
    for step in range(WINDOW_STEPS + 1):
        exchange(streams, 50)
        meter.end_step(3, step)
    meter.end_step(4, WINDOW_STEPS + 1)
    assert meter.find_bytes(3) is None
    assert meter.find_bytes(4) is None


def test_rounds_between_steps_belong_to_the_step_that_follows() -> None:
    meter, streams = make_meter()
    for step in range(WINDOW_STEPS + 1):
        exchange(streams, 50)
        meter.end_step(3, step)
        exchange(streams, 7)
        meter.end_step(3, step)
    assert meter.find_bytes(3) == TrafficBytes(sent=57, received=0)
