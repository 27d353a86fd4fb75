"""Print how many machines the shop can spare on a day, as ``elastane run --host-discovery-script`` reads it.

In the season all machines but one serve customers. Without options the day is today. With ``--since`` and
``--year`` a year passes in some seconds, to see it.
"""

import argparse
import time
from datetime import date, timedelta

CALENDAR = (
    ((1, 1), 1),  # returns and the sale of January
    ((1, 20), 3),
    ((4, 1), 2),  # spring collection
    ((5, 1), 3),
    ((8, 15), 2),  # back to school
    ((9, 15), 3),
    ((11, 10), 1),  # Black Friday, then Christmas
)
"""The first month and day of each part of the year, and the machines that are idle in it."""


def count_idle_machines(day: date) -> int:
    """Return the machines that train on a day."""
    return [machines for first, machines in CALENDAR if first <= (day.month, day.day)][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", type=float, help="the time of a 1 January, in seconds since 1970")
    parser.add_argument("--year", type=float, default=40, help="seconds of a year")
    options = parser.parse_args()
    day = date.today()  # noqa: DTZ011 - the day at the shop
    if options.since is not None:
        passed = (time.time() - options.since) / options.year
        day = date(2027, 1, 1) + timedelta(days=int(365 * passed) % 365)
    print(f"localhost:{count_idle_machines(day)}")


if __name__ == "__main__":
    main()
