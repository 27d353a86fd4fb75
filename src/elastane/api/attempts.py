"""``attempt.json``: which attempt of a job has begun last, by which process, and how it ended."""

from typing import Annotated

import msgspec

from elastane.api.bounds import LARGEST_COUNT, Moment, Position

LARGEST_PID = 2**22
"""On Linux."""
RETRYABLE = 128
"""Exit code of an attempt that ended for a reason outside the script: another one may fare better."""


class AttemptOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an attempt ended.

    Args:
        code: 0: all steps are made. 130: stopped, with a checkpoint where the run keeps any. 1 to 127:
            another attempt would end alike. Others from 128 on: it need not.
        why: in words.
        traceback: the user's own, if the script raised.
    """

    code: Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
    why: str = ""
    traceback: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a job: one agent process, from taking the lock of the run directory to its end.

    Should every copy of the state die while the agent lives, it goes on from a checkpoint by itself; that is
    the same attempt.

    Args:
        number: counts from 1; no number is lived twice.
        pid: of the agent.
        started: when the kernel started that process, in clock ticks since the machine's boot: another
            process may get the same pid, but not the same start.
        began_s: seconds since 1970.
        outcome: None: it still lives, or ended without a word.
    """

    number: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_PID)]
    started: Position
    began_s: Moment
    outcome: AttemptOutcome | None = None
