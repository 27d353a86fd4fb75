"""One worker's side of the protocol: events in, actions out, no I/O and no clock.

The shell (`elastane.runtime.reactor`, or the simulator) tells a `Member` what happened and carries out, in
order, what it answers. `Member._advance` is the paragraph to read: it tries each transition of a round in
turn, and repeating it never does harm, so no message order is special.

A *round* is one unit of agreement: a training step, an evaluation, or the settling at the end. Rounds are
numbered from 1 alike on every worker. A *unit* is the smallest piece of state that moves: a parameter when
every worker keeps everything, a block when optimizer state is sharded; the last unit is the rest (buffers,
frozen parameters, schedules), which everyone keeps current once it has it.
"""

from collections.abc import Sequence

import msgspec

from elastane.api.membership import Generation
from elastane.protocol import mesh
from elastane.protocol.actions import (
    Action,
    Begin,
    Commit,
    Compute,
    Disagree,
    Leave,
    Load,
    Measure,
    Reduce,
    Report,
    Restore,
    Send,
    Serve,
    Snapshot,
    StateIsLost,
    Take,
    TakeValues,
)
from elastane.protocol.commit import disagreement, tally
from elastane.protocol.events import (
    Applied,
    CheckpointAsked,
    Computed,
    Entered,
    Event,
    Final,
    Kind,
    Lost,
    Measured,
    Proposed,
    Received,
    Snapped,
    StopAsked,
)
from elastane.protocol.layout import FRESH, STORE, Layout
from elastane.protocol.ownership import Holders, sources, spread
from elastane.protocol.roles import Roles, rooted_at, settle, with_origin, with_store
from elastane.protocol.shares import deal, deal_missing
from elastane.protocol.tree import members_of, spans


class _Round:
    """What a member knows of the round after the last committed one."""

    def __init__(self) -> None:
        self.entered: Entered | None = None
        self.begun = False
        self.claims: set[int] = set()
        self.to_compute: tuple[int, ...] = ()
        self.leaves: dict[int, mesh.Leaf] = {}
        self.rooted: set[int] = set()
        self.summed: dict[int, int] = {}
        self.final: set[int] = set()
        self.parts: tuple[mesh.Part, ...] = ()
        self.announced: set[int] = set()
        self.ready: dict[int, dict[int, tuple[mesh.Part, ...]]] = {}
        self.votes: dict[int, mesh.Vote] = {}
        self.dealt = False
        self.started = False
        self.asked = False
        self.ticket = 0
        self.snapshot = 0
        self.snapped = False
        self.voted = False


