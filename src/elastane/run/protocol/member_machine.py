"""One worker's side of the protocol: it turns events into actions, without I/O and without a clock.

The shell (`elastane.run.worker.reactor`, or the simulator) passes events to a `MemberMachine` and performs
the actions that it returns, in order. Read `MemberMachine._advance` first: it tries each transition of a
round in turn. A transition that is tried again changes nothing, so messages may arrive in any order. The
transitions are in `elastane.run.protocol.transitions`.

A *round* is one unit of agreement: a training step, an evaluation, or the settling at the end. All workers
number rounds from 1. A *unit* is the smallest piece of state that moves: a parameter if every worker has all
state, a block if optimizer state is sharded. The last unit is the rest (buffers, frozen parameters,
schedules), which every worker keeps current after it has received it.
"""

from elastane.run.protocol.actions import Action, ReportLostPeer
from elastane.run.protocol.events import (
    Applied,
    CheckpointRequested,
    Computed,
    ConnectionLost,
    Event,
    GenerationProposed,
    Measured,
    PartialSumsFinal,
    Received,
    Recomputed,
    Reduced,
    RewriteRequested,
    RoundEntered,
    ScriptEnded,
    SnapshotTaken,
    StateLoaded,
    StopRequested,
    StorageRefused,
    SumsMerged,
    SumsTaken,
    ValuesTaken,
)
from elastane.run.protocol.messages import FetchProposal, Proposal
from elastane.run.protocol.transitions.assignment import assign_round, start_computing
from elastane.run.protocol.transitions.checkpoints import retake_snapshot, take_snapshot
from elastane.run.protocol.transitions.generations import (
    begin_generation,
    leave_waiting_round,
    receive_proposal,
    send_due_status,
    switch_generation,
)
from elastane.run.protocol.transitions.inbox import receive_message, retry_early_messages
from elastane.run.protocol.transitions.proposals import send_proposal
from elastane.run.protocol.transitions.release import release_script
from elastane.run.protocol.transitions.state import MemberState
from elastane.run.protocol.transitions.sums import (
    announce_sums,
    finish_reduction,
    finish_taking_sums,
    merge_sums,
    reduce_sums,
    send_merged_sums,
    take_sums,
)
from elastane.run.protocol.transitions.transfer import (
    finish_loading,
    finish_taking_values,
    publish_values,
    send_requested_state,
)
from elastane.run.protocol.transitions.votes import (
    announce_leaves,
    cast_vote,
    commit_round,
    compare_votes,
    end_void_round,
    request_measurements,
    vote_again,
)


class MemberMachine(MemberState):
    """The protocol of one worker: its state, and the handling of events."""

    def handle(self, event: Event) -> list[Action]:
        """Handle one event; return the actions to perform, in order."""
        self._apply_event(event)
        committed, generation = self.committed, self.generation
        self._advance()
        if (self.committed > committed and self.round.entered) or self.generation is not generation:
            # The round was void or waited for a site, and its training thread is in the next one already.
            self._advance()
        actions, self.actions = self.actions, []
        return actions

    def _apply_event(self, event: Event) -> None:
        match event:
            case GenerationProposed(generation) | Received(message=Proposal(proposed=generation)):
                receive_proposal(self, generation)
            case Received(sender, FetchProposal(generation=number)):
                send_proposal(self, sender, number)
            case RoundEntered():
                self.round.entered = event
            case Computed(leaf):
                self.round.leaves[leaf.virtual_rank] = leaf
            case Recomputed(leaf):
                self.round.recomputed += (leaf,)
            case PartialSumsFinal(assignment, blocks, parts):
                if assignment == self.assignment:
                    self.round.add_final(blocks, parts)
            case SumsMerged():
                send_merged_sums(self, event)
            case Reduced():
                finish_reduction(self, event)
            case SumsTaken():
                finish_taking_sums(self, event)
            case ValuesTaken():
                finish_taking_values(self, event)
            case StateLoaded():
                finish_loading(self, event)
            case Measured(request):
                if request == self.round.measure_request:
                    cast_vote(self, event)
            case Applied():
                self.applied = True
                publish_values(self)
                retry_early_messages(self)
            case Received(sender, message):
                receive_message(self, sender, message)
            case ConnectionLost(peer):
                # The coordinator knows better than this worker whether a generation needs the peer.
                self.actions.append(ReportLostPeer(peer))
            case ScriptEnded():
                self.script_ended = True
            case StopRequested():
                self.stopping = True
            case CheckpointRequested(after):
                # If the coordinator missed the answer and asks again, do not take the checkpoint twice.
                self.checkpoint_requested = self.checkpoint_requested or self.checkpointed_step <= after
            case StorageRefused(refused):
                self.storage_refused = refused
            case RewriteRequested():
                retake_snapshot(self, event)
            case SnapshotTaken(request):
                if request == self.round.snapshot_request:
                    self.round.snapshot_taken = True

    def _advance(self) -> None:
        switch_generation(self)
        send_due_status(self)
        begin_generation(self)
        release_script(self)
        assign_round(self)
        leave_waiting_round(self)
        end_void_round(self)
        start_computing(self)
        announce_leaves(self)
        announce_sums(self)
        merge_sums(self)
        compare_votes(self)
        reduce_sums(self)
        take_sums(self)
        send_requested_state(self)
        take_snapshot(self)
        request_measurements(self)
        vote_again(self)
        commit_round(self)
