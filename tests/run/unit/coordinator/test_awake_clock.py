"""The clock of judgements counts no time in which the coordinator was stopped."""

from elastane.run.coordinator.server import AwakeClock


def test_a_stopped_process_does_not_age_what_it_has_heard():
    times = iter([100.0, 100.1, 100.3, 160.3, 160.4])
    clock = AwakeClock(0.5, lambda: next(times))
    readings = [clock.read() for _ in range(4)]
    assert [round(reading, 6) for reading in readings] == [0.1, 0.3, 0.8, 0.9]
