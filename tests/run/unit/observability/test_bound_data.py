"""The records of a run prove where bound data was read, and say which rounds did without it."""

import msgspec
import pytest

from elastane.run.nouns.records import AbsentSites, EventLine, LedgerLine, Samples
from elastane.run.observability.bound_data import (
    collect_absences,
    count_absences,
    find_site_problems,
    read_worker_sites,
)

from .conftest import PINNED as PLAIN

PINNED = msgspec.structs.replace(
    PLAIN, virtual_ranks=4, global_batch=8, rank_sites=("eu", "eu", "us", "us"), absent="skip"
)
SITES = {0: {"eu"}, 1: {"us"}}


def make_line(step, absent=(), workers=None, shards=None):
    present = {0: ((0, 2),)} | ({} if absent else {1: ((2, 4),)})
    read = dict.fromkeys((0, 1) if absent else (0, 1, 2, 3), (2 * step - 2, 2 * step))
    return LedgerLine(
        step=step,
        generation=1,
        workers=workers or present,
        samples=Samples(0, 0, 1, 8, "", shards or read),
        loss=1.0,
        loss_hex=(1.0).hex(),
        time=0.0,
        seconds={},
        absent=absent,
    )


def find(line, pinned=PINNED, sites=SITES):
    return [problem.text for problem in find_site_problems([line], pinned, sites)]


@pytest.mark.parametrize("line", [make_line(1), make_line(2, ("us",))])
def test_a_round_of_the_sites_themselves_has_no_problem(line):
    assert find(line) == []


def test_a_virtual_rank_computed_elsewhere_is_a_problem():
    assert find(make_line(1, workers={0: ((0, 3),), 1: ((3, 4),)})) == [
        "virtual rank 2 is bound to site us, and worker 0 at eu computed it"
    ]
    assert find(make_line(1), sites={1: {"us"}})[0] == (
        "virtual rank 0 is bound to site eu, and worker 0 at no known site computed it"
    )


def test_samples_of_a_site_that_a_round_leaves_out_are_a_problem():
    assert find(make_line(2, ("us",), shards={0: (0, 2), 1: (0, 2), 2: (0, 2)})) == [
        "virtual rank 2 has read 2 samples, expected 0"
    ]


def test_a_run_that_waits_leaves_no_site_out():
    waits = msgspec.structs.replace(PINNED, absent="wait")
    assert find(make_line(2, ("us",)), waits) == ["the round left out us, which this run does not do"]
    assert find(make_line(2, ("jp",)))[0] == "the round left out jp, which has no data in this run"


def test_rounds_without_a_site_are_counted_and_collected_for_a_replay():
    ledger = [make_line(step, ("us",) if step in (2, 3, 5) else ()) for step in range(1, 7)]
    assert count_absences(ledger) == ("site us was left out of 3 of 6 rounds",)
    assert collect_absences(ledger) == (AbsentSites(2, 3, ("us",)), AbsentSites(5, 5, ("us",)))


def test_events_name_the_sites_of_workers():
    joined = EventLine(time=0.0, kind="worker.joined", workers=(3,), detail={"pid": 1, "sites": "eu,us"})
    assert read_worker_sites([joined]) == {3: {"eu", "us"}}
