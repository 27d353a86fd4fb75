"""The rule of which refusals get a line in the audit log. Pure.

The first refusals of a token get a line each. Further ones are counted: a line has their number at each power
of ten, and another one at the end of the hour. So a token that is always refused costs about thirty short
lines an hour, and no refusal is missing from the sum.
"""

import msgspec

WINDOW_S = 3600.0
"""Length of the window in which the refusals of a token are counted."""
ONE_BY_ONE = 20
"""Number of refusals of a token in a window that get a line each."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal, as the audit log has it.

    Args:
        visible: the answer showed that the target exists. Other refusals are counted apart, and only
            operators see their sums. A team's admin could otherwise learn what exists in other teams.
    """

    action: str
    target: str
    reason: str
    visible: bool = True


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The refusals of one token within a window.

    Args:
        since_s: begin of the window.
        written: number of those that lines cover.
    """

    since_s: float
    count: int
    written: int
    last: Refused

    @property
    def pending(self) -> int:
        """Number of refusals that no line covers yet."""
        return self.count - self.written

    def mark_written(self) -> "Tally":
        return msgspec.structs.replace(self, written=self.count)


def count_refusal(tally: Tally | None, refused: Refused, now_s: float) -> Tally:
    """Return the tally after one more refusal; None: the refusal begins a window."""
    if tally is None:
        return Tally(since_s=now_s, count=1, written=0, last=refused)
    return msgspec.structs.replace(tally, count=tally.count + 1, last=refused)


def is_line_due(tally: Tally) -> bool:
    """Return whether to write a line now, which covers the newest refusal and all that are pending."""
    return tally.count <= ONE_BY_ONE or _is_power_of_ten(tally.count)


def is_window_over(tally: Tally, now_s: float) -> bool:
    """Return whether the window has ended. A clock that was set back ends it too."""
    return not tally.since_s <= now_s < tally.since_s + WINDOW_S


def _is_power_of_ten(count: int) -> bool:
    digits = str(count)
    return digits == "1" + "0" * (len(digits) - 1)
