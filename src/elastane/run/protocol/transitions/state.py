"""The state of one member: its knowledge of the current round, its generation and the other members."""

from collections.abc import Iterable
from enum import IntEnum

from elastane.run.nouns.checkpoints import UNORDERED
from elastane.run.nouns.membership import Generation
from elastane.run.protocol import messages
from elastane.run.protocol.actions import Action, Send
from elastane.run.protocol.events import Received, RoundEntered
from elastane.run.protocol.layout import FRESH, Layout
from elastane.run.protocol.ownership import Holders
from elastane.run.protocol.roles import Roles


class RoundPhase(IntEnum):
    """The progress of this worker in a round. It only grows; a new generation resets it to `WAITING`."""

    WAITING = 0
    """The virtual ranks of the round are not assigned yet."""
    ASSIGNED = 1
    """The worker knows its virtual ranks and waits for the values to compute with."""
    COMPUTING = 2
    """The training thread may compute."""
    MEASURING = 3
    """All sums and all state are here; the shell computes norms and digests for the vote."""
    VOTED = 4
    """The vote is sent: from now on another member may commit the round."""


class RoundState:
    """A member's knowledge of the round after the last committed one.

    Attributes:
        phase: the progress of this worker in the round.
        entered: the training thread's entry into the round; None: it has not entered.
        resumed: the generation began with this round, so some of its work may be done already.
        assigned: the virtual ranks that this worker has computed or is computing.
        to_compute: those of them that the training thread has not received yet.
        leaves: the known results of virtual ranks, by virtual rank.
        rooted: the blocks with a whole sum on this worker.
        rooting: the blocks of which this worker reads the parts, or the whole sum, at present.
        available_sums: the blocks with a whole sum on a peer that has announced it, each with that peer.
        final: the final partial sums of this worker, by block.
        unannounced: those of them that this worker has not announced to an owner or a leader.
        ready: the announced partial sums, by block, then by worker.
        unexamined: the blocks with partial sums announced since this worker last looked for complete ones.
        node_ranks: the number of virtual ranks of all members on this worker's node.
        merged: the blocks of which this worker has merged the partial sums of its node.
        votes: the received votes and this worker's own, by worker.
        measure_request: the number of the request for the measurement; 0: none.
        snapshot_request: the number of the request for the snapshot; 0: none.
        snapshot_taken: the shell has made the snapshot.
        spot_check: the check of the round; None: it has none.
        requested: the number of results for spot checks that this worker has been asked for.
        recomputed: those that it has made.
        unchecked: whole sums may have a result that no spot check has compared, or that differed in one.
        left_out: the virtual ranks of absent sites, which have no samples in this round.
        left_out_before: those of earlier generations, as the statuses tell.
        lacks_site: no member may compute some virtual rank, so that the round waits for its site.
        is_void: the round ends without an outcome, when this worker has computed its virtual ranks.
        leaves_sent: this worker has announced the leaves of its virtual ranks.
    """

    def __init__(self) -> None:
        self.phase = RoundPhase.WAITING
        self.entered: RoundEntered | None = None
        self.resumed = False
        self.assigned: set[int] = set()
        self.to_compute: tuple[int, ...] = ()
        self.leaves: dict[int, messages.Leaf] = {}
        self.rooted: set[int] = set()
        self.rooting: set[int] = set()
        self.available_sums: dict[int, int] = {}
        self.final: dict[int, tuple[messages.PartialSum, ...]] = {}
        self.unannounced: dict[int, tuple[messages.PartialSum, ...]] = {}
        self.ready: dict[int, dict[int, tuple[messages.PartialSum, ...]]] = {}
        self.unexamined: set[int] = set()
        self.node_ranks = 0
        self.merged: set[int] = set()
        self.votes: dict[int, messages.Vote] = {}
        self.measure_request = 0
        self.snapshot_request = 0
        self.snapshot_taken = False
        self.spot_check: messages.SpotCheck | None = None
        self.requested = 0
        self.recomputed: tuple[messages.Leaf, ...] = ()
        self.unchecked = False
        self.left_out: frozenset[int] = frozenset()
        self.left_out_before: frozenset[int] = frozenset()
        self.lacks_site = self.is_void = self.leaves_sent = False

    def add_final(self, blocks: Iterable[int], parts: tuple[messages.PartialSum, ...]) -> None:
        """Add final partial sums of this worker, which no later gradient of the assignment changes."""
        for block in blocks:
            self.final[block] = self.final.get(block, ()) + parts
            self.unannounced[block] = self.unannounced.get(block, ()) + parts

    def clear_final(self) -> None:
        """Forget the final partial sums: gradients of another assignment are added to them."""
        self.final.clear()
        self.unannounced.clear()

    def add_ready(self, sender: int, blocks: Iterable[int], parts: tuple[messages.PartialSum, ...]) -> None:
        """Add announced partial sums: a worker announces those of a block as they become final."""
        for block in blocks:
            self.unexamined.add(block)
            by_worker = self.ready.setdefault(block, {})
            by_worker[sender] = by_worker.get(sender, ()) + parts

    def restart(self) -> None:
        """Forget the work of the previous generation: the new one repeats the round.

        Keep computed virtual ranks and whole sums, because they are valid in every generation.
        """
        self.phase = RoundPhase.WAITING
        self.resumed = self.snapshot_taken = False
        self.lacks_site = self.is_void = self.leaves_sent = False
        self.snapshot_request = 0
        self.unannounced = self.final.copy()
        self.ready.clear()
        self.unexamined.clear()
        self.merged.clear()
        self.available_sums.clear()
        self.votes.clear()


