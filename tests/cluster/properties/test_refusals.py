"""Any number of refusals of a token takes few lines, which count every refusal."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.access.refusals import (
    ONE_BY_ONE,
    WINDOW_S,
    Refused,
    count_refusal,
    is_line_due,
    is_window_over,
)

REFUSED = Refused(action="job.read", target="job train", reason="it belongs to another team")


@given(st.integers(1, 30_000))
def test_lines_of_one_window_are_few_and_add_up_to_all_refusals(refusals):
    tally, lines = None, []
    for _ in range(refusals):
        tally = count_refusal(tally, REFUSED, 0.0)
        if is_line_due(tally):
            lines.append(tally.pending)
            tally = tally.mark_written()
    assert sum(lines) + tally.pending == refusals
    assert len(lines) <= ONE_BY_ONE + len(str(refusals))


@given(st.floats(-1e6, 1e6, allow_nan=False))
def test_a_window_lasts_an_hour_and_ends_when_the_clock_is_set_back(later_s):
    over = is_window_over(count_refusal(None, REFUSED, 0.0), later_s)
    assert over == (later_s < 0 or later_s >= WINDOW_S)
