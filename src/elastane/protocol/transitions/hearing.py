"""Messages of peers: due now, too early and kept, or too late and void."""

from elastane.protocol import messages
from elastane.protocol.events import Received
from elastane.protocol.transitions.state import MemberState
from elastane.protocol.transitions.transfer import hear_state, take_values


def receive(me: MemberState, sender: int, message: messages.AnyPeerMessage) -> None:
    current = me.generation.number if me.generation else 0
    if isinstance(message, messages.Status):
        # A joiner's status tells its peers that the way to it is open, before they are there themselves.
        if message.generation >= current:
            me.statuses.setdefault(message.generation, {})[sender] = message
        return
    if message.generation < current:
        return
    early = message.generation > current
    match message:
        case messages.PartialSumsReady() | messages.SumsReady() | messages.Vote():
            early = early or not me.begun or message.round > me.committed + 1
        case messages.Published() | messages.Current():
            early = early or message.round > me.committed
        case messages.Fetch():
            early = early or message.committed > me.committed
        case messages.State():
            # It is the state after a round that I may still be applying: that frees what I no longer held.
            early = early or not me.applied
    if early:
        me.early.append(Received(sender, message))
        return
    hear(me, sender, message)


def hear(me: MemberState, sender: int, message: messages.AnyPeerMessage) -> None:
    """A message of this generation that is not early; it may be late, and then it is void."""
    match message:
        case messages.PartialSumsReady() | messages.SumsReady() | messages.Vote():
            if message.round == me.committed + 1:
                hear_of_round(me, sender, message)
        case messages.Published() | messages.Current():
            if message.round == me.committed:
                hear_of_values(me, sender, message)
        case messages.Fetch():
            if message.committed == me.committed:
                me.fetches.append((sender, message))
        case messages.State():
            hear_state(me, sender, message)
        case messages.Status():  # taken in before, whatever its generation
            pass


def hear_of_values(me: MemberState, sender: int, message: messages.Published | messages.Current) -> None:
    match message:
        case messages.Published(units=units):
            take_values(me, sender, units)
        case messages.Current():
            me.current.add(sender)


def hear_of_round(
    me: MemberState, sender: int, message: messages.PartialSumsReady | messages.SumsReady | messages.Vote
) -> None:
    now = me.round
    match message:
        case messages.PartialSumsReady(blocks=blocks, parts=parts):
            for block in blocks:
                now.ready.setdefault(block, {})[sender] = parts
        case messages.SumsReady(blocks=blocks):
            now.summed.update(dict.fromkeys(blocks, sender))
        case messages.Vote(leaves=leaves):
            now.votes[sender] = message
            now.leaves.update((leaf.virtual_rank, leaf) for leaf in leaves)


def recall_early(me: MemberState) -> None:
    """What came too early may be due now."""
    early, me.early = me.early, []
    for event in early:
        receive(me, event.sender, event.message)
