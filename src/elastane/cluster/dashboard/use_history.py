"""The use of the pools over time, in stretches; a stretch that is over is asked for once."""

from collections.abc import Mapping

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.nouns.usage import UsageRow
from elastane.common.durations import DAY_S

STRETCH_S = 1800.0
STRETCHES = 48
DAYS = 30


class UseHistory:
    """Device-seconds by pool for each stretch of the last day.

    Attributes:
        rows: by the number of the stretch since 1970, its usage by pool; replaced as a whole.
    """

    def __init__(self) -> None:
        self.rows: Mapping[int, tuple[UsageRow, ...]] = {}
        self._whole: dict[int, tuple[UsageRow, ...]] = {}

    def list_missing(self, now_s: float) -> list[int]:
        """Return the stretches to ask for, the oldest first; the last one is the present one."""
        present = int(now_s // STRETCH_S)
        self._whole = {number: rows for number, rows in self._whole.items() if number > present - STRETCHES}
        return [n for n in range(present - STRETCHES + 1, present + 1) if n not in self._whole]

    def read(self, cluster: Cluster, number: int, now_s: float) -> None:
        """Ask for a stretch, and show all of them after the present one."""
        begin_s = number * STRETCH_S
        found = cluster.usage("pool", from_s=begin_s, until_s=begin_s + STRETCH_S).rows
        if begin_s + STRETCH_S <= now_s:
            self._whole[number] = found
        else:
            self.rows = {**self._whole, number: found}

    def list_devices(self, pool: str, now_s: float) -> list[tuple[float, float, float]]:
        """Return ``(begin, devices, borrowed devices)`` of each stretch, as means; the oldest first."""
        found = []
        for number, rows in sorted(self.rows.items()):
            begin_s = number * STRETCH_S
            lasted_s = min(STRETCH_S, now_s - begin_s)
            mine = [row for row in rows if row.pool == pool]
            if lasted_s > 1:
                used, borrowed = (
                    sum(row.device_s for row in mine),
                    sum(row.borrowed_device_s for row in mine),
                )
                found.append((begin_s, used / lasted_s, borrowed / lasted_s))
        return found


class DayUses:
    """Device-seconds and cost of each of the last thirty days, in days of UTC."""

    def __init__(self) -> None:
        self._whole: dict[int, tuple[float, float]] = {}

    def read(self, cluster: Cluster, now_s: float) -> list[tuple[float, float, float]]:
        """Return ``(begin, device-seconds, cost)`` of each day, the oldest first."""
        today = int(now_s // DAY_S)
        found = []
        for day in range(today - DAYS + 1, today + 1):
            known = self._whole.get(day)
            if known is None:
                rows = cluster.usage("pool", from_s=day * DAY_S, until_s=(day + 1) * DAY_S).rows
                known = sum(row.device_s for row in rows), sum(row.cost for row in rows)
                if day < today:
                    self._whole[day] = known
            found.append((day * DAY_S, *known))
        return found
