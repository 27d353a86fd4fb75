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


def test_bytes_between_sites_are_counted_since_the_worker_began() -> None:
    streams = {1: StreamBytes(5, 0), 2: StreamBytes(7, 0), 3: StreamBytes(11, 0), 4: StreamBytes(13, 0)}
    meter = TrafficMeter(0, streams)
    assert meter.count_crossings() == {}
    sites = {0: ("eu", "us"), 1: ("eu",), 2: ("us",), 3: ("us", "eu"), 4: ()}
    members = tuple(Member(worker, "127.0.0.1", 1, sites=of) for worker, of in sites.items())
    meter.place(Generation(1, 1, members[:3], planned=True, leaving=members[3:]))
    assert meter.count_crossings() == {"us": 18}
    streams[2].sent += 100
    # A worker that is gone stays in the sum.
    meter.place(Generation(2, 1, members[:2], planned=False))
    assert meter.count_crossings() == {"us": 118}
