"""A simulated worker: the real `Member`, a training thread that only pretends, and a link to the coordinator.

The shell's rules are those of the real one: the actions of one `handle` are done in order before the next
event; a message whose memory cannot be reached, because its sender is dead, counts as never arrived.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from elastane.api.control import (
    Acknowledge,
    Dismiss,
    FromWorker,
    ModelWritten,
    PeerLost,
    Propose,
    PublishCheckpoint,
    StepReport,
    Steps,
    Stop,
    TakeCheckpoint,
    ToWorker,
    WorkerFailed,
    WorkerReport,
    WorkerState,
    WriteModel,
)
from elastane.api.membership import WorkerId
from elastane.api.records import LedgerLine, Samples
from elastane.api.spec import Pinned
from elastane.protocol import actions, events, mesh
from elastane.protocol.events import Kind
from elastane.protocol.layout import STORE
from elastane.protocol.member import Member
from elastane.simulator.checkers import Checker, expect
from elastane.simulator.clock import Clock
from elastane.simulator.memory import Memory, summed
from elastane.simulator.network import Endpoint, Payload, Streams
from elastane.simulator.symbols import (
    Shape,
    digest_of,
    gradient,
    leaf_of,
    norm_of,
    quiet,
    rest_after,
    updated,
)
from elastane.simulator.vault import Kept, Record, Vault

BETWEEN_REPORTS_S = 0.5


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Longest durations, in seconds.

    Args:
        start_s: from the start of the process to its first step.
        leaf_s: of a virtual rank.
        apply_s: of the optimizer.
        user_s: of the script's own code between two rounds.
        measure_s: of norms and digests.
    """

    start_s: float = 0.4
    leaf_s: float = 0.02
    apply_s: float = 0.01
    user_s: float = 0.005
    measure_s: float = 0.003


class World(Protocol):
    """What a worker can reach."""

    clock: Clock
    shape: Shape
    pace: Pace
    pinned: Pinned
    shared: bool
    streams: Streams
    checker: Checker
    vault: Vault
    origin: Kept | None
    workers: dict[WorkerId, "SimWorker"]

    def to_coordinator(self, message: FromWorker) -> None: ...

    def ended(self, worker: WorkerId, code: int, *, hung: bool = False) -> None: ...

    def tell(self, line: Callable[[], str]) -> None: ...

    def narrate(self, line: Callable[[], str]) -> None: ...


