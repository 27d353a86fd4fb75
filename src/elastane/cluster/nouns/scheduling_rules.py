"""The numbers by which the scheduler weighs the gain of a change against its cost."""

import msgspec

QUIET_S = 3600.0
"""After this many seconds without giving anything back, a job's setbacks are forgotten."""


class SchedulingRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How eager the scheduler is. One set per cluster.

    Args:
        horizon_s: a resize must earn back its cost within this time; at most 30 days, as ``cooldown_s``.
        cooldown_s: for this long after a resize a job neither grows nor yields to equals. It does not grow
            for longer if its resizes cost more than half of this, or after repeated setbacks: twice as long
            after the second, then four times, up to 32 times.
        min_run_time_s: for this long after its start a job cannot be preempted as a whole, except for the
            owner of devices that it borrowed.
        patience_s: a job that has waited longer than this, since it was submitted or stopped, holds its
            place: no other waiting job of the same or a lower priority starts on the devices that it waits
            for.
        worth: a worker that adds less than this fraction of the first worker's speed is not worth its
            devices.
        fairness_grain: dominant shares are compared in steps of this size, so that a difference of a few
            devices moves no job; 0.000001 or more.
    """

    horizon_s: float = 600.0
    cooldown_s: float = 60.0
    min_run_time_s: float = 300.0
    patience_s: float = 600.0
    worth: float = 0.1
    fairness_grain: float = 0.05
