"""Which refusals get a line of their own in the audit log. Pure.

The first refusals of a token are written one by one. One that goes on trying is counted: a line tells how
often at each power of ten, and another one at the end of the hour. So a token that is refused for ever
costs some thirty short lines an hour, and no refusal is missing from the sum.
"""

import msgspec

WINDOW_S = 3600.0
"""A token is counted for so long, then begins anew."""
ONE_BY_ONE = 20
"""Refusals of a token within a window that get a line each."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal, as the audit log has it.

    Args:
        action: what was asked for.
        target: with what.
        reason: why not.
        visible: whoever asked was told that the target exists. Other refusals are counted apart, and their
            sums are for operators: else a team's admin could read from them what exists elsewhere.
    """

    action: str
    target: str
    reason: str
    visible: bool = True


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The refusals of one token within a window.

    Args:
        since_s: begin of the window.
        count: all of them.
        written: those that lines tell of.
        last: the newest one.
    """

    since_s: float
    count: int
    written: int
    last: Refused

    @property
    def pending(self) -> int:
        """Refusals that no line tells of yet."""
        return self.count - self.written

    def all_written(self) -> "Tally":
        return msgspec.structs.replace(self, written=self.count)


def count_refusal(tally: Tally | None, refused: Refused, now_s: float) -> Tally:
    """The tally after one more refusal; None: the first one of a window."""
    if tally is None:
        return Tally(since_s=now_s, count=1, written=0, last=refused)
    return msgspec.structs.replace(tally, count=tally.count + 1, last=refused)


def is_line_due(tally: Tally) -> bool:
    """Whether a line is written for the newest refusal, and for those that are pending with it."""
    return tally.count <= ONE_BY_ONE or _is_power_of_ten(tally.count)


def is_window_over(tally: Tally, now_s: float) -> bool:
    """Whether its window has ended. A clock that was put back ends it too."""
    return not tally.since_s <= now_s < tally.since_s + WINDOW_S


def _is_power_of_ten(count: int) -> bool:
    digits = str(count)
    return digits == "1" + "0" * (len(digits) - 1)
