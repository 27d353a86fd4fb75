"""What is done to a training run in order to see what it costs: every so many steps, in turn.

Shared by the scripts that do it and the measurement that reads their times.
"""

WARMUP_STEPS = 6
PERIOD_STEPS = 6
"""From one event to the next: a write of 1.2 GB in the background must be over long before."""


def steps(kinds: int, repetitions: int) -> int:
    """Of a whole run in which each of ``kinds`` happens so often, after a first time that is not counted."""
    return WARMUP_STEPS + PERIOD_STEPS * kinds * (repetitions + 1)


def due(step: int, kinds: int) -> int | None:
    """Which of ``kinds`` happens after ``step``, by number; None: nothing."""
    since = step - WARMUP_STEPS
    return since // PERIOD_STEPS % kinds if since >= 0 and since % PERIOD_STEPS == 0 else None


def begins(kind: int, kinds: int, repetitions: int) -> list[int]:
    """The steps after which ``kind`` happens, without the first time."""
    first = WARMUP_STEPS + PERIOD_STEPS * kind
    return [first + PERIOD_STEPS * kinds * turn for turn in range(1, repetitions + 1)]
