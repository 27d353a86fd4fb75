"""The silence that a run allows, and the times in proportion to it."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.coordinator.reachability import REPORTS_S
from elastane.run.coordinator.server import TICK_S
from elastane.run.machines.succession.silence import LONGEST_SILENCE_S
from elastane.run.nouns.silence_limits import LISTEN_S, SilenceLimit, SilenceLimits
from elastane.run.nouns.spec import RunSpec

BOUNDS = get_args(SilenceLimit)[1]


@given(st.floats(BOUNDS.ge, BOUNDS.le))
def test_no_limit_is_out_of_proportion(limit_s: float) -> None:
    limits = SilenceLimits(limit_s)
    # The coordinator decides on each report before the next one comes.
    assert limits.report_every_s > TICK_S
    # A late worker has missed one report, and a quiet one two.
    assert limits.report_every_s < limits.late_s < 2 * limits.report_every_s < limits.quiet_s
    assert REPORTS_S < limits.quiet_s < limits.limit_s / 2
    # A pause of the coordinator makes no worker quiet that had not missed a report.
    assert limits.longest_gap_s + limits.report_every_s < limits.quiet_s
    # The other agents have answered, and the coordinator has listened, before anything is lost.
    assert limits.ask_after_s + limits.answer_s <= limits.limit_s * (1 + 1e-9)
    assert LISTEN_S + limits.check_every_s <= limits.limit_s * (1 + 1e-9)
    assert 2 * limits.check_every_s < limits.limit_s
    assert sum(limits.pings_s) <= limits.limit_s * (1 + 1e-9)
    # The larger part of a run takes charge before the smaller one, and both before members count as dead.
    assert 4 * limits.turn_s < limits.minority_s
    assert limits.limit_s + limits.minority_s < limits.unseen_s < min(limits.unheard_s, LONGEST_SILENCE_S + 1)
    assert limits.unseen_s + limits.limit_s + limits.minority_s < limits.unheard_s


def test_a_run_without_another_limit_has_the_usual_one() -> None:
    spec = RunSpec(name="run", script="train.py")
    assert spec.silence == SilenceLimits(3.0)
    assert spec.silence.report_every_s == 0.5
    assert msgspec.structs.replace(spec, silence_s=1.5).silence.report_every_s == 0.25


@pytest.mark.parametrize(
    "hostile", ["0", "-3.0", "1.4", "9.1", "1e300", "1e999", "NaN", "null", '"3"', "true"]
)
def test_a_run_whose_file_allows_another_silence_is_refused(hostile: str) -> None:
    content = '{"name": "run", "script": "train.py", "silence_s": %s}'
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(content % hostile, type=RunSpec)
    assert msgspec.json.decode(content % "1.5", type=RunSpec).silence.limit_s == 1.5
