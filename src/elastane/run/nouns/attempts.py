"""``attempt.json``: the newest attempt of a job, the process that runs it, and how it ended."""

from typing import Annotated

import msgspec

from elastane.common.bounds import LARGEST_COUNT, Moment, Position

LARGEST_PID = 2**22
"""The largest process id that Linux assigns."""
RETRYABLE = 128
"""Exit code of an attempt that ended for a reason outside the script; another attempt may succeed."""


class AttemptOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an attempt ended.

    Args:
        code: 0: every step is committed. 130: the run was stopped, with a checkpoint if it writes any. 1 to
            127: another attempt would end the same way. Other codes from 128 on: another attempt may succeed.
        why: the reason in words.
        traceback: of the user's code, if the script raised.
    """

    code: Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
    why: str = ""
    traceback: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a job: one agent process, from the moment it locks the run directory until it ends.

    If every copy of the state is lost while the agent lives, the agent restores a checkpoint. That is still
    the same attempt.

    Args:
        number: counts from 1; never used twice.
        pid: process id of the agent.
        started: when the kernel started the agent, in clock ticks since the machine's boot. Another process
            may get the same pid, but not the same start.
        began_s: when the attempt began, in seconds since 1970.
        outcome: how the attempt ended; None: it is running, or it ended without recording an outcome.
    """

    number: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_PID)]
    started: Position
    began_s: Moment
    outcome: AttemptOutcome | None = None
