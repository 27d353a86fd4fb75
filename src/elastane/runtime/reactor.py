"""The thread that drives a `MemberMachine`: it passes on what peers and the coordinator say, and acts.

The training thread only computes. It posts what it has done and is handed directives; sums, copies and votes
happen here, under its backward pass. Alone (plain ``python``) there are no peers and no thread: `post` runs
everything at once.
"""

import struct
import sys
import threading
import traceback
from collections import deque
from queue import SimpleQueue
from typing import Protocol, TypeAlias

import msgspec
import torch

from elastane.api.errors import RunFailed, StateLost
from elastane.api.membership import Generation
from elastane.api.safe_text import escape_line
from elastane.protocol import actions, events, messages
from elastane.protocol.layout import REST_BLOCK, STORE
from elastane.protocol.member_machine import MemberMachine
from elastane.runtime.exhaustion import find_exhausted_resource, find_own_exhaustion
from elastane.runtime.links.frames import Buffer, Payload
from elastane.runtime.links.mesh import Mesh
from elastane.runtime.state.gradients import Gradients
from elastane.runtime.state.memory import Letter, PeerArenas, raw_bytes, read_letter
from elastane.runtime.state.payload import unpack_state
from elastane.runtime.state.state import TrainingState
from elastane.runtime.worker_exit import exit_for_replacement


class ReactorFailure(msgspec.Struct, frozen=True):
    """The reactor cannot go on; raise this in the training thread."""

    error: BaseException


Directive: TypeAlias = (
    actions.BeginRound
    | actions.Compute
    | actions.CommitRound
    | actions.ReleaseScript
    | actions.LeaveTraining
    | ReactorFailure
)


class CoordinatorSink(Protocol):
    """What the reactor tells the coordinator."""

    def peer_lost(self, peer: int, generation: int) -> None: ...
    def changed(self) -> None: ...


class CheckpointSink(Protocol):
    """Who takes this worker's part in checkpoints."""

    def take(self, snapshot: actions.TakeSnapshot) -> None: ...
    def refuse(self, snapshot: actions.TakeSnapshot, why: str) -> None: ...
    def committed(self) -> None: ...


class RestoreSource(Protocol):
    """The checkpoint a run goes on from."""

    def restore(self, values: tuple[int, ...], states: tuple[int, ...]) -> None: ...


