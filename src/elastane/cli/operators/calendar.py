"""``elastane calendar``: reservations, which take devices from jobs at certain times."""

import time as clock
from collections.abc import Iterable
from datetime import datetime, time
from typing import Annotated, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from elastane.cli.command import AsJson, make_group
from elastane.cli.operators.declarations import Name, add_document_commands, change_document
from elastane.cli.option_values import read_duration_s
from elastane.cli.options import expand_options, option, replace_given
from elastane.cluster.nouns.config import DAYS, Day, Once, Reservation, Weekly
from elastane.cluster.scheduler.calendar import list_reservation_times
from elastane.common.durations import format_duration
from elastane.common.errors import BadInput

SHORTEST_ROW = 3
"""Two days are a list."""
SOON_S = 8 * 24 * 3600.0
"""A span that contains the next time of every weekly reservation."""


class ReservationTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The options for the times of a reservation, as typed; None: not typed."""

    days: Annotated[
        str | None, option("DAYS", "Days of the week: mon-fri, or sat,sun. Default: mon-fri.")
    ] = None
    begin: Annotated[str | None, option("HH:MM", "Beginning on each of these days.", "--from")] = None
    until: Annotated[
        str | None, option("HH:MM", "End on each of these days; on the next day if it is not after --from.")
    ] = None
    zone: Annotated[str | None, option("ZONE", "Time zone, such as Europe/Berlin. Default: UTC.")] = None
    start: Annotated[
        str | None, option("TIME", "Beginning of a reservation that does not repeat: 2026-12-24T08:00.")
    ] = None
    end: Annotated[str | None, option("TIME", "End of a reservation that does not repeat.")] = None


@expand_options
def set_reservation(
    name: Name,
    *,
    pool: Annotated[str | None, option("POOL", "Pool of the devices.")] = None,
    devices: Annotated[int | None, option("N", "Number of devices.", min=1)] = None,
    options: ReservationTimes,
    announce: Annotated[
        str | None,
        option("DURATION", "Jobs begin to leave this long before the reservation. Default: 15min."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Declare a reservation, or change the given fields of one.

    A reservation with --from and --until repeats every week; one with --start
    and --end takes place once. Defaults are for a new reservation.
    """

    def change_reservation(before: Reservation | None) -> Reservation:
        when = build_schedule(options, None if before is None else before.when)
        if before is None and (pool is None or devices is None):
            raise BadInput(
                f"there is no reservation {name} yet, so it needs --pool and --devices",
                do=f"elastane calendar set {name} --pool h100 --devices 32 --from 09:00 --until 18:00",
            )
        known = before or Reservation(name=name, pool=pool or "", devices=devices or 0, when=when)
        ahead_s = None if announce is None else read_duration_s("--announce", announce)
        return replace_given(known, when=when, pool=pool, devices=devices, announced_ahead_s=ahead_s)

    change_document("reservation", Reservation, name, change_reservation, as_json=as_json)


def build_schedule(times: ReservationTimes, before: Weekly | Once | None) -> Weekly | Once:
    """Return the times of a reservation after a change; ``before`` is None for a new one."""
    weekly = any(typed is not None for typed in (times.days, times.begin, times.until))
    once = times.start is not None or times.end is not None
    if weekly and once:
        raise BadInput(
            "--start and --end cannot be combined with --days, --from and --until",
            means="the former are for one that takes place once, the latter for one that repeats weekly",
            do="give only one of the two groups",
        )
    if once or (not weekly and isinstance(before, Once)):
        return _build_once(times, before if isinstance(before, Once) else None)
    return _build_weekly(times, before if isinstance(before, Weekly) else None)


def _build_once(times: ReservationTimes, before: Once | None) -> Once:
    start = _parse_start_or_end("--start", times.start, times.zone) or (before.start if before else None)
    end = _parse_start_or_end("--end", times.end, times.zone) or (before.end if before else None)
    if start is None or end is None:
        raise BadInput("one of --start and --end is missing", do="give both")
    return Once(start=start, end=end)


def _build_weekly(times: ReservationTimes, before: Weekly | None) -> Weekly:
    start = _parse_time_of_day("--from", times.begin) or (before.start if before else None)
    end = _parse_time_of_day("--until", times.until) or (before.end if before else None)
    if start is None or end is None:
        raise BadInput(
            "the reservation has no times",
            do="give --from 09:00 --until 18:00 for every week, or --start and --end for once",
        )
    days = (before.days if before else DAYS[:5]) if times.days is None else parse_days(times.days)
    zone = (before.zone if before else "UTC") if times.zone is None else times.zone
    return Weekly(days=days, start=start, end=end, zone=zone)


