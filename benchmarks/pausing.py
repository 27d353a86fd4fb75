"""The steps after which a training run is disturbed, by several kinds of events in turn.

The scripts that disturb a run and the measurement that reads their times share this schedule.
"""

WARMUP_STEPS = 6
PERIOD_STEPS = 6
"""Steps between two events; a write of 1.2 GB in the background takes far fewer."""


def count_steps(kinds: int, repetitions: int) -> int:
    """Return the steps of a run in which each kind happens this often, after an uncounted first time."""
    return WARMUP_STEPS + PERIOD_STEPS * kinds * (repetitions + 1)


def find_due_kind(step: int, kinds: int) -> int | None:
    """Return the number of the kind that happens after ``step``; None: nothing happens."""
    since = step - WARMUP_STEPS
    return since // PERIOD_STEPS % kinds if since >= 0 and since % PERIOD_STEPS == 0 else None


def list_begins(kind: int, kinds: int, repetitions: int) -> list[int]:
    """Return the steps after which ``kind`` happens, without the first time."""
    first = WARMUP_STEPS + PERIOD_STEPS * kind
    return [first + PERIOD_STEPS * kinds * turn for turn in range(1, repetitions + 1)]
