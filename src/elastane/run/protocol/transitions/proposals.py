"""Members pass proposals on: one that does not hear the coordinator gets a generation from another one."""

from elastane.run.protocol import messages
from elastane.run.protocol.actions import Send
from elastane.run.protocol.transitions.state import MemberState


def fetch_proposal(me: MemberState, sender: int, number: int) -> None:
    """Request a generation from a peer with a status of it, unless this worker has its proposal.

    Mostly the coordinator's message is only a moment late. But if this worker does not hear the coordinator,
    the others would wait for its status until they lose it. One request is enough: if the peer dies, another
    generation follows.
    """
    known = me.newest.number if me.newest is not None else 0
    if number > max(known, me.fetched_proposal):
        me.fetched_proposal = number
        me.actions.append(Send(sender, messages.FetchProposal(generation=number)))


def send_proposal(me: MemberState, peer: int, number: int) -> None:
    """Answer a peer. A generation that this worker has forgotten has a successor: the peer learns of that."""
    known = (me.generation, me.newest, *me.planned.values())
    proposed = next(
        (generation for generation in known if generation is not None and generation.number == number), None
    )
    if proposed is not None:
        me.actions.append(Send(peer, messages.Proposal(generation=number, proposed=proposed)))
