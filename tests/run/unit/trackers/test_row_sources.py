"""The rows of a run, read from its ledger and events while these change."""

import math

import msgspec
import pytest

from elastane.common.untrusted_data import Malformed
from elastane.run.trackers.metric_rows import merge_rows, select_missing
from elastane.run.trackers.row_sources import RecordedRows
from tests.hostile import replace_with_stand_in

from .conftest import collect, make_evaluation, make_line


def read_all(source: RecordedRows):
    rows = []
    while fresh := source.read():
        rows += fresh
    return rows


def test_each_line_of_the_ledger_is_a_row(recorded, expected):
    recorded.add(*map(make_line, range(1, 6)))
    assert collect(read_all(recorded.open_source())) == expected(5)


def test_a_row_has_the_exact_loss_even_if_it_is_not_finite(recorded):
    recorded.add(make_line(1, loss=None, loss_hex="inf", logged={"norm": None}))
    ((row),) = read_all(recorded.open_source())
    assert row.values["train/loss"] == math.inf
    assert math.isnan(row.values["norm"])


def test_a_torn_line_waits_for_its_rest(recorded, expected):
    whole = b"".join(line for line in map(encode_line, (1, 2)))
    recorded.add(whole[:-20])
    source = recorded.open_source()
    assert collect(source.read()) == expected(1)
    assert source.read() == []
    recorded.add(whole[-20:])
    assert [row.step for row in source.read()] == [2]
    assert recorded.broken == []


def encode_line(step):
    return msgspec.json.encode(make_line(step)) + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"\xff\xfe\n",
        b"{}\n",
        encode_line(1_000_000),
        encode_line(3).replace(b'"loss_hex":"0x1.5555555555555p-2"', b'"loss_hex":"0x1p99999"'),
    ],
    ids=["text", "bytes", "empty", "the line of another step", "a loss beyond all numbers"],
)
def test_a_broken_line_costs_only_its_own_step(recorded, line):
    recorded.add(make_line(1), make_line(2), line, make_line(4))
    assert [row.step for row in read_all(recorded.open_source())] == [1, 2, 4]
    assert recorded.broken == [3]


@pytest.mark.parametrize("name", ["../../escape", "a/b", "", "x" * 300, "a b"])
def test_a_name_that_no_script_can_give_is_left_out(recorded, name):
    recorded.add(make_line(1, logged={name: 1.0, "fine": 2.0}))
    recorded.add(make_evaluation(1, "e1", **{name: 1.0, "fine": 2.0}))
    (row,) = read_all(recorded.open_source())
    assert {one for one in row.values if not one.startswith("train/")} == {"fine", "evaluation/fine"}


def test_a_resume_repeats_only_what_is_recorded_already(recorded, expected):
    """The ledger that a resume has cut may have grown beyond its old size when it is read again."""
    recorded.add(*map(make_line, range(1, 9)))
    source = recorded.open_source()
    rows, known = select_missing(read_all(source), {})
    recorded.cut(5)
    recorded.add(*map(make_line, range(6, 13)))
    more, _ = select_missing(read_all(source), known)
    assert collect([*rows, *more]) == expected(12)


def test_steps_before_the_first_of_interest_are_not_decoded(recorded):
    recorded.add(b"not json\n", make_line(2), make_line(3))
    assert [row.step for row in read_all(recorded.open_source(2))] == [2, 3]
    assert recorded.broken == []


def test_an_evaluation_comes_in_the_row_of_its_step(recorded):
    recorded.add(make_evaluation(2, "e1", correct=5.0))
    recorded.add(make_line(1))
    source = recorded.open_source()
    assert [row.step for row in source.read()] == [1]
    recorded.add(make_line(2))
    ((row),) = source.read()
    assert (row.step, row.values["evaluation/correct"]) == (2, 0.5)


def test_an_evaluation_after_the_last_step_comes_later(recorded):
    recorded.add(make_line(1))
    source = recorded.open_source()
    assert [row.step for row in source.read()] == [1]
    recorded.add(make_evaluation(1, "e1", correct=5.0))
    ((row),) = source.read()
    assert (row.step, dict(row.values)) == (1, {"evaluation/correct": 0.5})


def test_evaluations_after_the_same_step_have_names_of_their_own(recorded):
    recorded.add(make_line(1), make_evaluation(1, "e1", correct=5.0), make_evaluation(1, "e2", correct=6.0))
    # A new coordinator may write an event of its predecessor again.
    recorded.add(make_evaluation(1, "e1", correct=5.0))
    (row,) = read_all(recorded.open_source())
    assert row.values["evaluation/correct"] == 0.5
    assert row.values["evaluation-2/correct"] == 0.6


def test_an_evaluation_that_a_resume_repeats_has_its_old_name(recorded):
    recorded.add(make_line(1), make_line(2), make_evaluation(2, "evaluation-4", correct=5.0))
    source = recorded.open_source()
    rows, known = select_missing(read_all(source), {})
    recorded.cut(1)
    recorded.add(make_line(2), make_evaluation(2, "evaluation-1", correct=5.0))
    more, _ = select_missing(read_all(source), known)
    assert more == []
    # The same from a new process, which reads the events of both attempts.
    again = merge_rows(read_all(recorded.open_source()))
    assert [dict(row.values) for row in again] == [dict(row.values) for row in rows]


@pytest.mark.parametrize("stand_in", ["a pipe", "a directory", "an endless device"])
def test_other_than_a_regular_ledger_is_refused(recorded, stand_in):
    replace_with_stand_in(recorded.run_dir.ledger, stand_in)
    with pytest.raises(Malformed):
        recorded.open_source().read()