class MemberState:
    """The whole state of a member; the functions in the modules beside this one read and change it.

    Args:
        origin: the outcome of the checkpoint with which the run begins; None: it begins without one.

    Attributes:
        generation: the generation in which this worker works or soon will; None: it has not been in any.
        status_due: its status for ``generation`` waits until its reads have ended.
        reads: the number of its reads of peers' memory that are under way.
        reads_since: the number of the first generation of which reads count.
        newest: the proposed generation with the highest number.
        fetched_proposal: the highest number of a generation that this worker has requested from a peer.
        planned: the generations that may begin at a later step, by number.
        next: the planned generation of all votes, which begins with the next training step.
        committed: the last committed round; `FRESH`: this worker has no state at all.
        outcome: the outcome of that round.
        applied: the optimizer has run for that round.
        released: the script has continued since the last training step. True for a newcomer too.
        released_at: the members with scripts that had continued when the generation began during a round.
        current: the members that have announced that they have all values of the last training step.
        current_announced: this worker has announced the same in this generation.
        committed_in: the generation that committed the last round; 0: this worker learned of it from a
            status.
        voted_for: the last round that this worker voted for.
        round: the round after ``committed``.
        held: the units of which this worker has the optimizer state.
        behind: the units of which this worker lacks the values.
        left: this worker has left training or is about to; it may still send state.
        leave_announced: the script knows that it has left.
        first_generation: the number of the first generation of this worker; 0: none yet.
        generation_step: the number of committed training steps when the generation began.
        newcomers: its members that had no state then.
        statuses: the statuses for the present and later generations, by number, then by worker.
        begun: all statuses of ``generation`` are here.
        cannot_commit: this generation cannot commit: some state is lost, or scripts disagree.
        roles: the roles in ``generation``.
        rooted_at: the blocks of which each member had whole sums when the generation began.
        assigned_at: the virtual ranks that each member had computed or was computing then.
        known_at: the virtual ranks with leaves that a member knew then.
        wanted_values: the units with requested values that are not loaded.
        wanted_states: the units with requested optimizer state that is not loaded.
        taking: the units of which it reads published values at present.
        open_fetches: the requests of peers that this worker has not answered yet.
        early_messages: the messages that wait until they are due.
        script_ended: the script enters no further round.
        stopping: the run should stop after this round.
        checkpoint_requested: the coordinator has requested a checkpoint.
        checkpointed_step: the last step with a checkpoint of the state after it.
        last_rewrite: the last ordered attempt to write the last state again that this worker has begun.
        storage_refused: storage refused this worker's last part of a checkpoint.
        assignment: counts the assignments of virtual ranks; see `elastane.run.protocol.actions.Compute`.
        requests: the number of requests to the shell so far.
        actions: the actions so far for the present event.
    """

    def __init__(self, worker: int, layout: Layout, origin: messages.RoundOutcome | None = None) -> None:
        self.worker = worker
        self.layout = layout
        self.origin = origin
        self.generation: Generation | None = None
        self.status_due = False
        self.reads = 0
        self.reads_since = 0
        self.newest: Generation | None = None
        self.fetched_proposal = 0
        self.planned: dict[int, Generation] = {}
        self.committed = FRESH
        self.outcome: messages.RoundOutcome | None = None
        self.held: set[int] = set()
        self.behind: set[int] = set(range(layout.units))
        self.left = False
        self.leave_announced = False
        self.first_generation = 0
        self.generation_step = 0
        self.newcomers: frozenset[int] = frozenset()
        self.applied = True
        self.released = True
        self.released_at: set[int] = set()
        self.current: set[int] = set()
        self.current_announced = False
        self.committed_in = 0
        self.voted_for = 0
        self.script_ended = False
        self.stopping = False
        self.checkpoint_requested = False
        self.checkpointed_step = 0
        self.last_rewrite = UNORDERED
        self.storage_refused = False
        self.next: Generation | None = None
        self.assignment = 0
        self.requests = 0
        self.round = RoundState()
        self.statuses: dict[int, dict[int, messages.Status]] = {}
        self.begun = self.cannot_commit = False
        self.roles: Roles | None = None
        self.rooted_at: dict[int, frozenset[int]] = {}
        self.assigned_at: dict[int, frozenset[int]] = {}
        self.known_at: frozenset[int] = frozenset()
        self.wanted_values: set[int] = set()
        self.wanted_states: set[int] = set()
        self.taking: set[int] = set()
        self.open_fetches: list[tuple[int, messages.Fetch]] = []
        self.early_messages: list[Received] = []
        self.actions: list[Action] = []

    @property
    def step(self) -> int:
        """The number of committed training steps."""
        known = self.outcome or self.origin
        return known.step if known else 0

    @property
    def cursors(self) -> dict[int, str]:
        """The positions of streams after the last committed round."""
        return self.outcome.cursors if self.outcome else {}

    @property
    def works_in(self) -> int:
        """The number of the generation in which this worker works; 0 until it has taken part in one."""
        return 0 if self.generation is None or self.committed == FRESH else self.generation.number

    @property
    def complete(self) -> bool:
        """This worker holds every unit that it should in its generation, and waits for no state."""
        return self.begun and not self.wanted_values and self.find_units_to_hold() <= self.held

    @property
    def blocks_held(self) -> tuple[int, ...]:
        """The blocks with optimizer state here; if every worker keeps everything, all or none.

        They stay while the worker waits for a generation to begin, because its state is not lost meanwhile.
        """
        if self.layout.copies is None:
            # The units are parameters.
            return tuple(range(self.layout.blocks)) if self.layout.everything <= self.held else ()
        return tuple(sorted(self.held.intersection(range(self.layout.blocks))))

    @property
    def blocks_to_write(self) -> tuple[int, ...]:
        """The blocks of the last state that this worker could write: none before it has all values."""
        return () if self.behind else self.blocks_held

    @property
    def has_computed(self) -> bool:
        """This worker has the results of all its virtual ranks of the present round."""
        round_ = self.round
        leaves = [round_.leaves.get(rank) for rank in round_.assigned]
        return all(leaf is not None and leaf.worker == self.worker for leaf in leaves)

    @property
    def assigned(self) -> frozenset[int]:
        """The virtual ranks of the present round that this worker computes."""
        return frozenset(self.round.assigned)

    @property
    def holders(self) -> tuple[Holders, ...]:
        return self.roles.holders if self.roles else ()

    @property
    def owners(self) -> tuple[int, ...]:
        if self.roles is None:
            return ()
        return self.roles.first_owners if self.round.resumed else self.roles.owners

    @property
    def nodes(self) -> dict[int, str]:
        """The node of each member of the generation."""
        return {m.worker: m.node for m in self.generation.members} if self.generation else {}

    def is_awaited_in(self, generation: Generation) -> bool:
        """Return whether the generation waits for this worker's status."""
        return self.worker in list_awaited_workers(generation)

    def has_voted_for(self, round_: int) -> bool:
        """Return whether this worker had all sums of a round, so can apply it if others have committed it."""
        return self.voted_for == round_

    def send(self, peer: int, message: messages.AnyPeerMessage) -> None:
        self.actions.append(Send(peer, message))

    def find_units_to_hold(self) -> set[int]:
        """Return the units of which this worker should keep the optimizer state."""
        if self.layout.copies is None:
            return set(self.layout.everything)
        return {block for block, holders in enumerate(self.holders) if self.worker in holders}

    def keeps_state_of(self, block: int) -> bool:
        """Return whether this worker should keep the optimizer state of a block, and not only its values."""
        return self.layout.copies is None or self.worker in self.holders[block]


def list_awaited_workers(generation: Generation) -> tuple[int, ...]:
    """Return the workers for which a generation waits: its members and its leavers."""
    return (*generation.workers, *(leaver.worker for leaver in generation.leaving))
