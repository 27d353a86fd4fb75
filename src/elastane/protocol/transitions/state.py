"""One worker's knowledge: of the round under way, of its generation, of what everybody has."""

from elastane.api.membership import Generation
from elastane.protocol import messages
from elastane.protocol.actions import Action, Send
from elastane.protocol.events import Received, RoundEntered
from elastane.protocol.layout import FRESH, Layout
from elastane.protocol.ownership import Holders
from elastane.protocol.roles import Roles


class Round:
    """What a member knows of the round after the last committed one."""

    def __init__(self) -> None:
        self.entered: RoundEntered | None = None
        self.begun = False
        self.claims: set[int] = set()
        self.to_compute: tuple[int, ...] = ()
        self.leaves: dict[int, messages.Leaf] = {}
        self.rooted: set[int] = set()
        self.summed: dict[int, int] = {}
        self.final: set[int] = set()
        self.parts: tuple[messages.PartialSum, ...] = ()
        self.announced: set[int] = set()
        self.ready: dict[int, dict[int, tuple[messages.PartialSum, ...]]] = {}
        self.votes: dict[int, messages.Vote] = {}
        self.dealt = False
        self.started = False
        self.asked = False
        self.ticket = 0
        self.snapshot = 0
        self.snapped = False
        self.voted = False


class MemberState:
    """All that a member knows, for the functions beside this file to read and change.

    Args:
        worker: its number.
        layout: of the run.
        origin: what the run begins with when it goes on from a checkpoint; None: it begins anew.

    Attributes:
        generation: it works in, or is about to; None: it has not been in any.
        newest: with the highest number heard of.
        planned: generations that may begin at a later step, by number.
        next: the one of them that all votes agreed on; it begins with the next training step.
        committed: last committed round; `FRESH`: it has no state at all.
        outcome: of that round.
        applied: the optimizer has run for it.
        released: the script has run on since the last training step; so has that of a newcomer.
        released_at: members whose scripts had, when the generation began in the middle of a round.
        current: members that have told to have all values of the last training step.
        told_current: this worker has told so in this generation.
        committed_in: generation in which it was committed; 0: that was told by another one's status.
        voted_for: the round it has voted for last.
        round: the one after ``committed``.
        held: units whose optimizer state it holds.
        behind: units whose values it lacks.
        left: it has left training, or is about to; it may still serve state.
        gone: the script has been told so.
        first_generation: it was in; 0: none yet.
        statuses: heard for generations from the present one on: by number, then by worker.
        begun: all statuses of ``generation`` are here.
        hopeless: this generation cannot commit: some state is lost, or scripts disagree.
        roles: of ``generation``.
        rooted_at: blocks whose whole sums each member had as it began.
        claims_at: virtual ranks each member had then.
        known_at: virtual ranks whose leaves somebody knew then.
        wanted_values: units whose values are asked for and have not come.
        wanted_states: likewise, optimizer state.
        fetches: asked of this worker and not served yet.
        early: messages kept until they are due.
        stopping: the run should stop after this round.
        checkpoint_asked: the state is to be kept.
        kept: last step whose state was.
        storage_refused: its last part of a checkpoint.
        assignment: counts what it was to compute; see `elastane.protocol.actions.Compute`.
        ticket: counts what it has asked of its shell.
        actions: decided on in this turn.
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
        self.gone = False
        self.first_generation = 0
        self.applied = True
        self.released = True
        self.released_at: set[int] = set()
        self.current: set[int] = set()
        self.told_current = False
        self.committed_in = 0
        self.voted_for = 0
        self.stopping = False
        self.checkpoint_asked = False
        self.kept = 0
        self.storage_refused = False
        self.next: Generation | None = None
        self.assignment = 0
        self.ticket = 0
        self.round = Round()
        self.statuses: dict[int, dict[int, messages.Status]] = {}
        self.begun = self.hopeless = False
        self.roles: Roles | None = None
        self.rooted_at: dict[int, frozenset[int]] = {}
        self.claims_at: dict[int, frozenset[int]] = {}
        self.known_at: frozenset[int] = frozenset()
        self.wanted_values: set[int] = set()
        self.wanted_states: set[int] = set()
        self.fetches: list[tuple[int, messages.Fetch]] = []
        self.early: list[Received] = []
        self.actions: list[Action] = []

    @property
    def step(self) -> int:
        """Training steps committed."""
        known = self.outcome or self.origin
        return known.step if known else 0

    @property
    def cursors(self) -> dict[int, str]:
        """Where streams stand as of the last committed round."""
        return self.outcome.cursors if self.outcome else {}

    @property
    def works_in(self) -> int:
        """Number of the generation it works in; 0 until it has taken part in one."""
        return 0 if self.generation is None or self.committed == FRESH else self.generation.number

    @property
    def complete(self) -> bool:
        """It works in its generation, holds every unit it should and waits for nobody's state."""
        return self.begun and not self.wanted_values and self.should_hold() <= self.held

    @property
    def blocks_held(self) -> int:
        """Blocks whose optimizer state it keeps; where everyone keeps everything, all or none.

        Also while it waits to begin in a generation: what it keeps is not lost meanwhile.
        """
        if self.layout.copies is None:
            return self.layout.blocks if self.layout.everything <= self.held else 0
        return len(self.held & set(range(self.layout.blocks)))

    @property
    def claims(self) -> frozenset[int]:
        """Virtual ranks of the current round that are mine."""
        return frozenset(self.round.claims)

    def told(self, generation: Generation) -> bool:
        return self.worker in all_told(generation)

    def has_voted_for(self, round_: int) -> bool:
        """It had all sums it needed of that round: it can apply it, should others have committed it."""
        return self.voted_for == round_

    def tell(self, peer: int, message: messages.AnyPeerMessage) -> None:
        self.actions.append(Send(peer, message))

    def should_hold(self) -> set[int]:
        if self.layout.copies is None:
            return set(self.layout.everything)
        return {block for block, holders in enumerate(self.holders) if self.worker in holders}

    def keeps_state_of(self, block: int) -> bool:
        """Whether this worker should keep the optimizer state of a block, and not only its values."""
        return self.layout.copies is None or self.worker in self.holders[block]

    @property
    def holders(self) -> tuple[Holders, ...]:
        return self.roles.holders if self.roles else ()

    @property
    def owners(self) -> tuple[int, ...]:
        if self.roles is None:
            return ()
        return self.roles.first_owners if self.round.begun else self.roles.owners

    def concerned(self) -> frozenset[int]:
        """Peers whose loss matters: of this generation and of planned ones."""
        generations = [*self.planned.values(), *([self.generation] if self.generation else [])]
        return frozenset(worker for generation in generations for worker in all_told(generation))


def all_told(generation: Generation) -> tuple[int, ...]:
    """Everyone whose status a generation waits for."""
    return (*generation.workers, *(leaver.worker for leaver in generation.leaving))
