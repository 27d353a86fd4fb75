"""What one worker knows: of the round under way, of its generation, of the other members."""

from enum import IntEnum

from elastane.api.membership import Generation
from elastane.protocol import messages
from elastane.protocol.actions import Action, Send
from elastane.protocol.events import Received, RoundEntered
from elastane.protocol.layout import FRESH, Layout
from elastane.protocol.ownership import Holders
from elastane.protocol.roles import Roles


class RoundPhase(IntEnum):
    """How far this worker is in a round. A phase only grows; a new generation sets it back to `WAITING`."""

    WAITING = 0
    """The virtual ranks of the round are not assigned yet."""
    ASSIGNED = 1
    """The worker knows its virtual ranks and waits for the values to compute with."""
    COMPUTING = 2
    """The training thread may compute."""
    MEASURING = 3
    """All sums and all state are here; the shell computes norms and digests for the vote."""
    VOTED = 4
    """The vote is sent: another member may commit the round from now on."""


class RoundState:
    """What a member knows of the round after the last committed one.

    Attributes:
        phase: how far this worker is in the round.
        entered: the training thread has entered the round; None: it has not.
        resumed: the generation began with this round, so some of its work may be done already.
        claims: virtual ranks that this worker has computed or computes.
        to_compute: those of them that the training thread has not been told yet.
        leaves: known results of virtual ranks, by virtual rank.
        rooted: blocks with a whole sum on this worker.
        available_sums: blocks with a whole sum on a peer, which has announced it, each with that peer.
        final: blocks with final partial sums on this worker.
        parts: the partial sums of this worker, the same for every block.
        announced: blocks with partial sums that this worker has announced to their owners.
        ready: announced partial sums, by block, then by worker.
        votes: received votes and the own one, by worker.
        measure_ticket: the ticket of the measurement that was asked for; 0: none.
        snapshot_ticket: the ticket of the snapshot that was asked for; 0: none.
        snapshot_taken: the shell has made the snapshot.
    """

    def __init__(self) -> None:
        self.phase = RoundPhase.WAITING
        self.entered: RoundEntered | None = None
        self.resumed = False
        self.claims: set[int] = set()
        self.to_compute: tuple[int, ...] = ()
        self.leaves: dict[int, messages.Leaf] = {}
        self.rooted: set[int] = set()
        self.available_sums: dict[int, int] = {}
        self.final: set[int] = set()
        self.parts: tuple[messages.PartialSum, ...] = ()
        self.announced: set[int] = set()
        self.ready: dict[int, dict[int, tuple[messages.PartialSum, ...]]] = {}
        self.votes: dict[int, messages.Vote] = {}
        self.measure_ticket = 0
        self.snapshot_ticket = 0
        self.snapshot_taken = False

    def restart(self) -> None:
        """Forget what belongs to the generation before: the new one does the round again.

        Computed virtual ranks and whole sums stay, because they are valid in every generation.
        """
        self.phase = RoundPhase.WAITING
        self.resumed = self.snapshot_taken = False
        self.snapshot_ticket = 0
        self.announced.clear()
        self.ready.clear()
        self.available_sums.clear()
        self.votes.clear()


