"""The coordinator's shell: it receives, passes inputs to `decide_actions`, writes and sends."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

import msgspec

from elastane.common.errors import BadInput, ElastaneError
from elastane.run.connections.endpoint import read_secret
from elastane.run.connections.run_certificate import load_server_context
from elastane.run.coordinator.actions import (
    Action,
    Claimable,
    ClaimHeld,
    ClaimsChecked,
    ClaimSlot,
    ClaimUnanswered,
    Input,
    PinScript,
    SendReply,
    SendToAgent,
    SendToWorker,
    TicketsRead,
    WriteEvent,
)
from elastane.run.coordinator.claiming import claim_slot
from elastane.run.coordinator.connections import Connections
from elastane.run.coordinator.decide import decide_actions
from elastane.run.coordinator.event_summary import read_changes
from elastane.run.coordinator.metrics_page import MetricsPage
from elastane.run.coordinator.record_files import AppendFile, Ledger, open_copy_to_append, open_to_append
from elastane.run.coordinator.roster import NO_TAKEOVER, Roster, Takeover, create_roster
from elastane.run.coordinator.run_meters import RunMeters
from elastane.run.coordinator.status import build_status
from elastane.run.machines.claims.decisions import DecisionClaims
from elastane.run.machines.tickets.ticket_files import SiteTickets
from elastane.run.nouns.control import (
    Acknowledge,
    Propose,
    PublishCheckpoint,
    StepReports,
    ToWorker,
)
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_lost_ledger, read_record, write_record

if TYPE_CHECKING:
    from elastane.run.connections.record_store import RecordSender

logger = logging.getLogger(__name__)

SYNC_EVERY_S = 0.1
SEND_EVERY_S = 0.5
"""The time between two sendings of the records to a controller."""
READ_TICKETS_S = 1.0
"""The time between two looks at the tickets of sites."""
TICK_S = 0.1
"""The longest time between two calls of `decide_actions`, which depend on the time too."""
LONG_S = 0.002
"""After longer decisions the coordinator waits for as long, so that more messages share the next ones.

