"""The transfer of values and optimizer state between workers: requests, answers, publication."""

from collections.abc import Mapping

from elastane.run.protocol import messages
from elastane.run.protocol.actions import LoadState, RestoreState, SendState, TakeValues
from elastane.run.protocol.events import StateLoaded, ValuesTaken
from elastane.run.protocol.layout import STORE
from elastane.run.protocol.ownership import Holders, choose_senders
from elastane.run.protocol.relays import choose_mates, choose_receivers
from elastane.run.protocol.transitions.reads import begin_read, end_read, is_current
from elastane.run.protocol.transitions.state import MemberState


def take_values(me: MemberState, sender: int, units: tuple[int, ...]) -> None:
    new = tuple(unit for unit in units if unit in me.behind - me.taking)
    if new and me.generation is not None:
        me.taking.update(new)
        begin_read(me, TakeValues(me.generation.number, sender, new))


def finish_taking_values(me: MemberState, taken: ValuesTaken) -> None:
    """Hand published values on, if this worker relays them."""
    me.taking.difference_update(taken.units)
    if end_read(me, taken.generation):
        me.behind.difference_update(taken.units)
    if is_current(me, taken.generation):
        relay_values(me, taken.peer, taken.units)


def load_state(me: MemberState, sender: int, state: messages.State) -> None:
    values = tuple(unit for unit in state.values if unit in me.wanted_values)
    states = tuple(unit for unit in state.states if unit in me.wanted_states)
    if state.committed == me.committed and (values or states):
        begin_read(me, LoadState(sender, state))


def finish_loading(me: MemberState, loaded: StateLoaded) -> None:
    """Record the state that this worker has now; while it was on its way, it counted as missing."""
    state = loaded.state
    if not end_read(me, state.generation):
        return
    me.wanted_values.difference_update(state.values)
    me.wanted_states.difference_update(state.states)
    me.behind.difference_update(state.values)
    me.held.update(state.states)
    if me.layout.replicated_unit in state.values:
        me.held.add(me.layout.replicated_unit)


def fetch_state(
    me: MemberState, values: dict[int, tuple[int, ...]], states: dict[int, tuple[int, ...]]
) -> None:
    """Request values and then optimizer state, which arrives while this worker computes with the values."""
    assert me.generation is not None, "only members of a generation fetch"
    number = me.generation.number
    me.wanted_values.update(*values.values())
    me.wanted_states.update(*states.values())
    if STORE in {*values, *states}:
        restore = RestoreState(number, me.committed, values.get(STORE, ()), states.get(STORE, ()))
        me.actions.append(restore)
    for peer in sorted(values.keys() - {STORE}):
        me.send(peer, build_fetch(me, number, values=values[peer]))
    for peer in sorted(states.keys() - {STORE}):
        me.send(peer, build_fetch(me, number, states=states[peer]))


def build_fetch(
    me: MemberState, generation: int, *, values: tuple[int, ...] = (), states: tuple[int, ...] = ()
) -> messages.Fetch:
    return messages.Fetch(
        generation=generation, committed=me.committed, values=values, states=states, released=me.released
    )


def fetch_more(me: MemberState) -> None:
    """Fetch a portion of optimizer state in each step, and missing values, until everything is here."""
    if me.roles is None or me.layout.copies is not None or me.complete:
        return
    asked: list[int] = []
    size = 0
    for unit in sorted(set(me.layout.everything) - me.held - me.wanted_states):
        size += me.layout.unit_bytes[unit]
        if asked and size > me.layout.fetch_bytes:
            break
        asked.append(unit)
    behind = sorted(me.behind - me.wanted_values)
    donors = {worker: units for worker, units in me.roles.donors.items() if worker != me.worker}
    fetch_state(
        me,
        choose_senders({me.worker: behind}, donors).get(me.worker, {}),
        choose_senders({me.worker: asked}, donors).get(me.worker, {}),
    )


def send_requested_state(me: MemberState) -> None:
    """Send requested state when this worker has it, if it is still the state of the named round."""
    if not me.applied:
        return
    fetches, me.open_fetches = me.open_fetches, []
    for peer, fetch in fetches:
        if fetch.committed != me.committed:
            continue
        has_all = me.held.issuperset(fetch.states) and me.behind.isdisjoint(fetch.values)
        if has_all and has_requested_phase(me, fetch):
            me.actions.append(SendState(peer, fetch))
        else:
            me.open_fetches.append((peer, fetch))


def has_requested_phase(me: MemberState, fetch: messages.Fetch) -> bool:
    """Return whether the state is from before or after the script's code, as the peer has requested.

    Scripts cannot change sharded optimizer state, so it is the same before and after.
    """
    if not fetch.values and me.layout.copies is not None:
        return True
    if fetch.released:
        return me.round.entered is not None or me.left
    # If the code has run here, a peer that needs values from before it ends: see `is_left_behind`.
    return not (fetch.values and me.released)


def publish_values(me: MemberState) -> None:
    """Publish new values to members that do not compute them.

    On each node the first holder publishes its values to the others. If a node has no holder, the owner
    publishes to one of its members.
    """
    generation, nodes = me.generation, me.nodes
    if me.layout.copies is None or generation is None or generation.number != me.committed_in:
        return
    receivers: dict[int, tuple[int, ...]] = {}
    for block, holders in enumerate(me.holders):
        wanting = _find_readers(me, holders)
        if me.worker == next((h for h in holders if nodes[h] == nodes.get(me.worker)), None):
            own = tuple(worker for worker in wanting if nodes[worker] == nodes[me.worker])
            receivers[block] = own
        if me.worker == holders[0]:
            covered = {nodes[holder] for holder in holders}
            far = tuple(worker for worker in wanting if nodes[worker] not in covered)
            receivers[block] += choose_receivers(me.worker, far, nodes, block)
    _publish(me, receivers)


def relay_values(me: MemberState, sender: int, units: tuple[int, ...]) -> None:
    """Publish values that this worker has taken from another node to the rest of its own node."""
    nodes = me.nodes
    _publish(
        me,
        {unit: choose_mates(me.worker, sender, _find_readers(me, me.holders[unit]), nodes) for unit in units},
    )


def _find_readers(me: MemberState, holders: Holders) -> tuple[int, ...]:
    """Return the members that do not compute the values of a block with these holders."""
    assert me.generation is not None, "only members of a generation publish"
    return tuple(worker for worker in me.generation.workers if worker not in holders)


def _publish(me: MemberState, receivers: Mapping[int, tuple[int, ...]]) -> None:
    assert me.generation is not None, "only members of a generation publish"
    for worker in me.generation.workers:
        units = tuple(unit for unit, some in receivers.items() if worker in some)
        if units:
            me.send(
                worker,
                messages.Published(generation=me.generation.number, round=me.committed, units=units),
            )
