"""Faults at exact moments in one process of a worker of several processes."""

import signal
from functools import partial

from faults import MOMENTS, _around, _run_dir, _strike

from elastane.run.protocol import actions
from elastane.run.worker import worker_settings
from elastane.run.worker.gangs.gang_follower import FollowingReactor
from elastane.run.worker.gangs.gang_messages import Deliver, PackState
from elastane.run.worker.state.training_state import TrainingState


def arm(text: str) -> None:
    """Arm the fault ``WORKER.PROCESS:STEP:MOMENT[:SIGNAL]``; see `faults`.

    In place of a number, ``any`` is every worker until one has struck.
    """
    place, step, moment, *name = text.split(":")
    own = worker_settings.get_settings()
    worker, process = place.split(".")
    number = signal.Signals[f"SIG{name[0] if name else 'KILL'}"]
    if own.seat.number != int(process) or worker not in ("any", str(own.worker)):
        return
    strike = partial(_strike, number)
    (GANG_MOMENTS | MOMENTS)[moment](int(step), partial(_strike_once, strike) if worker == "any" else strike)


def _strike_once(strike):
    root = _run_dir()
    if root is not None and not (root / "struck").exists():
        (root / "struck").touch()
        strike()


def _at_order(kind, *, done):
    """Return the moment before, or after, the first order of this kind in the round of a step."""

    def moment(step, strike):
        begun = [0]

        def look(_reactor, order):
            if isinstance(order, actions.BeginRound):
                begun.append(order.step)
            if isinstance(order, kind) and begun[-1] == step:
                strike()

        before, after = (None, look) if done else (look, None)
        _around(FollowingReactor, "_perform", before=before, after=after)

    return moment


def _at_state(kind, *, done):
    """Return the moment before, or after, the first order of this kind, in any round."""

    def moment(_step, strike):
        def look(_reactor, order):
            if isinstance(order, kind):
                strike()

        before, after = (None, look) if done else (look, None)
        _around(FollowingReactor, "_perform", before=before, after=after)

    return moment


def _at_round(kind):
    """Return the moment at which the first round of this kind begins."""

    def moment(_step, strike):
        def look(reactor, order):
            if isinstance(order, actions.BeginRound) and reactor._entered.kind == kind:
                strike()

        _around(FollowingReactor, "_perform", before=look)

    return moment


def _applying(step, strike, *, after):
    def at(_state, outcome, *_args, **_options):
        if outcome.step == step:
            strike()

    _around(TrainingState, "apply", **({"after": at} if after else {"before": at}))


GANG_MOMENTS = {
    "before-begin": _at_order(actions.BeginRound, done=False),
    "before-reduce": _at_order(actions.Reduce, done=False),
    "after-reduce": _at_order(actions.Reduce, done=True),
    "before-taking": _at_order(actions.TakeSums, done=False),
    "after-taking": _at_order(actions.TakeSums, done=True),
    "before-delivery": _at_order(Deliver, done=False),
    "before-measure": _at_order(actions.Measure, done=False),
    "after-measure": _at_order(actions.Measure, done=True),
    "before-commit": _at_order(actions.CommitRound, done=False),
    "before-apply-here": lambda step, strike: _applying(step, strike, after=False),
    "after-apply-here": lambda step, strike: _applying(step, strike, after=True),
    "before-evaluating": _at_round("evaluate"),
    "before-settling": _at_round("settle"),
    "before-snapshot": _at_order(actions.TakeSnapshot, done=False),
    "after-snapshot": _at_order(actions.TakeSnapshot, done=True),
    "before-restoring": _at_state(actions.RestoreState, done=False),
    "after-restoring": _at_state(actions.RestoreState, done=True),
    "donor-before-packing": _at_state(PackState, done=False),
    "joiner-before-loading-here": _at_state(actions.LoadState, done=False),
    "joiner-after-loading-here": _at_state(actions.LoadState, done=True),
}
"""Moments of a process other than process 0."""
