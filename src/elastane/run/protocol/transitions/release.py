"""The release of a script between two steps, after which it may change the model.

A script may change parameters between two steps (clip weights, copy them, average them). So it must find the
same values on every worker, and no worker may read values of a peer that has released its script. If every
worker computes every value, it releases its script at once. Otherwise all members first announce that they
have every value. So once any script is released, every member has all values of that step.
"""

from elastane.run.protocol import messages
from elastane.run.protocol.actions import ReleaseScript
from elastane.run.protocol.ownership import choose_senders
from elastane.run.protocol.transitions.state import MemberState
from elastane.run.protocol.transitions.transfer import fetch_state


def release_script(me: MemberState) -> None:
    """Release the script when all members have the values after the last training step."""
    generation = me.generation
    if me.released or not me.applied or generation is None or not me.begun or me.cannot_commit:
        return
    if me.worker not in generation:
        return
    if me.behind:
        fetch_values(me)
        return
    # A generation that began since the step may have members that lack some of its values.
    if me.round.resumed or not computes_everything(me):
        announce_current(me)
        awaited = set(generation.workers) - {me.worker} - me.released_at
        if not awaited <= me.current:
            return
    me.released = True
    me.actions.append(ReleaseScript())


def computes_everything(me: MemberState) -> bool:
    """Return whether every member has run the optimizer on every unit, so none reads another's values."""
    assert me.generation is not None, "asked within a generation"
    workers, copies = me.generation.workers, me.layout.copies
    keeps_all = copies is None or copies >= len(workers)
    return keeps_all and me.outcome is not None and set(workers) <= set(me.outcome.complete)


def fetch_values(me: MemberState) -> None:
    """Request values of the units of which this joiner does not keep the optimizer state yet."""
    if me.roles is None or me.layout.copies is not None:
        return
    lacking = sorted(me.behind - me.wanted_values)
    donors = {worker: units for worker, units in me.roles.donors.items() if worker != me.worker}
    fetch_state(me, choose_senders({me.worker: lacking}, donors).get(me.worker, {}), {})


def announce_current(me: MemberState) -> None:
    """Announce to all members, once per generation and step, that this worker has every value."""
    generation = me.generation
    if generation is None or me.current_announced:
        return
    me.current_announced = True
    for peer in generation.workers:
        if peer != me.worker and peer not in me.released_at:
            me.send(peer, messages.Current(generation=generation.number, round=me.committed))
