"""The calendar: reservations of devices for other purposes at certain times."""

from datetime import datetime, time
from typing import Literal

import msgspec

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Weekly(msgspec.Struct, frozen=True, kw_only=True, tag="weekly", forbid_unknown_fields=True):
    """The same hours on some days of every week.

    Args:
        days: on which the hours begin.
        start: local time of day.
        end: local time of day; not after ``start``: on the next day.
        zone: IANA name of the time zone, ``Europe/Berlin``.
    """

    days: tuple[Day, ...] = DAYS[:5]
    start: time
    end: time
    zone: str = "UTC"


class Once(msgspec.Struct, frozen=True, kw_only=True, tag="once", forbid_unknown_fields=True):
    """The time between two moments, each with its time zone."""

    start: datetime
    end: datetime


class Reservation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Devices that jobs cannot have at certain times: inference from 9 to 18 on working days.

    Args:
        name: unique.
        pool: the pool of the devices.
        devices: how many.
        when: the times.
        announced_ahead_s: jobs begin to give the devices back this long before; at least the longest graceful
            shutdown of the jobs that may hold them, at most 30 days.
    """

    name: str
    pool: str
    devices: int
    when: Weekly | Once
    announced_ahead_s: float = 900.0