The time of decisions grows with the run, and so does the rate of messages. With this wait, decisions take at
most half of the coordinator's time.
"""


class Coordinator:
    """One term of a run's coordinator.

    Args:
        run_dir: the directory of the run; ``run.json`` and ``secret`` are there already.
        term: counts the coordinators of the run, from 1.
        claims: claims the unplanned generations and the end of a run on several machines.
        takeover: how this coordinator took charge. A coordinator of another machine that was in charge before
            may still write into the files of the run.
        sender: sends the records to the controller that keeps them; None: the machines share the directory.

    Raises:
        OSError: the files of the run cannot be read.
        BadInput, Malformed: they are not valid.
    """

    def __init__(
        self,
        run_dir: RunDir,
        term: int,
        claims: DecisionClaims,
        *,
        takeover: Takeover = NO_TAKEOVER,
        sender: "RecordSender | None" = None,
    ) -> None:
        self._run_dir = run_dir
        self._sender = sender
        self._record = read_record(run_dir)
        self._takeover = takeover
        self._pinned_on_disk = True
        self._stalled = False
        self._durable_step: int | None = None
        open_file = open_to_append if takeover.from_node is None else open_copy_to_append
        self._meters = RunMeters()
        self._ledger = Ledger(
            run_dir.ledger,
            open_file,
            began_at=self._record.began_at.step,
            count_step=self._meters.add_step,
        )
        self._events = AppendFile(run_dir.events, open_file)
        self._secret = read_secret(run_dir)
        self._connections = Connections()
        self._reported: dict[WorkerId, int] = {}
        self._unpublished: tuple[WorkerId, PublishCheckpoint] | None = None
        """A checkpoint that waits for the ledger, and the worker that publishes it then."""
        if self._record.spec.listen:
            # Also the lines of the files that this one begins with: a later coordinator may have copied them
            # before the last ones were written.
            self._durable_step = 0
        self._claims = claims
        self._tickets = SiteTickets(run_dir)
        self._clock = AwakeClock(self._record.spec.silence.longest_gap_s)
        self._decided_s = 0.0
        self._roster = self._create_roster(term)

    def _create_roster(self, term: int) -> Roster:
        events = tuple(read_changes(self._run_dir.events))
        self._meters.begin(events, self._ledger.last)
        now = time.time()
        pid = os.getpid()
        resumed = self._record.resumed
        first = 1 if resumed is None else resumed.first_term
        if term == 1:
            script, detail = self._record.spec.script, dict[str, float | int | str]()
            if (origin := self._record.origin) is not None:
                script = f"{script}, from {origin}"
                detail = {"origin": origin.directory, "checkpoint": origin.checkpoint, "step": origin.step}
            self._record_event("run.started", now, why=script, detail=detail)
        elif term > first and not self._takeover.has_left:
            self._record_event("coordinator.died", now, why=f"term {term - 1}")
        claimed, outcome = self._claims.read() if self._record.spec.listen else ((), None)
        node = f" on node {self._run_dir.node}" if self._run_dir.node else ""
        why = f"term {term}{node}"
        self._record_event("coordinator.started", now, why=why, detail={"term": term, "pid": pid})
        return create_roster(
            self._record.spec,
            term,
            self._clock.read(),
            pid=pid,
            node=self._run_dir.node,
            takeover=self._takeover,
            claimed=claimed,
            outcome=outcome,
            pinned=self._record.pinned,
            events=events,
            last=self._ledger.last,
            origin=0 if resumed is None else resumed.step,
            first_term=first,
            lost=self._read_lost(events),
            site_tickets=self._tickets.read() if self._record.spec.listen else (),
        )

    def _read_lost(self, events: Iterable[EventLine]) -> dict[int, str]:
        """Return the losses of the steps that this attempt makes again, as earlier attempts had them.

        Empty if the user has accepted other bytes, or never asked for the same.
        """
        resumed = self._record.resumed
        if resumed is None or resumed.adapted or self._record.spec.convergence == "fast":
            return {}
        count = 0
        for event in events:
            if event.kind == "run.resumed":
                # Lines of attempts before one that the user accepted may have other bytes.
                count = 0 if event.detail.get("adapted") else count + int(event.detail.get("lost_steps") or 0)
        try:
            lines = read_lost_ledger(self._run_dir, count)
        except BadInput as error:
            logger.warning("steps are not compared with those before the resume: %s", error)
            return {}
        # The attempt that made a step first counts.
        return {line.step: line.loss_hex for line in reversed(lines)}

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled."""
        context = load_server_context(self._run_dir) if self._record.spec.listen else None
        pages = MetricsPage(lambda: self._meters.read(build_status(self._roster)))
        server = self._connections.listen(listening, self._secret, context, pages=pages)
        # An error in a task of the group ends this coordinator, and the next one takes over.
        async with server, asyncio.TaskGroup() as self._group:
            if self._durable_step is not None:
                self._group.create_task(self._keep_synced())
            if self._record.spec.listen:
                self._group.create_task(self._watch_tickets())
            while True:
                self._handle(await self._receive())
                self._flush()

    async def _watch_tickets(self) -> None:
        """Read the tickets of sites again and again; while the file system is away, the last ones count."""
        known = self._roster.site_tickets
        while True:
            await asyncio.sleep(READ_TICKETS_S)
            with suppress(OSError):
                found = await asyncio.to_thread(self._tickets.read)
                if found != known:
                    self._connections.inbox.put_nowait(TicketsRead(found))
                    known = found

    def receive_check(self, *, answered: bool) -> None:
        """Learn whether the claim list answered a check of the term."""
        self._connections.inbox.put_nowait(ClaimsChecked(answered))

    async def _receive(self) -> list[Input]:
        """Return the inputs that have arrived; empty after a while without any."""
        inbox = self._connections.inbox
        try:
            async with asyncio.timeout(TICK_S):
                inputs = [await inbox.get()]
        except TimeoutError:
            return []
        if self._decided_s > LONG_S:
            await asyncio.sleep(min(self._decided_s, TICK_S))
        while not inbox.empty():
            inputs.append(inbox.get_nowait())
        # Handle steps first: the next decision may end the run, and then the ledger must be complete.
        steps = [event for event in inputs if isinstance(event, StepReports)]
        self._take_steps(steps)
        return inputs

    def _handle(self, events: Iterable[Input]) -> None:
        begin_s = time.perf_counter()
        self._roster, actions = decide_actions(self._roster, events, self._clock.read(), time.time())
        # Without the actions: one of them may wait for the disk, also in a small run.
        self._decided_s = time.perf_counter() - begin_s
        self._carry_out(actions)

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SendToWorker(worker, message):
                    self._send(worker, message)
                case SendToAgent(message, node):
                    for name, outbox in self._connections.agents.items():
                        if node is None or name == node:
                            outbox.put(message)
                case WriteEvent(event):
                    self._events.append(msgspec.json.encode(event))
                    self._meters.add_event(event, self._roster.wanted.target)
                case PinScript(pinned):
                    self._record = msgspec.structs.replace(self._record, pinned=pinned)
                    self._pinned_on_disk = False
                case SendReply(token, answer):
                    self._connections.reply(token, answer)
                case ClaimSlot(subject):
                    self._group.create_task(self._claim(subject))
                case _:
                    assert_never(action)

    def _send(self, worker: WorkerId, message: ToWorker) -> None:
        if isinstance(message, PublishCheckpoint) and not self._has_recorded(message.step):
            # A run cannot resume from a checkpoint past the ledger. The coordinator asks again later.
            self._unpublished = worker, message
            return
        if isinstance(message, Propose):
            self._connections.generations.add(message.generation)
        if (outbox := self._connections.workers.get(worker)) is not None:
            outbox.put(message)

    def _has_recorded(self, step: int) -> bool:
        """Return whether a resumed run would find the lines of all steps up to this one."""
        if self._sender is not None:
            return (self._durable_step or 0) >= step
        return self._ledger.sync(step)

    async def _claim(self, subject: Claimable) -> None:
        """Claim in a thread, because a file system that hangs must not delay the run."""
        try:
            superseded = await asyncio.to_thread(claim_slot, self._claims, subject)
        except ElastaneError as error:
            self._connections.inbox.put_nowait(ClaimUnanswered(subject, error.what))
            return
        # Otherwise the check of the own term ends this process within a second.
        if superseded is None:
            self._connections.inbox.put_nowait(ClaimHeld(subject))

    def _take_steps(self, batch: list[StepReports]) -> None:
        for steps in batch:
            self._ledger.take(steps.reports)
        self._flush()
        reported = {steps.worker: steps.reports[-1].line.step for steps in batch if steps.reports}
        self._reported |= reported
        for worker in reported:
            self._acknowledge(worker)

    def _acknowledge(self, worker: WorkerId) -> None:
        """Acknowledge the steps that a worker need not report to another coordinator any more."""
        written = self._ledger.step if self._durable_step is None else self._durable_step
        # Never more than the worker has reported: its next report still brings the step's duration.
        self._send(worker, Acknowledge(step=min(self._reported.get(worker, 0), written)))

    async def _keep_synced(self) -> None:
        """Acknowledge the steps of a run on several machines, once every later coordinator knows them.

        This machine may lose its power while the others continue, and then nothing else has those steps.
        """
        every_s = self._record.spec.silence.check_every_s if self._claims.is_remote else SYNC_EVERY_S
        if self._sender is not None:
            every_s = SEND_EVERY_S
        while True:
            await asyncio.sleep(every_s)
            step = self._ledger.step
            # In a thread: a slow disk must not delay the run.
            if await asyncio.to_thread(self._sync, step) and step != self._durable_step:
                self._durable_step = step
                for worker in self._connections.workers:
                    self._acknowledge(worker)
                if self._unpublished is not None and self._has_recorded(self._unpublished[1].step):
                    (worker, order), self._unpublished = self._unpublished, None
                    self._send(worker, order)

    def _sync(self, step: int) -> bool:
        """Return whether every later coordinator knows the steps up to this one, with their events.

        A later one claims its term before it copies the files. So it copies all that this one has synced
        before a check that finds no later term. An earlier one that was stopped may move its copies there
        much later; they make way again.
        """
        if self._sender is not None:
            return self._send_records()
        is_new = step != self._durable_step
        if is_new and not (self._ledger.sync(step) and self._events.sync() is None):
            return False
        # Before the check of the list: a later coordinator has a claim there before it moves its copies.
        try:
            strangers = [file for file in (self._ledger.file, self._events) if not file.has_name()]
        except OSError:
            return False  # the file system is away, as in a sync that fails
        if not (is_new or strangers) or not self._claims.is_in_charge():
            return False
        return all(file.take_name_back() is None for file in strangers)

    def _send_records(self) -> bool:
        assert self._sender is not None, "the caller has checked it"
        try:
            self._sender.send_new()
        except (ElastaneError, OSError):
            # It is away. The records wait here, and the workers keep the reports that are not acknowledged.
            return False
        return True

    def _flush(self) -> None:
        """Write all waiting lines; lines that the disk refuses stay in order for the next call."""
        error = self._ledger.flush() or self._write_pinned()
        if error is not None and not self._stalled:
            self._record_event("ledger.stalled", time.time(), why=f"{error.strerror}: lines wait in memory")
        if self._stalled and error is None:
            for worker in self._connections.workers:
                self._acknowledge(worker)
        self._stalled = error is not None
        self._events.flush()

    def _write_pinned(self) -> OSError | None:
        if self._pinned_on_disk:
            return None
        try:
            write_record(self._run_dir, self._record)
        except OSError as error:
            return error
        self._pinned_on_disk = True
        return None

    def _record_event(
        self, kind: str, now: float, *, why: str, detail: dict[str, float | int | str] | None = None
    ) -> None:
        event = EventLine(time=now, kind=kind, who="coordinator", why=why, detail=detail or {})
        self._meters.add_event(event, None)
        self._events.append(msgspec.json.encode(event))


# The clock of the coordinator's judgements: it counts only the time in which this process could listen.


class AwakeClock:
    """Seconds since its first reading, without the time in which the process was stopped.

    A coordinator that a debugger, a hypervisor or a slow disk has stopped for a while finds all reports old.
    If it took its own pause for the silence of the others, it would exclude healthy workers. Changes of the
    wall clock do not matter either.

    Args:
        longest_gap_s: the most that two readings in sequence count. Usually the coordinator reads its clock
            every 0.1 s.
        read_s: returns the seconds of a clock that never goes back.
    """

    def __init__(self, longest_gap_s: float, read_s: Callable[[], float] = time.monotonic) -> None:
        self._longest_gap_s, self._read_s = longest_gap_s, read_s
        self._last_s = read_s()
        self._awake_s = 0.0

    def read(self) -> float:
        """Return the present time in seconds; call it at least every `longest_gap_s`."""
        last_s, self._last_s = self._last_s, self._read_s()
        self._awake_s += min(self._last_s - last_s, self._longest_gap_s)
        return self._awake_s