class SimWorker(Endpoint):
    """One worker's process.

    Args:
        worker: its number.
        world: all it can reach.
        slowness: factor on the durations of its virtual ranks.

    Attributes:
        fuse: actions it still carries out before it dies; None: no end in sight.
        trigger: kind of action it dies before, and how many of them it still carries out.
    """

    def __init__(self, worker: WorkerId, world: World, slowness: float = 1.0) -> None:
        super().__init__(worker)
        self.world = world
        self.slowness = slowness
        self.memory = Memory(quiet(world.shape))
        self.member = Member(worker, world.shape.layout, _outcome_of(world.origin))
        self.state: WorkerState = "starting"
        self.paused = False
        self.fuse: int | None = None
        self.trigger: tuple[str, int] | None = None
        self.round = 0
        self.step = 0
        self.kind: Kind = "train"
        self._deferred: list[Callable[[], None]] = []
        self._queue: list[int] = []
        self._assignment = 0
        self._computing = False
        self._snapshot: tuple[actions.Snapshot, Record] | None = None
        self._payloads: dict[tuple[int, ...], int] = {}
        self._mapped: set[tuple[WorkerId, int]] = set()
        self._lost: dict[WorkerId, PeerLost] = {}
        self._unacknowledged: list[StepReport] = []
        self._reported: WorkerReport | None = None
        self._generation = 0
        self._began_s = 0.0
        self._leaf_s: list[float] = []
        world.clock.after(self._chance(world.pace.start_s) + 0.05, self._alive(self._rehearsed))
        world.clock.after(0.01, self._alive(self._report_regularly))

    # -- life and death ------------------------------------------------------------------------------------

    def _chance(self, longest_s: float) -> float:
        return self.world.clock.random.random() * longest_s

    def _alive(self, deed: Callable[[], None]) -> Callable[[], None]:
        """What a dead process does not do any more, and a stopped one does when it goes on."""

        def do() -> None:
            if not self.alive:
                return
            if self.paused:
                self._deferred.append(do)
            else:
                deed()

        return do

    def _after(self, delay_s: float, deed: Callable[[], None]) -> None:
        self.world.clock.after(delay_s, self._alive(deed))

    def die(self, code: int = -9, *, hung: bool = False) -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.narrate(lambda: f"worker {self.worker} " + ("goes" if code == 0 else "dies"))
        self.world.streams.cut(self.worker)
        self.world.ended(self.worker, code, hung=hung)

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for deed in deferred:
            deed()

    # -- the coordinator -----------------------------------------------------------------------------------

    def _rehearsed(self) -> None:
        self.state = "ready"
        self._enter("train" if self.member.step < self.world.shape.steps else "settle")

    def _report_regularly(self) -> None:
        self._reported = None
        self._report()
        for lost in self._lost.values():
            self.world.to_coordinator(lost)
        self._after(BETWEEN_REPORTS_S, self._report_regularly)

    def _report(self) -> None:
        member = self.member
        if self.state == "ready" and member.works_in:
            self.state = "member"
        report = WorkerReport(
            worker=self.worker,
            pid=1000 + self.worker,
            host="127.0.0.1",
            port=2000 + self.worker,
            state=self.state,
            generation=member.works_in,
            newest=member.newest,
            step=member.step,
            complete=member.complete,
            virtual_ranks=len(member.claims),
            blocks=len(member.held),
            compute_s=sorted(self._leaf_s)[len(self._leaf_s) // 2] if self._leaf_s else 0.0,
            pinned=None if self.state == "starting" else self.world.pinned,
            stopped=self.state == "finished" and member.step < self.world.shape.steps,
        )
        known = self._reported
        if known is None or self._gist(known) != self._gist(report):
            self._reported = report
            self.world.to_coordinator(report)
            if self._unacknowledged:
                self.world.to_coordinator(Steps(worker=self.worker, reports=tuple(self._unacknowledged)))

    @staticmethod
    def _gist(report: WorkerReport) -> tuple[object, ...]:
        newest = report.newest.number if report.newest else 0
        return report.state, report.generation, newest, report.step, report.complete

    def hear(self, message: ToWorker) -> None:
        """A message of the coordinator has arrived."""
        self._alive(lambda: self._hear(message))()

    def _hear(self, message: ToWorker) -> None:  # noqa: C901 - one row per kind of message
        match message:
            case Propose(generation=generation):
                everybody = [peer.worker for peer in (*generation.members, *generation.leaving)]
                if self.worker in everybody:
                    for peer in everybody:
                        self.world.streams.dial(self.worker, peer)
                self.handle(events.Proposed(generation))
            case Acknowledge(step=step):
                self._unacknowledged = [r for r in self._unacknowledged if r.line.step > step]
            case Stop():
                self.handle(events.StopAsked())
            case WriteModel():
                if self.state == "finished":
                    self._after(0.01, lambda: self.world.to_coordinator(ModelWritten(worker=self.worker)))
            case TakeCheckpoint(after=after):
                self.handle(events.CheckpointAsked(after))
            case PublishCheckpoint():
                pass  # the vault judges for itself whether all parts are there
            case Dismiss(code=code):
                self.world.checker.dismissed(self.worker)
                self.die(code)

    # -- peers ---------------------------------------------------------------------------------------------

    def receive(self, sender: WorkerId, message: mesh.AnyPeerMessage, payload: Payload) -> None:
        self._alive(lambda: self._receive(sender, message, payload))()

    def _receive(self, sender: WorkerId, message: mesh.AnyPeerMessage, payload: Payload) -> None:
        if self.world.shared and not self._map(sender, message):
            return
        for key, value in payload.items():
            self._payloads[sender, *key] = value
        self.handle(events.Received(sender, message))

    def _map(self, sender: WorkerId, message: mesh.AnyPeerMessage) -> bool:
        """Open the memory a message points to, which only works while its owner lives."""
        match message:
            case mesh.Ready(parts=parts):
                needed = {(sender, part.slot) for part in parts}
            case mesh.Summed():
                needed = {(sender, 0)}
            case mesh.Published():
                needed = {(sender, -1)}
            case _:
                return True
        if not (needed <= self._mapped or self.world.workers[sender].alive):
            return False
        self._mapped |= needed
        return True

    def lose(self, peer: WorkerId) -> None:
        self._alive(lambda: self.handle(events.Lost(peer)))()

    # -- the shell -----------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Tell the member and do what it answers, in order, before anything else happens."""
        for action in self.member.handle(event):
            if not self.alive:
                return
            if self._burns_down(action):
                self.die()
                return
            self._do(action)
        if self.alive:
            self._report()

    def _burns_down(self, action: actions.Action) -> bool:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                return True
        if self.trigger is not None:
            kind, left = self.trigger
            if kind == self.name_of(action):
                self.trigger = (kind, left - 1)
                return left == 0
        return False

    @staticmethod
    def name_of(action: actions.Action) -> str:
        """The action's name; of a message sent, the message's."""
        said = action.message if isinstance(action, actions.Send) else action
        return type(said).__name__

    def _do(self, action: actions.Action) -> None:  # noqa: C901, PLR0912 - one row per kind of action
        match action:
            case actions.Send(peer, message):
                self.world.tell(lambda: f"worker {self.worker} sends {peer}: {message}")
                if isinstance(message, mesh.Vote):
                    self.world.narrate(lambda: f"{self._now()} votes")
                self.world.streams.send(self.worker, peer, message, self._payload_of(message))
            case actions.Serve(peer, fetch):
                self._serve(peer, fetch)
            case actions.Load(peer, state):
                self.world.narrate(
                    lambda: (
                        f"  after step {self.member.step}: worker {self.worker} {_taken_over(peer, state)}"
                    )
                )
                self._load(peer, state)
            case actions.Reduce(blocks, parts):
                self.world.narrate(lambda: f"{self._now()} sums block {' '.join(map(str, blocks))}")
                self._reduce(blocks, parts)
            case actions.Take(peer, blocks):
                for block in blocks:
                    self._root(block, self._sum_of(peer, 0, block))
            case actions.TakeValues(peer, units):
                for unit in units:
                    self.memory.parameters[unit] = self._value_of(peer, unit)
            case actions.Begin():
                if action.round != self.round:
                    self.memory.begin_round(self.world.shape.size(self.kind))
                self.round, self.step = action.round, action.step
                self.world.tell(lambda: f"worker {self.worker} begins {action}")
                self._narrate_begin()
            case actions.Compute(virtual_ranks, assignment):
                self.world.narrate(lambda: f"{self._now()} computes {' '.join(map(str, virtual_ranks))}")
                self._assignment = assignment
                self._queue.extend(virtual_ranks)
                self._compute_next()
            case actions.Measure():
                self._after(self._chance(self.world.pace.measure_s), lambda: self._measured(action))
            case actions.Snapshot():
                self._copy(action)
            case actions.Restore():
                self._restore(action)
            case actions.Commit():
                self._write_snapshot()
                self._committed(action)
            case actions.Leave():
                self.state = "leaving"
                self._queue.clear()
            case actions.Report(peer, generation):
                self._lost[peer] = PeerLost(worker=self.worker, peer=peer, generation=generation)
                self.world.to_coordinator(self._lost[peer])
            case actions.StateIsLost(units):
                self.world.checker.state_is_lost(self.worker, units)
                self.world.to_coordinator(
                    WorkerFailed(worker=self.worker, traceback=f"state of units {units} is lost")
                )
                # The script ends with the error.
                self._after(0.1, lambda: self.die(1))
            case actions.Disagree(why):
                raise AssertionError(f"all simulated workers run one script, and yet {why}")

    def _narrate_begin(self) -> None:
        generation = self.member.generation
        if generation is not None:
            workers = " ".join(str(worker) for worker in generation.workers)
            self.world.narrate(lambda: f"generation {generation.number}: {workers} ({generation.why})")

    def _now(self) -> str:
        return f"  {self.kind} {self.step}: worker {self.worker}"

    # -- what moves between workers ------------------------------------------------------------------------

    def _payload_of(self, message: mesh.AnyPeerMessage) -> Payload:
        """What the frame carries; nothing where peers read each other's memory."""
        if self.world.shared:
            return {}
        slots = self.memory.slots
        match message:
            case mesh.Ready(blocks=blocks, parts=parts):
                return {(p.slot, block): slots[p.slot][block] for p in parts for block in blocks}
            case mesh.Summed(blocks=blocks):
                return {(0, block): slots[0][block] for block in blocks}
            case mesh.Published(units=units):
                return {(-1, unit): self.memory.parameters[unit] for unit in units}
            case _:
                return {}

    def _sum_of(self, peer: WorkerId, slot: int, block: int) -> int:
        if peer == self.worker:
            return self.memory.slots[slot][block]
        if self.world.shared:
            return self.world.workers[peer].memory.slots[slot][block]
        return self._payloads[peer, slot, block]

    def _value_of(self, peer: WorkerId, unit: int) -> int:
        if self.world.shared:
            return self.world.workers[peer].memory.parameters[unit]
        return self._payloads[peer, -1, unit]

    def _reduce(self, blocks: tuple[int, ...], parts: dict[int, tuple[mesh.Part, ...]]) -> None:
        for block in blocks:
            values = [
                (span, self._sum_of(peer, part.slot, block))
                for peer, some in parts.items()
                for part in some
                for span in part.spans
            ]
            self._root(block, summed(values, self.world.shape.layout.virtual_ranks))

    def _root(self, block: int, total: int) -> None:
        self.memory.root(block, total)
        step = self.member.step + 1
        expected = quiet(self.world.shape).sums[step][block]
        expect(total == expected, f"worker {self.worker} has a wrong sum of block {block} in step {step}")

    def _serve(self, peer: WorkerId, fetch: mesh.Fetch) -> None:
        memory = self.memory
        payload: Payload = {(-2, unit): memory.parameters[unit] for unit in fetch.values}
        for unit in fetch.states:
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(
                    f"worker {self.worker} is asked for state of unit {unit}, which it lacks"
                )
            payload[-3, unit] = state
        message = mesh.State(
            generation=fetch.generation,
            committed=fetch.committed,
            values=fetch.values,
            states=fetch.states,
        )
        self.world.tell(lambda: f"worker {self.worker} serves {peer}: {message}")
        self.world.streams.send(self.worker, peer, message, payload)

    def _load(self, peer: WorkerId, state: mesh.State) -> None:
        if peer == STORE:
            return
        ideal, step = quiet(self.world.shape), self.member.step
        for unit in state.values:
            value = self._payloads[peer, -2, unit]
            expect(
                value == ideal.parameters[step][unit],
                f"worker {self.worker} loads a wrong value of unit {unit} after step {step}",
            )
            self.memory.parameters[unit] = value
        for unit in state.states:
            self.memory.optimizer[unit] = self._payloads[peer, -3, unit]

    # -- checkpoints ---------------------------------------------------------------------------------------

    def _copy(self, snapshot: actions.Snapshot) -> None:
        shape, memory = self.world.shape, self.memory
        units = {unit for block in snapshot.blocks for unit in shape.units_of(block)} | {shape.rest}
        record = {}
        for unit in units:
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(f"worker {self.worker} is to copy unit {unit}, which it lacks")
            record[unit] = (memory.parameters[unit], state)
        self._snapshot = (snapshot, record)
        self._after(
            self._chance(self.world.pace.leaf_s), lambda: self.handle(events.Snapped(snapshot.ticket))
        )

    def _write_snapshot(self) -> None:
        if self._snapshot is None:
            return
        (snapshot, record), self._snapshot = self._snapshot, None
        if not snapshot.blocks:
            return
        vault, step, writers = self.world.vault, snapshot.step, snapshot.writers
        took_s = self._chance(10 * self.world.pace.leaf_s)
        self._after(took_s, lambda: vault.write(step, writers, self.worker, record))

    def _restore(self, restore: actions.Restore) -> None:
        origin = self.world.origin
        if origin is None:
            raise AssertionError(f"worker {self.worker} restores, but there is no checkpoint")
        for unit in restore.values:
            self.memory.parameters[unit] = origin.units[unit][0]
        for unit in restore.states:
            self.memory.optimizer[unit] = origin.units[unit][1]
        state = mesh.State(
            generation=restore.generation, committed=0, values=restore.values, states=restore.states
        )
        self._after(0.001, lambda: self.handle(events.Received(STORE, state)))

    # -- the training thread -------------------------------------------------------------------------------

    def _enter(self, kind: Kind) -> None:
        shape = self.world.shape
        if self.state == "leaving":
            return
        self.kind = kind
        due = shape.checkpoint_due(kind, self.member.step + 1)
        self.handle(events.Entered(kind, shape.size(kind), due))

    def _compute_next(self) -> None:
        if self._computing or not self._queue:
            return
        self._computing = True
        rank = self._queue.pop(0)
        pace = self.world.pace
        took_s = (0.2 + self._chance(0.8)) * pace.leaf_s * self.slowness
        self._leaf_s = [*self._leaf_s[-20:], took_s]
        if self.kind != "train":
            self._after(took_s, lambda: self._computed(rank))
            return
        self.world.checker.computes(self)
        self.memory.begin_leaf(rank)
        model = hash(tuple(self.memory.parameters))
        blocks = list(range(self.world.shape.layout.blocks))
        if self._queue:
            self._after(took_s, lambda: self._trained(rank, model, blocks))
            return
        assignment = self._assignment
        self.world.clock.random.shuffle(blocks)
        for place, block in enumerate(blocks):
            done_s = took_s * (place + 1) / (len(blocks) + 1)
            self._after(done_s, self._finalizing(rank, model, block, assignment))
        self._after(took_s, lambda: self._computed(rank))

    def _finalizing(self, rank: int, model: int, block: int, assignment: int) -> Callable[[], None]:
        def final() -> None:
            if self.state == "leaving":
                return
            self.memory.add(block, gradient(self.step, rank, block, model))
            self.handle(events.Final(assignment, (block,), self.memory.parts()))

        return final

    def _trained(self, rank: int, model: int, blocks: list[int]) -> None:
        if self.state == "leaving":
            return
        for block in blocks:
            self.memory.add(block, gradient(self.step, rank, block, model))
        self._computed(rank)

    def _computed(self, rank: int) -> None:
        self._computing = False
        if self.state == "leaving":
            return
        step = self.step if self.kind == "train" else self.member.step
        self.handle(events.Computed(leaf_of(self.kind, step, rank, self.worker)))
        self._compute_next()

    def _measured(self, action: actions.Measure) -> None:
        norms = {block: norm_of(self.memory.slots[0][block]) for block in action.norms}
        digests = {block: self._digest(block) for block in action.digests}
        self.handle(events.Measured(action.ticket, norms, digests))

    def _digest(self, block: int) -> tuple[str, str]:
        units = self.world.shape.units_of(block)
        states = [state for unit in units if (state := self.memory.optimizer[unit]) is not None]
        return digest_of([self.memory.parameters[unit] for unit in units], states)

    def _committed(self, commit: actions.Commit) -> None:
        outcome, kind, shape = commit.outcome, self.kind, self.world.shape
        self.world.tell(lambda: f"worker {self.worker} commits {outcome}")
        self.world.narrate(
            lambda: (
                f"{kind} {outcome.step} is committed: {_shares(outcome)}"
                if outcome.shares
                else f"{kind} is committed"
            )
        )
        self.world.checker.committed(self.worker, kind, outcome)
        pace = self.world.pace
        if kind == "train":
            for unit in range(shape.rest):
                if unit not in commit.held:
                    self.memory.optimizer[unit] = None
            self._note_step(outcome, healthy=commit.healthy)
            self._after(self._chance(pace.apply_s), lambda: self._apply(commit))
        else:
            self._after(self._chance(pace.user_s), lambda: self._go_on(outcome))

    def _apply(self, commit: actions.Commit) -> None:
        memory, shape, step = self.memory, self.world.shape, commit.outcome.step
        for unit in sorted(commit.held - {shape.rest}):
            state = memory.optimizer[unit]
            if state is None:
                raise AssertionError(f"worker {self.worker} applies step {step} to unit {unit} without state")
            sums = [memory.slots[0][block] for block in shape.blocks_of(unit)]
            memory.parameters[unit], memory.optimizer[unit] = updated(memory.parameters[unit], state, sums)
        memory.parameters[shape.rest], memory.optimizer[shape.rest] = rest_after(
            memory.parameters[shape.rest], step
        )
        self.world.checker.applied(self, commit.held)
        self.handle(events.Applied())
        self._after(self._chance(self.world.pace.user_s), lambda: self._go_on(commit.outcome))

    def _go_on(self, outcome: mesh.Outcome) -> None:
        following = self.world.shape.after(self.kind, outcome)
        if following is not None:
            self._enter(following)
        elif self.state != "leaving":
            self.state = "finished"
            self._report()

    def _note_step(self, outcome: mesh.Outcome, *, healthy: bool) -> None:
        now = self.world.clock.now
        generation = 0 if self.member.generation is None else self.member.generation.number
        line = LedgerLine(
            step=outcome.step,
            generation=generation,
            workers=outcome.shares,
            samples=Samples(0, outcome.step, outcome.step + 1, outcome.samples, f"{outcome.checksum:x}"),
            loss=outcome.loss,
            loss_hex=outcome.loss.hex(),
            time=now,
            seconds={},
        )
        took_s = now - self._began_s
        self._began_s = now
        self._unacknowledged.append(StepReport(worker=self.worker, line=line, step_s=took_s, healthy=healthy))


def _outcome_of(origin: Kept | None) -> mesh.Outcome | None:
    return None if origin is None else msgspec.structs.replace(mesh.BEGINNING, step=origin.step)


def _taken_over(peer: WorkerId, state: mesh.State) -> str:
    of = [f"values {' '.join(map(str, state.values))}"] if state.values else []
    of += [f"optimizer state {' '.join(map(str, state.states))}"] if state.states else []
    return f"receives {' and '.join(of)} from {peer}"


def _shares(outcome: mesh.Outcome) -> str:
    return " ".join(
        f"{worker}[{','.join(f'{start}:{stop}' for start, stop in some)}]"
        for worker, some in outcome.shares.items()
    )