class Reactor:
    """One worker's protocol, carried out.

    Args:
        member: the decisions.
        gradients: slots and sums.
        state: values and optimizer state.
        measure_norms: whether votes carry norms (for clipping, and for a scaler).
        mesh: to the peers; None alone.
        upstream: the way to the coordinator; None alone.
        shared: peers read each other's arenas; otherwise payloads travel with the messages.

    Attributes:
        directives: for the training thread.
        checkpoints: takes this worker's part in them; None: the run keeps none.
        source: the checkpoint the run goes on from; None: it began anew.
    """

    def __init__(
        self,
        member: MemberMachine,
        gradients: Gradients,
        state: TrainingState,
        *,
        measure_norms: bool,
        mesh: Mesh | None = None,
        upstream: CoordinatorSink | None = None,
        shared: bool = True,
    ) -> None:
        self.member = member
        self.directives: SimpleQueue[Directive] = SimpleQueue()
        self.checkpoints: CheckpointSink | None = None
        self.source: RestoreSource | None = None
        self._gradients = gradients
        self._state = state
        self._measure_norms = measure_norms
        self._mesh = mesh
        self._upstream = upstream
        self._shared = shared
        self._peers = PeerArenas(gradients.layout.sections)
        self._events: deque[events.Event] = deque()
        self._addresses: dict[int, tuple[str, int]] = {}
        # Per peer: its pid and the descriptors of its sums and values.
        self._known: dict[int, tuple[int, int, int]] = {}
        self._payloads: dict[tuple[int, messages.AnyPeerMessage], Payload] = {}
        self._parts: dict[tuple[int, int, int, int], list[torch.Tensor]] = {}
        self._sums: dict[tuple[int, int, int, int], torch.Tensor] = {}
        self._values: dict[tuple[int, int, int], torch.Tensor] = {}
        self._letters: list[Letter] = []
        self._entered: events.RoundEntered | None = None
        self._round = 0
        self._standing = (0, False, False)
        self._busy = threading.Lock()
        if mesh is not None:
            mesh.sums_fd, mesh.values_fd = gradients.sums_fd, state.arena.fd
            threading.Thread(target=self._run, name="elastane-reactor", daemon=True).start()

    # -- events in -----------------------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        """Tell the member something; from any thread."""
        self._events.append(event)
        if self._mesh is None and isinstance(event, events.PartialSumsFinal):
            return  # alone, nobody waits for it before the virtual rank is done
        if self._mesh is not None:
            self._mesh.wake()
        # Alone, an event posted from within an action is taken in by the call that is under way.
        elif self._busy.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._busy.release()

    def _run(self) -> None:
        assert self._mesh is not None, "the thread runs only with peers"  # noqa: S101
        try:
            while True:
                self._mesh.poll(None, self._received, self._lost)
                self._drain()
        # The one place where anything that breaks in this thread becomes the worker's end or the run's.
        except BaseException as error:  # noqa: BLE001
            if (resource := find_own_exhaustion(error)) is not None:
                # At once: the script may catch what the training thread would raise in its place.
                exit_for_replacement("".join(traceback.format_exception(error)).rstrip(), resource)
            self.directives.put(ReactorFailure(error))

    def _drain(self) -> None:
        while self._events:
            event = self._events.popleft()
            if isinstance(event, events.PartialSumsFinal):
                event = self._gathered(event)
            self._handle(event)

    def _gathered(self, final: events.PartialSumsFinal) -> events.PartialSumsFinal:
        """Blocks that became final in one go are announced in one message."""
        blocks = final.blocks
        while self._events and isinstance(following := self._events[0], events.PartialSumsFinal):
            if (following.assignment, following.parts) != (final.assignment, final.parts):
                break
            blocks += following.blocks
            self._events.popleft()
        return msgspec.structs.replace(final, blocks=blocks)

    def _received(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        assert self._mesh is not None, "messages come from the mesh"  # noqa: S101
        try:
            self._keep(sender, message, payload)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # Its process is gone, and what it announced with it; the broken connection will say so.
            return
        except (OSError, ValueError, LookupError, struct.error) as error:
            if find_exhausted_resource(error) is not None:
                raise  # the sender lives, and waits for what this worker cannot take
            # What the message announces is not there: the sender is broken, and counts as dead from now on.
            what = f"its {type(message).__name__} announces what is not there: {escape_line(str(error))}"
            sys.stderr.write(f"elastane mesh: worker {sender} is broken: {what}\n")
            self._mesh.disown(sender)
            return
        self._handle(events.Received(sender, message))

    def _lost(self, peer: int) -> None:
        self._handle(events.ConnectionLost(peer))

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.RoundEntered():
                self._entered = event
            case events.GenerationProposed(generation):
                self._meet(generation)
            case _:
                pass
        for action in self.member.handle(event):
            self._act(action)
        standing = self.member.works_in, self.member.complete, self.member.left
        if self._upstream is not None and standing != self._standing:
            self._standing = standing
            self._upstream.changed()

    def _meet(self, generation: Generation) -> None:
        """Connect to everyone in a generation, before it begins."""
        if self._mesh is None:
            return
        for peer in (*generation.members, *generation.leaving):
            self._addresses[peer.worker] = (peer.host, peer.port)
            if self.member.worker in generation or any(
                self.member.worker == leaver.worker for leaver in generation.leaving
            ):
                self._mesh.dial(peer.worker, peer.host, peer.port)

    # -- actions out ---------------------------------------------------------------------------------------

    def _act(self, action: actions.Action) -> None:  # noqa: C901, PLR0912 - one case per action
        match action:
            case actions.Send(peer, message):
                self._send(peer, message, self._payload(message))
            case actions.SendState(peer, fetch):
                state = messages.State(
                    generation=fetch.generation,
                    committed=fetch.committed,
                    values=fetch.values,
                    states=fetch.states,
                )
                self._state.show(fetch.values)
                payload = self._state.pack(self._travelling(fetch.values), fetch.states)
                self._send(peer, state, self._laid_out(payload) if self._shared else payload)
            case actions.LoadState(peer, state):
                self._load(peer, state)
            case actions.Reduce(blocks, parts):
                for block in blocks:
                    self._reduce(block, parts)
            case actions.TakeSums(peer, blocks):
                for block in blocks:
                    self._gradients.take(block, self._sum_at(peer, block))
            case actions.TakeValues(peer, units):
                for unit in units:
                    self._take_values(peer, unit)
            case actions.BeginRound():
                self._begin(action)
                self.directives.put(action)
            case actions.Compute() | actions.ReleaseScript() | actions.LeaveTraining():
                self.directives.put(action)
            case actions.CommitRound():
                if self.checkpoints is not None:
                    self.checkpoints.committed()
                self._forget(action.outcome.round)
                self.directives.put(action)
            case actions.TakeSnapshot():
                self._snapshot(action)
            case actions.RestoreState():
                self._restore(action)
            case actions.Measure(ticket, norms, digests):
                self._events.appendleft(self._measured(ticket, norms, digests))
            case actions.EndProcess():
                exit_for_replacement("the others have made a step without this worker, which cannot follow")
            case actions.ReportLostPeer(peer, generation):
                if self._upstream is not None:
                    self._upstream.peer_lost(peer, generation)
            case actions.FailLostState(units):
                self.directives.put(ReactorFailure(_state_lost(units)))
            case actions.FailDisagreement(why):
                self.directives.put(ReactorFailure(_disagreed(why)))
            case actions.FailDivergence(why):
                self.directives.put(ReactorFailure(_diverged(why)))

    def _snapshot(self, snapshot: actions.TakeSnapshot) -> None:
        assert self.checkpoints is not None, "only a run that keeps checkpoints takes them"  # noqa: S101
        if snapshot.settled and not snapshot.blocks:
            self.checkpoints.refuse(snapshot, "those that can write do not have all of the state")
        elif snapshot.settled and not self._is_settled(snapshot.blocks):
            self.checkpoints.refuse(snapshot, "the script has changed the state since the last step")
        else:
            self.checkpoints.take(snapshot)

    def _is_settled(self, blocks: tuple[int, ...]) -> bool:
        """Whether some blocks and the rest still are as all members agreed on after the last step."""
        agreed = self.member.outcome.digests if self.member.outcome is not None else {}
        found = {block: self._digest(block) for block in blocks}
        if (beside := self._state.rest.digest()) != ("", ""):
            found[REST_BLOCK] = beside
        return all(agreed.get(block) == pair for block, pair in found.items())

    def _travelling(self, units: tuple[int, ...]) -> tuple[int, ...]:
        """The units whose values must be sent: all, or only the rest if peers can read my arena."""
        rest = self._state.units - 1
        return tuple(unit for unit in units if unit == rest) if self._shared else units

    def _laid_out(self, payload: list[Buffer]) -> list[Buffer]:
        """Where a peer on this machine can read the payload; it has done so when the round commits."""
        letter = Letter(payload)
        self._letters.append(letter)
        return [letter.address]

    def _restore(self, restore: actions.RestoreState) -> None:
        assert self.source is not None, "only a run that goes on from a checkpoint restores"  # noqa: S101
        self.source.restore(restore.values, restore.states)
        state = messages.State(
            generation=restore.generation, committed=0, values=restore.values, states=restore.states
        )
        self._events.appendleft(events.Received(STORE, state))

    def _load(self, peer: int, state: messages.State) -> None:
        if peer == STORE:
            return  # read in place already
        self._state.unpack(self._payloads.pop((peer, state)))
        for unit in set(state.values) - set(self._travelling(state.values)):
            self._take_values(peer, unit)

    def _take_values(self, peer: int, unit: int) -> None:
        mine = self._state.unit_values(unit, self._state.arena.tensors)
        mine.copy_(self._values_at(peer, unit))
        self._state.taken(unit)

    def _begin(self, begin: actions.BeginRound) -> None:
        assert self._entered is not None, "a round begins once it is entered"  # noqa: S101
        if begin.round != self._round:
            self._round = begin.round
            self._gradients.begin_round(self._entered.size)
            self._state.restore_buffers()

    def _measured(self, ticket: int, norms: tuple[int, ...], digests: tuple[int, ...]) -> events.Measured:
        layout = self._gradients.layout
        squares: dict[int, float] = {}
        if self._measure_norms:
            for block in norms:
                if not layout.is_buffers(block):
                    sums = layout.block(self._gradients.sums, block)
                    norm = torch.linalg.vector_norm(sums, dtype=torch.float64).item()
                    squares[block] = norm * norm
        found = {block: self._digest(block) for block in digests}
        if digests and (beside := self._state.rest.digest()) != ("", ""):
            found[REST_BLOCK] = beside
        return events.Measured(ticket, squares, found, self._state.rest.replicated())

    def _digest(self, block: int) -> tuple[str, str]:
        values, states = self._state.digest(block)
        return values, states if self.member.keeps_state_of(block) else ""

    def _reduce(self, block: int, parts: dict[int, tuple[messages.PartialSum, ...]]) -> None:
        layout = self._gradients.layout
        gathered = []
        for worker, theirs in parts.items():
            if worker == self.member.worker:
                held = [layout.block(self._gradients.slot(part.slot), block) for part in theirs]
            elif self._shared:
                pid, _, _ = self._known[worker]
                held = [layout.block(self._peers.tensors(pid, part.slot), block) for part in theirs]
            else:
                held = self._parts.pop((worker, self._generation, self._round, block))
            writable = worker == self.member.worker or not self._shared
            gathered += [(p.spans, tensor, writable) for p, tensor in zip(theirs, held, strict=True)]
        self._gradients.reduce(block, gathered)

    def _sum_at(self, peer: int, block: int) -> torch.Tensor:
        if self._shared:
            pid, sums, _ = self._known[peer]
            return self._gradients.layout.block(self._peers.tensors(pid, sums), block)
        return self._sums.pop((peer, self._generation, self._round, block))

    def _values_at(self, peer: int, unit: int) -> torch.Tensor:
        if self._shared:
            pid, _, values = self._known[peer]
            return self._state.unit_values(unit, self._peers.tensors(pid, values))
        return self._values.pop((peer, self.member.committed, unit))

    @property
    def _generation(self) -> int:
        return self.member.generation.number if self.member.generation else 0

    # -- payloads ------------------------------------------------------------------------------------------

    def _send(self, peer: int, message: messages.AnyPeerMessage, payload: list[Buffer] | None) -> None:
        assert self._mesh is not None, "nothing is sent alone"  # noqa: S101
        if peer in self._addresses:
            self._mesh.dial(peer, *self._addresses[peer])
        self._mesh.send(peer, message, payload)

    def _payload(self, message: messages.AnyPeerMessage) -> list[Buffer] | None:
        """What travels with a message when peers cannot read each other's memory."""
        if isinstance(message, messages.Published):
            self._state.show(message.units)
        if self._shared:
            return None
        layout = self._gradients.layout
        match message:
            case messages.PartialSumsReady(blocks=blocks, parts=parts):
                slots = [self._gradients.slot(part.slot) for part in parts]
                return [raw_bytes(layout.block(slot, block)) for block in blocks for slot in slots]
            case messages.SumsReady(blocks=blocks):
                return [raw_bytes(layout.block(self._gradients.sums, block)) for block in blocks]
            case messages.Published(units=units):
                tensors = self._state.arena.tensors
                return [raw_bytes(self._state.unit_values(unit, tensors)) for unit in units]
            case _:
                return None

    def _keep(self, sender: int, message: messages.AnyPeerMessage, payload: Payload) -> None:
        """Keep what came with a message, or make sure that what it points to can be read.

        Raises:
            OSError: the sender is dead, or this worker has run out of a resource.
        """
        if self._shared:
            self._map(sender, message)
        match message:
            case messages.State():
                pid = self._known[sender][0] if self._shared else None
                state = payload if pid is None else read_letter(pid, bytes(payload))
                unpack_state(state)  # to know now, while the message can still be refused
                self._payloads[sender, message] = state
            case _ if self._shared:
                pass
            case messages.PartialSumsReady(generation=generation, round=round_, blocks=blocks, parts=parts):
                cuts = iter(self._cut(payload, [b for b in blocks for _ in parts]))
                for block in blocks:
                    self._parts[sender, generation, round_, block] = [next(cuts) for _ in parts]
            case messages.SumsReady(generation=generation, round=round_, blocks=blocks):
                for block, sums_ in zip(blocks, self._cut(payload, list(blocks)), strict=True):
                    self._sums[sender, generation, round_, block] = sums_
            case messages.Published(round=round_, units=units):
                for unit, values_ in zip(units, self._cut(payload, list(units)), strict=True):
                    self._values[sender, round_, unit] = values_
            case _:
                pass

    def _map(self, sender: int, message: messages.AnyPeerMessage) -> None:
        assert self._mesh is not None, "messages come from the mesh"  # noqa: S101
        pid, sums, values = self._known.setdefault(sender, self._mesh.arenas(sender))
        match message:
            case messages.PartialSumsReady(parts=parts):
                arenas = [part.slot for part in parts]
            case messages.SumsReady():
                arenas = [sums]
            case messages.Published() | messages.State():
                arenas = [values]
            case _:
                arenas = []
        for fd in arenas:
            self._peers.tensors(pid, fd)

    def _cut(self, payload: Payload, blocks: list[int]) -> list[torch.Tensor]:
        layout = self._gradients.layout
        tensors, offset = [], 0
        for number in blocks:
            block = layout.blocks[number]
            dtype = layout.sections[block.section].dtype
            tensors.append(torch.frombuffer(payload, dtype=dtype, count=block.elements, offset=offset))
            offset += block.elements * dtype.itemsize
        return tensors

    def _forget(self, committed: int) -> None:
        """Drop what can no longer be asked for."""
        self._letters.clear()
        self._parts = {key: kept for key, kept in self._parts.items() if key[2] > committed}
        self._sums = {key: kept for key, kept in self._sums.items() if key[2] > committed}
        self._values = {key: kept for key, kept in self._values.items() if key[1] >= committed}
        self._payloads = {
            key: kept
            for key, kept in self._payloads.items()
            if isinstance(key[1], messages.State) and key[1].committed >= committed
        }


def _state_lost(units: tuple[int, ...]) -> StateLost:
    return StateLost(
        f"all copies of {len(units)} blocks of optimizer state were lost at once",
        means="every worker that held them died before another could take them over",
        do="start the run again, with more --copies or fewer simultaneous losses",
    )


def _disagreed(why: str) -> RunFailed:
    return RunFailed(
        why,
        means="the script has gone different ways on different workers; the step was not committed",
        do="decide on what all workers have alike: step.number, step.loss, sums of an evaluation, run.keep",
    )


def _diverged(why: str) -> RunFailed:
    return RunFailed(
        why,
        means="the script changes state in a way that differs between workers, or a machine is at fault; "
        "the next step was not committed",
        do="look for what the script changes in the loop over a step, or draws from generators of its own; "
        "elastane run --resume goes back to a checkpoint",
    )
