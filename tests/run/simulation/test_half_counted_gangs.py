"""Mistakes in the counting of the processes of a gang, each of which histories find."""

import pytest

from elastane.run.protocol.gangs import Deliveries, GangResults
from tests.run.simulator.gang_plans import draw_gangs
from tests.run.simulator.history import History

SEEDS = 30


def count_process_0(_results, process, _result):
    return process == 0


def count_part_of_process_0(_results, process, _block, _part):
    return process == 0


def assume_mapped(_deliveries, _memory):
    return True


MISTAKES = [
    (GangResults, "_is_last", count_process_0),
    (GangResults, "_add_part", count_part_of_process_0),
    (Deliveries, "are_mapped", assume_mapped),
]


def play_all():
    for seed in range(SEEDS):
        History(draw_gangs(seed, None)).play()


@pytest.mark.parametrize(("owner", "name", "mistake"), MISTAKES, ids=[mistake for _, mistake, _ in MISTAKES])
def test_histories_find_what_counts_before_all_processes_have_answered(monkeypatch, owner, name, mistake):
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(AssertionError):
        play_all()