def parse_days(text: str) -> tuple[Day, ...]:
    """Return the days of a text such as ``mon-fri``, ``sat,sun`` or ``fri-mon``."""
    found: list[Day] = []
    for part in text.lower().split(","):
        first, _, last = part.strip().partition("-")
        if first not in get_args(Day) or (last or first) not in get_args(Day):
            raise BadInput(f"invalid --days: {text!r}", do="write for example mon-fri, or mon,wed,sat")
        begin = DAYS.index(first)
        count = (DAYS.index(last or first) - begin) % 7 + 1
        found += [DAYS[(begin + further) % 7] for further in range(count)]
    return tuple(dict.fromkeys(found))


def format_days(days: Iterable[Day]) -> str:
    """Return days as text: ``mon-fri``."""
    wanted = [day for day in DAYS if day in set(days)]
    numbers = [DAYS.index(day) for day in wanted]
    row = len(wanted) >= SHORTEST_ROW and numbers[-1] - numbers[0] == len(wanted) - 1
    return f"{wanted[0]}-{wanted[-1]}" if row else ",".join(wanted)


def _parse_time_of_day(option: str, text: str | None) -> time | None:
    if text is None:
        return None
    try:
        return time.fromisoformat(text.zfill(5))
    except ValueError:
        raise BadInput(f"invalid time of day for {option}: {text!r}", do="write for example 09:00") from None


def _parse_start_or_end(option: str, text: str | None, zone: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=ZoneInfo(zone or "UTC"))
    except (ZoneInfoNotFoundError, OSError):
        raise BadInput(
            f"invalid --zone: {zone!r} is not a time zone", do="write for example Europe/Berlin"
        ) from None
    except ValueError:
        raise BadInput(
            f"invalid time for {option}: {text!r}", do="write for example 2026-12-24T08:00"
        ) from None


def format_schedule(when: Weekly | Once) -> str:
    """Return the times of a reservation as text: ``mon-fri 09:00-18:00 Europe/Berlin``."""
    match when:
        case Weekly(days=days, start=start, end=end, zone=zone):
            return f"{format_days(days)} {start:%H:%M}-{end:%H:%M} {zone}"
        case Once(start=start, end=end):
            end = end.astimezone(start.tzinfo)
            same_day = "" if end.date() == start.date() else f"{end:%Y-%m-%d} "
            return f"{start:%Y-%m-%d %H:%M}-{same_day}{end:%H:%M} {start:%Z}"


def format_next(reservation: Reservation, now_s: float) -> str:
    """Return when a reservation ends or begins next, in the terminal's time zone, as text."""
    until_s = now_s + SOON_S if isinstance(reservation.when, Weekly) else float("inf")
    coming = next(iter(list_reservation_times(reservation, now_s, until_s)), None)
    if coming is None:
        return "over"
    start_s, end_s = coming
    if start_s <= now_s:
        return f"until {_format_day(end_s, now_s)}"
    announced = start_s - reservation.announced_ahead_s <= now_s
    return f"from {_format_day(start_s, now_s)}" + (", announced" if announced else "")


def _format_day(at_s: float, now_s: float) -> str:
    """Return a time as ``24 Dec 08:00`` in the terminal's time zone, with the year unless it is this one."""
    at, now = (datetime.fromtimestamp(seconds).astimezone() for seconds in (at_s, now_s))
    return f"{at.day} {at:%b} {at:%H:%M}" if at.year == now.year else f"{at.day} {at:%b %Y %H:%M}"


calendar = make_group(
    "calendar",
    """
Manage reservations: devices that jobs cannot use at certain times.

When a reservation is announced, jobs begin to shrink and give back its devices.

  $ elastane calendar set inference --pool h100 --devices 32 --days mon-fri
      --from 09:00 --until 18:00 --zone Europe/Berlin --announce 15min
  $ elastane calendar set repair --pool h100 --devices 8
      --start 2026-12-01T08:00 --end 2026-12-01T12:00 --zone Europe/Berlin
""",
    {"set": set_reservation},
)
add_document_commands(
    calendar,
    "reservation",
    Reservation,
    {
        "reservation": lambda reservation: reservation.name,
        "pool": lambda reservation: reservation.pool,
        "devices": lambda reservation: str(reservation.devices),
        "announced": lambda reservation: f"{format_duration(reservation.announced_ahead_s, parts=4)} before",
        "next": lambda reservation: format_next(reservation, clock.time()),
        "when": lambda reservation: format_schedule(reservation.when),
    },
    numbers=("devices",),
)