class Member:
    """The protocol state of one worker.

    Args:
        worker: its number.
        layout: of the run.
        origin: what the run begins with when it goes on from a checkpoint; None: it begins anew.
    """

    def __init__(self, worker: int, layout: Layout, origin: mesh.Outcome | None = None) -> None:
        self.worker = worker
        self.layout = layout
        self._origin = origin
        self.generation: Generation | None = None
        self.newest: Generation | None = None
        self._planned: dict[int, Generation] = {}
        self.committed = FRESH
        self.outcome: mesh.Outcome | None = None
        self.held: set[int] = set()
        self.behind: set[int] = set(range(layout.units))
        self.left = False
        self._gone = False
        self.first_generation = 0
        self._applied = True
        self._committed_in = 0
        self._voted_for = 0
        self._stopping = False
        self._checkpoint_asked = False
        self._kept = 0
        self._next: Generation | None = None
        self._assignment = 0
        self._ticket = 0
        self._round = _Round()
        self._statuses: dict[int, dict[int, mesh.Status]] = {}
        self._begun = self._hopeless = False
        self._roles: Roles | None = None
        self._rooted_at: dict[int, frozenset[int]] = {}
        self._claims_at: dict[int, frozenset[int]] = {}
        self._known_at: frozenset[int] = frozenset()
        self._wanted_values: set[int] = set()
        self._wanted_states: set[int] = set()
        self._fetches: list[tuple[int, mesh.Fetch]] = []
        self._early: list[Received] = []
        self._actions: list[Action] = []

    # -- what the shell may read ---------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Training steps committed."""
        known = self.outcome or self._origin
        return known.step if known else 0

    @property
    def _cursors(self) -> dict[int, str]:
        """Where streams stand as of the last committed round."""
        return self.outcome.cursors if self.outcome else {}

    @property
    def works_in(self) -> int:
        """Number of the generation it works in; 0 until it has taken part in one."""
        return 0 if self.generation is None or self.committed == FRESH else self.generation.number

    @property
    def complete(self) -> bool:
        """It works in its generation, holds every unit it should and waits for nobody's state."""
        return self._begun and not self._wanted_values and self._should_hold() <= self.held

    @property
    def blocks_held(self) -> int:
        """Blocks whose optimizer state it keeps."""
        if self.layout.copies is None:
            return self.layout.blocks if self.complete else 0
        return len(self.held & set(range(self.layout.blocks)))

    @property
    def claims(self) -> frozenset[int]:
        """Virtual ranks of the current round that are mine."""
        return frozenset(self._round.claims)

    # -- events --------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Take in one event; what is to be done about it, in order."""
        self._take(event)
        self._advance()
        actions, self._actions = self._actions, []
        return actions

    def _take(self, event: Event) -> None:  # noqa: C901, PLR0912 - one row per kind of event
        match event:
            case Proposed(generation):
                self._proposed(generation)
            case Entered():
                self._round.entered = event
            case Computed(leaf):
                self._round.leaves[leaf.virtual_rank] = leaf
            case Final(assignment, blocks, parts):
                if assignment == self._assignment:
                    self._round.final.update(blocks)
                    self._round.parts = parts
            case Measured(ticket):
                if ticket == self._round.ticket and self._round.asked:
                    self._vote(event)
            case Applied():
                self._applied = True
                self._publish()
            case Received(sender, message):
                self._received(sender, message)
            case Lost(peer):
                # Whoever is in a newer generation that I have not heard of will be named there again.
                if self.generation is not None and not self.left and peer in self._concerned():
                    self._actions.append(Report(peer, self.generation.number))
            case StopAsked():
                self._stopping = True
            case CheckpointAsked(after):
                # Asked again, because the answer had not been heard, it is not kept twice.
                self._checkpoint_asked = self._checkpoint_asked or self._kept <= after
            case Snapped(ticket):
                self._round.snapped = self._round.snapped or ticket == self._round.snapshot

    def _proposed(self, generation: Generation) -> None:
        newest = self.newest
        if newest is not None and (generation.number <= newest.number or generation.term < newest.term):
            return
        self.newest = generation
        leaving = any(leaver.worker == self.worker for leaver in generation.leaving)
        if self.left and not leaving:
            return
        if self.committed == FRESH and self.worker not in generation:
            if leaving:
                # Thought to hold something; the others wait to hear that it does not.
                self._tell_status(generation)
            return
        if generation.planned and self.committed != FRESH and not self.left:
            # Kept beside older ones: a vote may already have promised one of those.
            self._planned[generation.number] = generation
            return
        self._adopt(generation)

    def _received(self, sender: int, message: mesh.AnyPeerMessage) -> None:
        current = self.generation.number if self.generation else 0
        if isinstance(message, mesh.Status):
            # A joiner's status tells its peers that the way to it is open, before they are there themselves.
            if message.generation >= current:
                self._statuses.setdefault(message.generation, {})[sender] = message
            return
        if message.generation < current:
            return
        early = message.generation > current
        match message:
            case mesh.Ready() | mesh.Summed() | mesh.Vote():
                early = early or not self._begun or message.round > self.committed + 1
            case mesh.Published():
                early = early or message.round > self.committed
            case mesh.Fetch():
                early = early or message.committed > self.committed
            case mesh.State():
                pass
        if early:
            self._early.append(Received(sender, message))
            return
        self._heard(sender, message)

    def _heard(self, sender: int, message: mesh.AnyPeerMessage) -> None:
        """A message of this generation that is not early; it may be late, and then it is void."""
        match message:
            case mesh.Ready() | mesh.Summed() | mesh.Vote():
                if message.round == self.committed + 1:
                    self._heard_of_round(sender, message)
            case mesh.Published():
                if message.round == self.committed:
                    self._take_values(sender, message.units)
            case mesh.Fetch():
                if message.committed == self.committed:
                    self._fetches.append((sender, message))
            case mesh.State():
                self._loaded(sender, message)
            case mesh.Status():  # taken in before, whatever its generation
                pass

    def _heard_of_round(self, sender: int, message: mesh.Ready | mesh.Summed | mesh.Vote) -> None:
        now = self._round
        match message:
            case mesh.Ready(blocks=blocks, parts=parts):
                for block in blocks:
                    now.ready.setdefault(block, {})[sender] = parts
            case mesh.Summed(blocks=blocks):
                now.summed.update(dict.fromkeys(blocks, sender))
            case mesh.Vote(leaves=leaves):
                now.votes[sender] = message
                now.leaves.update((leaf.virtual_rank, leaf) for leaf in leaves)

    def _take_values(self, sender: int, units: tuple[int, ...]) -> None:
        new = tuple(unit for unit in units if unit in self.behind)
        if new:
            self.behind.difference_update(new)
            self._actions.append(TakeValues(sender, new))

    def _loaded(self, sender: int, state: mesh.State) -> None:
        values = tuple(unit for unit in state.values if unit in self._wanted_values)
        states = tuple(unit for unit in state.states if unit in self._wanted_states)
        if state.committed != self.committed or not (values or states):
            return
        self._wanted_values.difference_update(values)
        self._wanted_states.difference_update(states)
        self.behind.difference_update(values)
        self.held.update(states)
        if self.layout.rest in values:
            self.held.add(self.layout.rest)
        self._actions.append(Load(sender, state))

    # -- the transitions, each harmless to try again -------------------------------------------------------

    def _advance(self) -> None:
        self._switch_generation()
        self._begin_generation()
        self._deal()
        self._start_computing()
        self._announce()
        self._compare()
        self._reduce()
        self._take_sums()
        self._serve()
        self._snapshot()
        self._measure()
        self._commit()

    def _switch_generation(self) -> None:
        """A planned generation begins where the next training step does, once the last one is settled."""
        entered = self._round.entered
        if self._next is None or entered is None or entered.kind != "train":
            return
        if self._applied and (self.layout.copies is None or not self.behind):
            self._adopt(self._next)

    def _adopt(self, generation: Generation) -> None:
        """Work in this generation from now on; whatever the older one had under way is void."""
        self.generation = generation
        self._next = None
        self._planned = {n: planned for n, planned in self._planned.items() if n > generation.number}
        self._begun = self._hopeless = False
        self._wanted_values.clear()
        self._wanted_states.clear()
        self._fetches.clear()
        now = self._round
        now.begun = now.dealt = now.started = now.asked = now.voted = now.snapped = False
        now.snapshot = 0
        now.announced.clear()
        now.ready.clear()
        now.summed.clear()
        now.votes.clear()
        self._statuses = {n: s for n, s in self._statuses.items() if n >= generation.number}
        if self.first_generation == 0:
            self.first_generation = generation.number
        if self._told(generation):
            self._tell_status(generation)
        else:
            self._leave()
        if self.worker not in generation and not generation.planned:
            # The others do again what I have begun of this round: I cannot be a member of it any more.
            self.left = True
        self._recall_early()

    def _leave(self) -> None:
        self.left = True
        if not self._gone:
            self._gone = True
            self._voted_for = 0
            self._actions.append(Leave())

    def _recall_early(self) -> None:
        """What came too early may be due now."""
        early, self._early = self._early, []
        for event in early:
            self._received(event.sender, event.message)

    @staticmethod
    def _all_told(generation: Generation) -> tuple[int, ...]:
        """Everyone whose status a generation waits for."""
        return (*generation.workers, *(leaver.worker for leaver in generation.leaving))

    def _told(self, generation: Generation) -> bool:
        return self.worker in self._all_told(generation)

    def _tell_status(self, generation: Generation) -> None:
        now = self._round
        fresh = self.committed == FRESH
        status = mesh.Status(
            generation=generation.number,
            worker=self.worker,
            committed=self.committed,
            outcome=self.outcome,
            claims=() if fresh else spans(now.claims),
            leaves=() if fresh else tuple(now.leaves.values()),
            rooted=() if fresh else spans(now.rooted),
            held=spans(self.held),
            keeps=spans(self.held & self._should_hold()) if self._has_voted_for(self.committed + 1) else (),
            behind=spans(self.behind),
        )
        self._statuses.setdefault(generation.number, {})[self.worker] = status
        told = self._all_told(generation)
        self._actions.extend(Send(peer, status) for peer in told if peer != self.worker)

    def _begin_generation(self) -> None:
        """With everyone's status, all know the same: the round, the sums there are, who fetches what."""
        generation = self.generation
        if generation is None or self._begun or not self._told(generation):
            return
        statuses = self._statuses.get(generation.number, {})
        told = self._all_told(generation)
        if any(worker not in statuses for worker in told):
            return
        here = {worker: statuses[worker] for worker in told}
        if self._origin is None:
            here = with_origin(self.layout, generation.workers, here)
        else:
            here = with_store(self.layout, self._origin, here)
        newest = max(status.committed for status in here.values())
        outcome = next(status.outcome for status in here.values() if status.committed == newest)
        if self.committed == FRESH:
            self.committed, self.outcome = newest, outcome
        elif self.committed < newest and outcome is not None and self._can_catch_up(generation):
            self._conclude(outcome)
            # Who needs the new values fetches them: this generation's owners may not have them yet.
            self._committed_in = 0
        mine = here[self.worker]
        if mine.committed == newest:
            self.held, self.behind = set(members_of(mine.held)), set(members_of(mine.behind))
        if self.worker in generation:
            self._resume(generation, here, newest)
        else:
            self._leave()
        self._begun = True
        self._recall_early()

    def _has_voted_for(self, round_: int) -> bool:
        """It had all sums it needed of that round: it can apply it, should others have committed it."""
        return self._voted_for == round_

    def _can_catch_up(self, generation: Generation) -> bool:
        # A leaver that the others went on without stays where it is; all the same it can be a member again.
        return self.worker in generation or self._has_voted_for(self.committed + 1)

    def _resume(self, generation: Generation, here: dict[int, mesh.Status], newest: int) -> None:
        """Go on with the round after ``newest``, from what all members together have of it."""
        now = self._round
        now.begun = True
        current = {w: here[w] for w in generation.workers if here[w].committed == newest}
        self._claims_at = {worker: members_of(status.claims) for worker, status in current.items()}
        self._rooted_at = {worker: rooted_at(status, newest) for worker, status in current.items()}
        known = {leaf.virtual_rank: leaf for status in current.values() for leaf in status.leaves}
        # Two may know a virtual rank from two workers; all must name the same one.
        own = {rank: leaf for rank, leaf in now.leaves.items() if leaf.worker == self.worker}
        now.leaves = {**known, **own}
        self._known_at = frozenset(known)
        roles = settle(self.layout, generation, here)
        self._roles = roles
        if roles.lost:
            self._hopeless = True
            self._actions.append(StateIsLost(roles.lost))
            return
        self._fetch(roles.values.get(self.worker, {}), roles.states.get(self.worker, {}))

    def _fetch(self, values: dict[int, tuple[int, ...]], states: dict[int, tuple[int, ...]]) -> None:
        assert self.generation is not None, "only members of a generation fetch"  # noqa: S101
        for peer in sorted({*values, *states}):
            fetch = mesh.Fetch(
                generation=self.generation.number,
                committed=self.committed,
                values=values.get(peer, ()),
                states=states.get(peer, ()),
            )
            self._wanted_values.update(fetch.values)
            self._wanted_states.update(fetch.states)
            if peer == STORE:
                self._actions.append(Restore(fetch.generation, fetch.values, fetch.states))
            else:
                self._actions.append(Send(peer, fetch))

    def _deal(self) -> None:
        """Shares of the round: all anew, or, when some are claimed already, only what is missing."""
        now, generation = self._round, self.generation
        if not (self._begun and now.entered and generation) or now.dealt:
            return
        if self._next is not None and now.entered.kind == "train":
            # This step belongs to the generation all have agreed on.
            return
        if self._hopeless or self.worker not in generation:
            return
        now.dealt = True
        size = now.entered.size
        speeds = {member.worker: member.speed for member in generation.members}
        if now.begun and (any(self._claims_at.values()) or self._known_at):
            blocks = self.layout.blocks if now.entered.kind == "train" else 0
            rooted = frozenset[int]().union(*self._rooted_at.values())
            # With every sum at hand, what the dead computed need not be computed again.
            known = self._known_at if len(rooted) >= blocks else frozenset[int]()
            dealt = deal_missing(size, {**self._claims_at, FRESH: known}, speeds)
            mine = members_of(dealt.get(self.worker, ()))
        else:
            shares = deal(size, tuple(speeds.values()))
            mine = members_of((shares[generation.workers.index(self.worker)],))
        new = tuple(sorted(mine - now.claims))
        if new:
            now.claims.update(new)
            now.to_compute += new
            now.final.clear()
            self._assignment += 1
        if now.begun:
            self._pass_on_sums()
        self._fetch_more()

    def _pass_on_sums(self) -> None:
        """Whoever has a whole sum from before the generation gives it to those who lack it."""
        for block in sorted(self._round.rooted):
            if self._owners[block] == self.worker:
                self._tell_summed((block,))

    def _fetch_more(self) -> None:
        """A joiner that is to keep everything fetches a portion a step, and values of what it lacks yet."""
        if self._roles is None or self.layout.copies is not None or self.complete:
            return
        asked: list[int] = []
        size = 0
        for unit in sorted(set(self.layout.everything) - self.held - self._wanted_states):
            size += self.layout.unit_bytes[unit]
            if asked and size > self.layout.fetch_bytes:
                break
            asked.append(unit)
        behind = sorted(self.behind - self._wanted_values)
        donors = {worker: units for worker, units in self._roles.donors.items() if worker != self.worker}
        self._fetch(
            sources({self.worker: behind}, donors).get(self.worker, {}),
            sources({self.worker: asked}, donors).get(self.worker, {}),
        )

    def _start_computing(self) -> None:
        """Compute once all values are those of the last committed round."""
        now, generation = self._round, self.generation
        if not (now.dealt and generation) or self.behind or not self._applied:
            return
        if not now.started:
            now.started = True
            workers = len(generation.members)
            begin = Begin(self.committed + 1, self.step + 1, generation.number, workers, self._cursors)
            self._actions.append(begin)
        if now.to_compute:
            self._actions.append(Compute(now.to_compute, self._assignment))
            now.to_compute = ()

    def _announce(self) -> None:
        """Tell the owners which of my partial sums are final."""
        now, generation = self._round, self.generation
        if not (now.dealt and generation):
            return
        old = frozenset[int]().union(*self._rooted_at.values()) if now.begun else frozenset[int]()
        by_owner: dict[int, list[int]] = {}
        for block in sorted(now.final - now.announced):
            now.announced.add(block)
            if block not in old:
                by_owner.setdefault(self._owners[block], []).append(block)
        for owner, blocks in by_owner.items():
            if owner == self.worker:
                for block in blocks:
                    now.ready.setdefault(block, {})[self.worker] = now.parts
            else:
                self._tell(
                    owner,
                    mesh.Ready(
                        generation=generation.number,
                        round=self.committed + 1,
                        blocks=tuple(blocks),
                        parts=now.parts,
                    ),
                )

    def _compare(self) -> None:
        """All scripts must go the same way: what one of them trains, no other may evaluate."""
        now = self._round
        if not (now.started and now.entered) or self._hopeless:
            return
        mine = now.votes.get(self.worker)
        why = disagreement(self.worker, now.entered.kind, mine.kept if mine else None, now.votes)
        if why:
            self._hopeless = True
            self._actions.append(Disagree(why))

    def _reduce(self) -> None:
        """Sum the blocks I own once partial sums of all virtual ranks are there."""
        now = self._round
        if not (now.started and now.entered and now.entered.kind == "train"):
            return
        done: list[int] = []
        for block in sorted(now.ready):
            if self._owners[block] != self.worker or block in now.rooted:
                continue
            by_worker = now.ready[block]
            count = sum(
                stop - start for parts in by_worker.values() for p in parts for start, stop in p.spans
            )
            if count < now.entered.size:
                continue
            now.rooted.add(block)
            self._actions.append(Reduce((block,), dict(by_worker)))
            done.append(block)
        if done:
            self._tell_summed(tuple(done))

    def _take_sums(self) -> None:
        """Copy whole sums from their owners; not before mine of the last round have been applied."""
        now = self._round
        if not now.started:
            return
        by_sender: dict[int, list[int]] = {}
        for block, sender in now.summed.items():
            if block not in now.rooted:
                by_sender.setdefault(sender, []).append(block)
        now.summed.clear()
        for sender, blocks in by_sender.items():
            now.rooted.update(blocks)
            self._actions.append(Take(sender, tuple(blocks)))

    def _tell_summed(self, blocks: Sequence[int]) -> None:
        assert self.generation is not None, "only members of a generation sum"  # noqa: S101
        for worker in self.generation.workers:
            theirs = tuple(
                block
                for block in blocks
                if worker in self._holders[block]
                and not (self._round.begun and block in self._rooted_at.get(worker, ()))
            )
            if theirs and worker != self.worker:
                summed = mesh.Summed(
                    generation=self.generation.number, round=self.committed + 1, blocks=theirs
                )
                self._tell(worker, summed)

    def _serve(self) -> None:
        """Hand out state once I have it, as long as it is that of the round asked for."""
        if not self._applied:
            return
        fetches, self._fetches = self._fetches, []
        for peer, fetch in fetches:
            if fetch.committed != self.committed:
                continue
            if self.held.issuperset(fetch.states) and self.behind.isdisjoint(fetch.values):
                self._actions.append(Serve(peer, fetch))
            else:
                self._fetches.append((peer, fetch))

    def _snapshot(self) -> None:
        """Copy what I am to write of a checkpoint under the computing: nothing changes before the commit."""
        now, entered = self._round, self._round.entered
        if not (now.started and entered and self._roles) or self._wanted_values or self._wanted_states:
            return
        if now.snapshot or not self._checkpoint_due(entered.kind):
            return
        self._ticket += 1
        now.snapshot = self._ticket
        self._actions.append(
            Snapshot(
                ticket=now.snapshot,
                step=self.step,
                blocks=self._audited(),
                writers=tuple(sorted(set(self._auditors))),
            )
        )

    def _checkpoint_due(self, kind: Kind) -> bool:
        """An evaluation changes nothing: the state is copied under the next step, or at the end."""
        if kind == "settle":
            return self.layout.checkpoints
        return kind == "train" and self.outcome is not None and self.outcome.checkpoint

    def _audited(self) -> tuple[int, ...]:
        return tuple(block for block, auditor in enumerate(self._auditors) if auditor == self.worker)

    @property
    def _auditors(self) -> tuple[int, ...]:
        """Per block, who digests its state and copies it for checkpoints.

        Where everyone keeps everything that is all who said so with the last round, joiners of this
        generation too, once they have it.
        """
        if self._roles is None or self.generation is None:
            return ()
        complete = self.outcome.complete if self.outcome and self.layout.copies is None else ()
        able = [worker for worker in self.generation.workers if worker in complete]
        return spread(self.layout.blocks, able) if able else self._roles.auditors

    def _measure(self) -> None:
        """With all sums I need, all state I asked for and the copy I was to make, prepare the vote."""
        now, entered = self._round, self._round.entered
        if (
            not (now.started and entered and self._roles)
            or now.asked
            or self._wanted_values
            or self._wanted_states
            or (self._checkpoint_due(entered.kind) and not now.snapped)
        ):
            return
        if any(rank not in now.leaves or now.leaves[rank].worker != self.worker for rank in now.claims):
            return
        train = entered.kind == "train"
        needed = [block for block, holders in enumerate(self._holders) if self.worker in holders]
        if train and any(block not in now.rooted for block in needed):
            return
        now.asked = True
        self._ticket += 1
        now.ticket = self._ticket
        owned = tuple(block for block, owner in enumerate(self._owners) if owner == self.worker)
        audited = self._audited() if self._digest_due(entered.kind) else ()
        self._actions.append(Measure(now.ticket, owned if train else (), audited))

    def _digest_due(self, kind: Kind) -> bool:
        """Votes carry digests of the state before the round; a joiner must know it like all others."""
        every = self.layout.digest_every
        return kind == "settle" or (
            kind == "train" and every > 0 and self.step > 0 and self.step % every == 0
        )

    def _vote(self, measured: Measured) -> None:
        now, generation = self._round, self.generation
        if not generation or not now.entered or now.voted:
            return
        now.voted = True
        self._voted_for = self.committed + 1
        ready = self._ready_for() if now.entered.kind == "train" else 0
        vote = mesh.Vote(
            generation=generation.number,
            round=self.committed + 1,
            leaves=tuple(leaf for leaf in now.leaves.values() if leaf.worker == self.worker),
            norms=measured.norms,
            digests=measured.digests,
            ready=ready,
            stop=self._stopping,
            checkpoint=now.entered.checkpoint or self._checkpoint_asked,
            complete=self.complete,
            kind=now.entered.kind,
            kept=measured.kept,
        )
        now.votes[self.worker] = vote
        for peer in generation.workers:
            if peer != self.worker:
                self._tell(peer, vote)

    def _ready_for(self) -> int:
        """The newest planned generation whose joiners have all been heard: the way to them is open."""
        assert self.generation is not None, "only members of a generation vote"  # noqa: S101
        for number in sorted(self._planned, reverse=True):
            heard = self._statuses.get(number, {})
            if all(w in heard for w in self._planned[number].workers if w not in self.generation):
                return number
        return 0

    def _commit(self) -> None:
        """All votes are here: from now on the round cannot be undone."""
        now, generation = self._round, self.generation
        if not (now.voted and generation and now.entered):
            return
        self._compare()
        if self._hopeless or any(worker not in now.votes for worker in generation.workers):
            return
        step = self.step + (now.entered.kind == "train")
        self._conclude(tally(self.committed + 1, step, now.leaves, now.votes, self._cursors))

    def _conclude(self, outcome: mesh.Outcome) -> None:
        assert self.generation is not None, "only members of a generation commit"  # noqa: S101
        trained = outcome.step > self.step
        if outcome.checkpoint:
            self._checkpoint_asked, self._kept = False, outcome.step
        if not trained and self.outcome is not None and self.outcome.checkpoint:
            # Still to be made: an evaluation came in between.
            outcome = msgspec.structs.replace(outcome, checkpoint=True)
        self.committed, self.outcome = outcome.round, outcome
        if trained:
            self._applied = False
            self._committed_in = self.generation.number
            self.held &= self._should_hold() if self._has_voted_for(outcome.round) else set()
            self.behind = set(self.layout.everything) - {self.layout.rest} - self.held
            # An evaluation in between does not change what a training round has agreed on.
            self._next = self._planned.get(outcome.next_generation)
        self._round = _Round()
        healthy = self.generation.number != self.first_generation
        self._actions.append(Commit(outcome, frozenset(self.held), healthy))
        self._recall_early()

    def _publish(self) -> None:
        """Give the new values of the blocks I own to who does not compute them itself."""
        generation = self.generation
        if self.layout.copies is None or generation is None or generation.number != self._committed_in:
            return
        for worker in generation.workers:
            units = tuple(
                block
                for block, holders in enumerate(self._holders)
                if holders[0] == self.worker and worker not in holders
            )
            if units and worker != self.worker:
                published = mesh.Published(generation=generation.number, round=self.committed, units=units)
                self._tell(worker, published)

    def _tell(self, peer: int, message: mesh.AnyPeerMessage) -> None:
        self._actions.append(Send(peer, message))

    def _should_hold(self) -> set[int]:
        if self.layout.copies is None:
            return set(self.layout.everything)
        return {block for block, holders in enumerate(self._holders) if self.worker in holders}

    @property
    def _holders(self) -> tuple[Holders, ...]:
        return self._roles.holders if self._roles else ()

    @property
    def _owners(self) -> tuple[int, ...]:
        if self._roles is None:
            return ()
        return self._roles.first_owners if self._round.begun else self._roles.owners

    def _concerned(self) -> frozenset[int]:
        """Peers whose loss matters: of this generation and of planned ones."""
        generations = [*self._planned.values(), *([self.generation] if self.generation else [])]
        return frozenset(worker for generation in generations for worker in self._all_told(generation))
