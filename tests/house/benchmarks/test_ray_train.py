"""Which steps count after a change, in the comparison with Ray Train."""

from ray_train import count_new_steps, select_resized
from ticks import Tick

CHANGED_S = 10.0
BEFORE = [Tick(1, step, float(step), "step", 1) for step in range(1, 12)]
"""The process 1 trains alone; the change comes after its step 10."""


def select(after: list[Tick], workers: int, known: tuple[int, ...] = (1,)) -> list[Tick]:
    return select_resized(BEFORE + after, CHANGED_S, workers, known)


def test_steps_made_again_after_a_restart_are_not_new_ones():
    after = [Tick(pid, step, 20.0 + step, "step", 2) for step in range(9, 14) for pid in (2, 3)]
    resized = select(after, 2)
    assert resized == after
    # The process 1 has made step 11 already.
    assert count_new_steps(BEFORE + after, resized) == 2


def test_after_a_death_the_steps_of_the_old_workers_do_not_count():
    old = [Tick(pid, 11, 10.5, "step", 2) for pid in (1, 2)]
    alone = [Tick(1, 12, 11.0, "step", 1)]
    new = [Tick(pid, 13, 12.0, "step", 2) for pid in (1, 3)]
    resized = select(old + alone + new, 2, known=(1, 2))
    assert resized == new
    assert count_new_steps(BEFORE + old + alone + new, resized) == 1


def test_after_a_node_has_gone_the_steps_of_the_one_that_stays_count():
    assert select([], 1) == BEFORE[10:]
    assert count_new_steps(BEFORE, BEFORE[10:]) == 1
