"""The calendar: the reserved devices of a pool, now and soon."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from elastane.cluster.nouns.config import DAYS, Once, Reservation, Weekly


def find_reservation_peak(
    reservations: Iterable[Reservation], pool: str, now_s: float, further_s: float = 0.0
) -> tuple[int, tuple[tuple[Reservation, float], ...]]:
    """Find the moment at which most devices are reserved, among the times that are announced by now.

    Args:
        reservations: the calendar, with unique names.
        further_s: how far beyond the announcements to look.

    Returns:
        The devices, and the reservations that add up to them, each with the time when it begins.
    """
    mine = [reservation for reservation in reservations if reservation.pool == pool]
    if not mine:
        return 0, ()
    found = [
        (max(start_s, now_s), end_s, start_s, reservation)
        for reservation in mine
        for start_s, end_s in list_reservation_times(
            reservation, now_s, now_s + reservation.announced_ahead_s + further_s
        )
    ]
    worst: tuple[int, tuple[tuple[Reservation, float], ...]] = (0, ())
    for moment_s in sorted({entry[0] for entry in found}):
        # When clocks go forward a reservation may begin again before it has ended; it counts once.
        together: dict[str, tuple[Reservation, float]] = {}
        for begin_s, end_s, start_s, reservation in found:
            if begin_s <= moment_s < end_s:
                together.setdefault(reservation.name, (reservation, start_s))
        devices = sum(reservation.devices for reservation, _ in together.values())
        if devices > worst[0]:
            worst = devices, tuple(together.values())
    return worst


def list_reservation_times(
    reservation: Reservation, from_s: float, until_s: float
) -> Iterator[tuple[float, float]]:
    """Yield start and end of each time the reservation holds within ``[from_s, until_s]``."""
    match reservation.when:
        case Once(start=start, end=end):
            candidates = [(start.timestamp(), end.timestamp())]
        case Weekly() as weekly:
            candidates = list(_list_weekly_times(weekly, from_s, until_s))
    for start_s, end_s in candidates:
        if end_s > from_s and start_s <= until_s:
            yield start_s, end_s


def _list_weekly_times(weekly: Weekly, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of each week's times.

    A time that the clocks skip is read as if they had not been changed; so is an end that the start then
    passes.
    """
    zone = ZoneInfo(weekly.zone)
    # Begin with the day before, because its times may reach over midnight.
    day = datetime.fromtimestamp(from_s, UTC).astimezone(zone).date() - timedelta(days=1)
    last = datetime.fromtimestamp(until_s, UTC).astimezone(zone).date()
    while day <= last:
        if DAYS[day.weekday()] in weekly.days:
            end_day = day if weekly.end > weekly.start else day + timedelta(days=1)
            start = datetime.combine(day, weekly.start, zone)
            end = datetime.combine(end_day, weekly.end, zone)
            if end.timestamp() <= start.timestamp():
                # The start is in the skipped hour, and an end soon after that hour comes before it.
                end = end.replace(tzinfo=timezone(start.utcoffset() or timedelta()))
            yield start.timestamp(), end.timestamp()
        day += timedelta(days=1)