class MemberState:
    """All that a member knows; the functions in the modules beside this one read and change it.

    Args:
        worker: number of this worker.
        layout: the layout of the run.
        origin: outcome of the checkpoint that the run begins with; None: the run begins without one.

    Attributes:
        generation: this worker works in it or is about to; None: it has not been in any.
        newest: proposed generation with the highest number.
        planned: generations that may begin at a later step, by number.
        next: the planned generation that all votes agreed on; it begins with the next training step.
        committed: last committed round; `FRESH`: this worker has no state at all.
        outcome: the outcome of that round.
        applied: the optimizer has run for that round.
        released: the script has run on since the last training step. True for a newcomer too.
        released_at: members with scripts that had run on when the generation began in the middle of a round.
        current: members that have announced that they have all values of the last training step.
        current_announced: this worker has announced the same in this generation.
        committed_in: generation that committed the last round; 0: the status of another member told of it.
        voted_for: the last round that this worker voted for.
        round: the one after ``committed``.
        held: units that this worker has the optimizer state of.
        behind: units that this worker lacks the values of.
        left: this worker has left training or is about to; it may still send state.
        leave_announced: the script knows that it has left.
        first_generation: number of the first generation of this worker; 0: none yet.
        statuses: received for the present and later generations: by number, then by worker.
        begun: all statuses of ``generation`` are here.
        cannot_commit: this generation cannot commit: some state is lost, or scripts disagree.
        roles: the roles in ``generation``.
        rooted_at: blocks that each member had whole sums of when the generation began.
        claims_at: virtual ranks that each member had computed or was computing then.
        known_at: virtual ranks with leaves that some member knew then.
        wanted_values: units with requested values that have not arrived.
        wanted_states: units with requested optimizer state that has not arrived.
        open_fetches: requests of peers that this worker has not answered yet.
        early_messages: messages that are kept until they are due.
        stopping: the run should stop after this round.
        checkpoint_requested: the coordinator wants a checkpoint.
        checkpointed_step: last step after which the state was checkpointed.
        storage_refused: storage refused this worker's last part of a checkpoint.
        assignment: counts the assignments of virtual ranks; see `elastane.protocol.actions.Compute`.
        ticket: counts the requests to the shell.
        actions: decided so far on the present event.
    """

    def __init__(self, worker: int, layout: Layout, origin: messages.RoundOutcome | None = None) -> None:
        self.worker = worker
        self.layout = layout
        self.origin = origin
        self.generation: Generation | None = None
        self.newest: Generation | None = None
        self.planned: dict[int, Generation] = {}
        self.committed = FRESH
        self.outcome: messages.RoundOutcome | None = None
        self.held: set[int] = set()
        self.behind: set[int] = set(range(layout.units))
        self.left = False
        self.leave_announced = False
        self.first_generation = 0
        self.applied = True
        self.released = True
        self.released_at: set[int] = set()
        self.current: set[int] = set()
        self.current_announced = False
        self.committed_in = 0
        self.voted_for = 0
        self.stopping = False
        self.checkpoint_requested = False
        self.checkpointed_step = 0
        self.storage_refused = False
        self.next: Generation | None = None
        self.assignment = 0
        self.ticket = 0
        self.round = RoundState()
        self.statuses: dict[int, dict[int, messages.Status]] = {}
        self.begun = self.cannot_commit = False
        self.roles: Roles | None = None
        self.rooted_at: dict[int, frozenset[int]] = {}
        self.claims_at: dict[int, frozenset[int]] = {}
        self.known_at: frozenset[int] = frozenset()
        self.wanted_values: set[int] = set()
        self.wanted_states: set[int] = set()
        self.open_fetches: list[tuple[int, messages.Fetch]] = []
        self.early_messages: list[Received] = []
        self.actions: list[Action] = []

    @property
    def step(self) -> int:
        """Number of committed training steps."""
        known = self.outcome or self.origin
        return known.step if known else 0

    @property
    def cursors(self) -> dict[int, str]:
        """Where streams stand after the last committed round."""
        return self.outcome.cursors if self.outcome else {}

    @property
    def works_in(self) -> int:
        """Number of the generation that this worker works in; 0 until it has taken part in one."""
        return 0 if self.generation is None or self.committed == FRESH else self.generation.number

    @property
    def complete(self) -> bool:
        """Whether this worker holds every unit that it should and waits for no state, in its generation."""
        return self.begun and not self.wanted_values and self.find_units_to_hold() <= self.held

    @property
    def blocks_held(self) -> int:
        """Number of blocks with optimizer state here; if every worker keeps everything, all or none.

        The number counts while the worker waits for a generation to begin: its state is not lost meanwhile.
        """
        if self.layout.copies is None:
            return self.layout.blocks if self.layout.everything <= self.held else 0
        return len(self.held & set(range(self.layout.blocks)))

    @property
    def claims(self) -> frozenset[int]:
        """Virtual ranks of the present round that this worker computes."""
        return frozenset(self.round.claims)

    @property
    def holders(self) -> tuple[Holders, ...]:
        return self.roles.holders if self.roles else ()

    @property
    def owners(self) -> tuple[int, ...]:
        if self.roles is None:
            return ()
        return self.roles.first_owners if self.round.resumed else self.roles.owners

    def is_awaited_in(self, generation: Generation) -> bool:
        """Whether the generation waits for this worker's status."""
        return self.worker in list_awaited_workers(generation)

    def has_voted_for(self, round_: int) -> bool:
        """Whether this worker had all sums of that round: it can apply the round if others committed it."""
        return self.voted_for == round_

    def send(self, peer: int, message: messages.AnyPeerMessage) -> None:
        self.actions.append(Send(peer, message))

    def find_units_to_hold(self) -> set[int]:
        """Return the units that this worker should keep the optimizer state of."""
        if self.layout.copies is None:
            return set(self.layout.everything)
        return {block for block, holders in enumerate(self.holders) if self.worker in holders}

    def keeps_state_of(self, block: int) -> bool:
        """Whether this worker should keep the optimizer state of a block, and not only its values."""
        return self.layout.copies is None or self.worker in self.holders[block]

    def list_watched_peers(self) -> frozenset[int]:
        """Return the peers that matter when they are lost: those of this generation and of planned ones."""
        generations = [*self.planned.values(), *([self.generation] if self.generation else [])]
        return frozenset(worker for generation in generations for worker in list_awaited_workers(generation))


def list_awaited_workers(generation: Generation) -> tuple[int, ...]:
    """Return the workers that a generation waits for: its members and those that leave with it."""
    return (*generation.workers, *(leaver.worker for leaver in generation.leaving))
