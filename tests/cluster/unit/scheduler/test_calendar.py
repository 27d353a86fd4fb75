"""The times of reservations, also on the days on which clocks change."""

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.nouns.config import DAYS, Reservation, Weekly
from elastane.cluster.scheduler.calendar import find_reservation_peak, list_reservation_times

DAY_S = 24 * 3600.0


def held(start, end, day, zone="Europe/Berlin", days=1.0):
    """Return the times of a daily reservation that begin in the days from ``day`` on."""
    from_s = day.timestamp()
    daily = Weekly(start=start, end=end, zone=zone, days=DAYS)
    one = Reservation(name="r", pool="a", devices=1, when=daily)
    found = list_reservation_times(one, from_s, from_s + days * DAY_S)
    return [(begins_s, ends_s) for begins_s, ends_s in found if begins_s >= from_s]


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        ("02:30-03:15", "03:30-04:15"),
        ("02:15-02:45", "03:15-03:45"),
        ("01:30-02:30", "01:30-03:30"),
        ("02:30-18:00", "03:30-18:00"),
        ("01:00-04:00", "01:00-04:00"),
        ("03:00-03:15", "03:00-03:15"),
    ],
)
def test_a_skipped_time_is_read_as_if_the_clocks_had_not_changed(hours, expected):
    berlin = ZoneInfo("Europe/Berlin")
    start, end = (time.fromisoformat(one) for one in hours.split("-"))
    (one,) = held(start, end, datetime(2026, 3, 29, tzinfo=berlin), days=0.9)
    assert "-".join(f"{datetime.fromtimestamp(at_s, berlin):%H:%M}" for at_s in one) == expected


# Clocks change at night, by up to a whole day.
nights = st.integers(0, 16).map(lambda quarters: time(quarters // 4, 15 * (quarters % 4)))


@given(nights, nights, st.sampled_from(sorted(available_timezones())), st.integers(2000, 2030))
def test_a_reservation_always_ends_after_its_begin(start, end, zone, year):
    for begins_s, ends_s in held(start, end, datetime(year, 1, 1, tzinfo=UTC), zone=zone, days=370.0):
        assert 0 < ends_s - begins_s <= 2 * DAY_S


def test_a_reservation_that_begins_again_before_it_has_ended_holds_its_devices_once():
    """Daily from 03:00 to 02:45, which is 03:45 on the day on which clocks go forward."""
    daily = Weekly(days=DAYS, start=time(3), end=time(2, 45), zone="Europe/Berlin")
    one = Reservation(name="r", pool="a", devices=3, when=daily, announced_ahead_s=0)
    other = Reservation(name="s", pool="a", devices=2, when=daily, announced_ahead_s=0)
    twice_s = datetime(2026, 3, 29, 1, 10, tzinfo=UTC).timestamp()
    assert len(list(list_reservation_times(one, twice_s, twice_s))) == 2
    begun_s = datetime(2026, 3, 28, 2, tzinfo=UTC).timestamp()
    assert find_reservation_peak([one], "a", twice_s) == (3, ((one, begun_s),))
    assert find_reservation_peak([one, other], "a", twice_s) == (5, ((one, begun_s), (other, begun_s)))
