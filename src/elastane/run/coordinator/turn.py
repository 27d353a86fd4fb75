"""The coordinator's work on one batch of inputs: the changing roster, and the actions so far."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from elastane.run.coordinator.actions import (
    Action,
    Claimable,
    ClaimSlot,
    PinScript,
    SendReply,
    SendToAgent,
    SendToWorker,
    WriteEvent,
)
from elastane.run.coordinator.placement import build_orders, order_members
from elastane.run.coordinator.roster import Roster, find_worker_node
from elastane.run.coordinator.step_times import FirstStep, compute_pauses
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.control import Answer, Dismiss, KillWorker, Propose, ToAgent, ToWorker
from elastane.run.nouns.membership import Generation, Member, NodeName, WorkerId
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.sites import find_absent_sites
from elastane.run.nouns.spec import Pinned

REMEMBERED_GENERATIONS = 32


@dataclass(slots=True)
class Turn:
    """The working state of one call of `elastane.run.coordinator.decide.decide_actions`.

    Args:
        now: the time in seconds, for judgements.
        wall_s: the time in seconds since 1970, for events.
    """

    roster: Roster
    now: float
    wall_s: float
    actions: list[Action] = field(default_factory=list)

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        self.actions.append(SendToWorker(worker, message))

    def send_to_agent(self, message: ToAgent, node: NodeName | None = None) -> None:
        """Send a message to the agent of a node; None: of every node."""
        self.actions.append(SendToAgent(message, node))

    def reply(self, token: int, answer: Answer) -> None:
        self.actions.append(SendReply(token, answer))

    def pin(self, pinned: Pinned) -> None:
        self.roster = replace(self.roster, pinned=pinned)
        self.actions.append(PinScript(pinned))

    def record(
        self,
        kind: str,
        *,
        who: str = "",
        why: str = "",
        workers: Iterable[WorkerId] = (),
        detail: Mapping[str, float | int | str] | None = None,
        files: Mapping[str, WrittenFile] | None = None,
    ) -> None:
        """Record an event now: at the last committed step, in the generation at work."""
        event = self._build_event(kind, who, why, workers, detail or {})
        self.actions.append(WriteEvent(msgspec.structs.replace(event, files=files or {})))

    def build_worker_event(self, kind: str, worker: WorkerId, why: str = "", *, pid: int = 0) -> EventLine:
        """Return an event about one worker, with the present time; do not write it yet."""
        report = self.roster.reports.get(worker)
        detail: dict[str, int | str] = {"pid": pid if report is None else report.pid}
        if node := find_worker_node(self.roster, worker):
            detail["node"] = node
        if report is not None and report.sites:
            detail["sites"] = ",".join(report.sites)
        return self._build_event(kind, f"worker {worker}", why, (worker,), detail)

    def _build_event(
        self,
        kind: str,
        who: str,
        why: str,
        workers: Iterable[WorkerId],
        detail: Mapping[str, float | int | str | None],
    ) -> EventLine:
        at_work = self.roster.at_work
        return EventLine(
            time=self.wall_s,
            kind=kind,
            who=who,
            why=why,
            step=self.roster.progress.step,
            generation=None if at_work is None else at_work.number,
            workers=tuple(workers),
            detail=detail,
        )

    def record_worker_event(self, kind: str, worker: WorkerId, why: str = "", *, pid: int = 0) -> None:
        """Record a ``worker.*`` event, once per kind and worker in an attempt."""
        if (kind, worker) in self.roster.events.of_workers:
            return
        self.actions.append(WriteEvent(self.build_worker_event(kind, worker, why, pid=pid)))
        self.roster = replace(
            self.roster,
            events=replace(self.roster.events, of_workers=self.roster.events.of_workers | {(kind, worker)}),
        )

    def record_start(self, first: FirstStep) -> None:
        """Record ``generation.started``, with the pauses in its first step."""
        generation = self.roster.known.by_number.get(first.generation)
        pauses = compute_pauses(first, self.roster.times.usual)
        event = EventLine(
            time=self.wall_s,
            kind="generation.started",
            who="coordinator",
            why="" if generation is None else generation.why,
            step=first.step,
            generation=first.generation,
            workers=first.workers if generation is None else generation.workers,
            pause_ms={worker: pause.ms for worker, pause in pauses.items()},
            pause_steps={worker: pause.steps for worker, pause in pauses.items()},
        )
        self.actions.append(WriteEvent(event))

    def propose(
        self, members: tuple[Member, ...], *, planned: bool, why: str, leaving: tuple[Member, ...] = ()
    ) -> None:
        """Propose the next generation, or claim it first: an unplanned one of a run on several machines."""
        roster = self.roster
        number = roster.known.highest + 1
        ordered = order_members(members, number)
        absent = find_absent_sites(roster.rank_sites, roster.absent_rule, ordered)
        generation = Generation(number, roster.term.number, ordered, planned, why, leaving, absent)
        if roster.spec.listen and not planned:
            self.claim(generation)
        else:
            self.announce(generation)

    def claim(self, subject: Claimable) -> None:
        """Claim a generation or the end of the run, which is announced once it holds a slot."""
        claiming = replace(self.roster.claiming, pending=subject, asked_s=self.now, unanswered=False)
        self.roster = replace(self.roster, claiming=claiming)
        self.actions.append(ClaimSlot(subject))

    def announce(self, generation: Generation) -> None:
        """Send a generation to its members, its leavers and the members of the one before."""
        roster, number, leaving = self.roster, generation.number, generation.leaving
        before = set() if roster.newest is None else set(roster.newest.workers)
        leavers = {leaver.worker for leaver in leaving}
        audience = before | roster.needed | set(generation.workers) | leavers
        recent = {n: g for n, g in roster.known.by_number.items() if n > number - REMEMBERED_GENERATIONS}
        self.roster = replace(
            roster,
            newest=generation,
            known=replace(
                roster.known,
                highest=max(number, roster.known.highest),
                # While the claim was pending, a worker may have reported a generation of an earlier term.
                contested=roster.known.highest >= number,
                by_number={**recent, number: generation},
            ),
        )
        for worker in sorted(roster.list_living(audience)):
            self.send(worker, Propose(generation=generation))
        if roster.spec.listen:
            for worker in sorted(roster.ends.excluded):
                if worker not in roster.ends.exits and self.roster.is_left_out(worker):
                    self.send_to_agent(KillWorker(worker=worker))

    def dismiss(self, worker: WorkerId, code: int, why: str) -> None:
        """Dismiss a worker, and remember that, to repeat the dismissal if the worker reports again."""
        message = Dismiss(code=code, why=why)
        self.roster = replace(self.roster, dismissed={**self.roster.dismissed, worker: message})
        self.send(worker, message)

    def set_target(self, target: int, draining: Iterable[WorkerId], *, by_hand: bool | None = None) -> None:
        """Set the number of workers; ``by_hand``: a user set it; None: leave that unchanged."""
        roster = self.roster
        by_hand = roster.wanted.by_hand if by_hand is None else by_hand
        self.roster = replace(
            roster,
            wanted=replace(roster.wanted, target=target, draining=frozenset(draining), by_hand=by_hand),
        )
        for node, order in build_orders(self.roster).items():
            self.send_to_agent(order, node)
