"""The numbers by which a cluster weighs change against rest."""

import msgspec

QUIET_S = 3600.0
"""After this time without giving anything back, a job counts as new."""


class SchedulingRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How eager the scheduler is. One set per cluster.

    Args:
        horizon_s: a resize must earn back what it costs within this time; at most 30 days, as ``cooldown_s``.
        cooldown_s: a job that was resized neither grows again for so long nor yields to equals. Twice as
            long after the second setback, then four times, up to 32 times.
        min_run_time_s: a job that was started cannot be preempted as a whole for so long, unless for the
            owner of what it borrowed.
        patience_s: a job that has waited longer, since it was submitted or stopped, holds its place: no other
            that waits, of the same or a lower priority, starts on what it waits for.
        worth: a worker that adds less than this part of what the first one gives is not worth its devices.
        fairness_grain: dominant shares are compared in steps of this size, so that a difference of a few
            devices moves nobody; 0.000001 or more.
    """

    horizon_s: float = 600.0
    cooldown_s: float = 60.0
    min_run_time_s: float = 300.0
    patience_s: float = 600.0
    worth: float = 0.1
    fairness_grain: float = 0.05
