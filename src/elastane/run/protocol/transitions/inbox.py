"""The messages of peers: handled now, kept if early, dropped if late, but for the results of spot checks."""

from elastane.run.protocol import messages
from elastane.run.protocol.events import Received
from elastane.run.protocol.spot_checks import is_disputed
from elastane.run.protocol.transitions.proposals import fetch_proposal
from elastane.run.protocol.transitions.state import MemberState
from elastane.run.protocol.transitions.transfer import load_state, take_values


def receive_message(me: MemberState, sender: int, message: messages.AnyPeerMessage) -> None:
    current = me.generation.number if me.generation else 0
    if isinstance(message, messages.Status):
        # A joiner's status shows its peers that they can reach it, before they begin the generation.
        if message.generation >= current:
            me.statuses.setdefault(message.generation, {})[sender] = message
            fetch_proposal(me, sender, message.generation)
        return
    if message.generation < current:
        if isinstance(message, messages.Vote) and message.round == me.committed + 1:
            # Its worker may be gone, but one of two results that differ is wrong, and may be in a whole sum.
            me.round.unchecked = me.round.unchecked or is_disputed(me.round.leaves, {sender: message})
        return
    early = message.generation > current
    match message:
        case messages.PartialSumsReady() | messages.SumsReady() | messages.LeavesReady() | messages.Vote():
            early = early or not me.begun or message.round > me.committed + 1
        case messages.Published() | messages.Current():
            early = early or message.round > me.committed
        case messages.Fetch():
            early = early or message.committed > me.committed
        case messages.State():
            # State of a round that this worker still applies; applying frees state that it has given away.
            early = early or not me.applied
        case messages.FetchProposal() | messages.Proposal():  # the machine takes them as events of their own
            return
    if early:
        me.early_messages.append(Received(sender, message))
        return
    process_message(me, sender, message)


def process_message(me: MemberState, sender: int, message: messages.AnyPeerMessage) -> None:
    """Process a message of this generation that is not early; a late one is void."""
    match message:
        case messages.PartialSumsReady() | messages.SumsReady() | messages.LeavesReady() | messages.Vote():
            if message.round == me.committed + 1:
                process_round_message(me, sender, message)
        case messages.Published() | messages.Current():
            if message.round == me.committed:
                process_values_message(me, sender, message)
        case messages.Fetch():
            if message.committed == me.committed:
                me.open_fetches.append((sender, message))
        case messages.State():
            load_state(me, sender, message)
        case messages.Status() | messages.FetchProposal() | messages.Proposal():  # handled on arrival
            pass


def process_values_message(
    me: MemberState, sender: int, message: messages.Published | messages.Current
) -> None:
    match message:
        case messages.Published(units=units):
            take_values(me, sender, units)
        case messages.Current():
            me.current.add(sender)


def process_round_message(
    me: MemberState,
    sender: int,
    message: messages.PartialSumsReady | messages.SumsReady | messages.LeavesReady | messages.Vote,
) -> None:
    round_ = me.round
    match message:
        case messages.PartialSumsReady(blocks=blocks, parts=parts):
            round_.add_ready(sender, blocks, parts)
        case messages.SumsReady(blocks=blocks):
            round_.available_sums.update(dict.fromkeys(blocks, sender))
        case messages.LeavesReady(leaves=leaves):
            round_.leaves.update((leaf.virtual_rank, leaf) for leaf in leaves)
        case messages.Vote(leaves=leaves):
            round_.votes[sender] = message
            round_.leaves.update((leaf.virtual_rank, leaf) for leaf in leaves)


def retry_early_messages(me: MemberState) -> None:
    """Receive early messages again, since some may be due now."""
    early, me.early_messages = me.early_messages, []
    for event in early:
        receive_message(me, event.sender, event.message)
