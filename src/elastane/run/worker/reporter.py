"""A worker's reports to the coordinator, and the coordinator's messages to the worker."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from elastane.run.agent import priority
from elastane.run.connections.endpoint import read_secret
from elastane.run.nouns import control
from elastane.run.nouns.machine_address import LOOPBACK_ONLY, read_machine_address
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.records import FALLBACK, Digest, EventLine, LedgerLine, Samples
from elastane.run.nouns.spec import Pinned, Probe, number_attempt
from elastane.run.observability import evaluations
from elastane.run.protocol import events
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.tree import Span, expand_spans, find_spans
from elastane.run.worker.checkpoints.writer import CheckpointWriter
from elastane.run.worker.gangs.gang_follower import FollowingReactor, HeadLink
from elastane.run.worker.gangs.gang_head import GangLinks, HeadReactor
from elastane.run.worker.gangs.gang_messages import EndWorker, ScriptFailed
from elastane.run.worker.gangs.gang_parts import merge_parts
from elastane.run.worker.gangs.gathered_shards import GatheredShards
from elastane.run.worker.links.coordinator_link import CoordinatorLink
from elastane.run.worker.links.encryption import load_encryption
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.links.nixl_agent import NixlAgent
from elastane.run.worker.links.payload_exchange import RemoteMemory
from elastane.run.worker.notice import get_notice, report_notices
from elastane.run.worker.open_reports import OpenReports
from elastane.run.worker.reactor import Reactor
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.training_state import TrainingState
from elastane.run.worker.worker_round import WorkerRound
from elastane.run.worker.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from elastane.run.worker.lone_tracking import LoneTracking

LOOK_S = 0.1
END_S = 10.0
"""How long the agent may take to end the processes of a worker after one of them has ended."""
FAILURE_S = 5.0
"""How long the report of a script's failure may take."""
"""The time between two checks of the reactor after the script has ended."""


class Reporter:
    """One worker's connection to the coordinator; it does nothing in a process that trains alone.

    Attributes:
        checkpoint_writer: writes this worker's part of checkpoints; None: the run has no checkpoints.
        last_orders: requests to write the model, and the dismissal, for the main thread after the script.
        complete: the loop over the steps has ended.
        finished: the script has ended as it should.
        script_ended: the script has ended, also by an error; the main thread awaits or makes the end.
        ending: why the script ended the run before its last step; empty if it did not.
        stopped: the user ended the run before its last step.
        steps: the reports of steps that the coordinator may not have.
        tracking: feeds the trackers of a process that trains alone; None: it has none.
        leave_loop: ends the run of a script that has ended inside its loop; returns whether it could.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.worker = settings.worker
        self.alone = settings.run_dir is None
        self.last_orders: SimpleQueue[control.WriteModel | control.Dismiss] = SimpleQueue()
        self.script_ended = False
        self._seat = settings.seat
        self._links: GangLinks | None = None
        self._head: HeadLink | None = None
        self._node = "" if settings.run_dir is None else settings.run_dir.node
        self._sites = settings.sites
        self._spec = settings.spec
        self._link: CoordinatorLink | None = None
        self.tracking: LoneTracking | None = None
        self._mesh: Mesh | None = None
        self._reactor: Reactor | None = None
        self._member: MemberMachine | None = None
        self._pinned: Pinned | None = None
        self._ready = False
        self._compute: deque[float] = deque(maxlen=10)
        self.state: TrainingState | None = None
        self.checkpoint_writer: CheckpointWriter | None = None
        self.complete = self.finished = False
        self.ending, self.stopped = "", False
        self.leave_loop: Callable[[], bool] = lambda: False
        if settings.seat.follows:
            self._head = HeadLink(settings.seat.sockets[0], self._follow_dismissal)
            _set_reporter(self)
        elif settings.run_dir is not None:
            secret = bytes.fromhex(read_secret(settings.run_dir))
            self._mesh = Mesh(
                settings.worker,
                secret,
                read_machine_address(settings.run_dir) if self._spec.listen else LOOPBACK_ONLY,
                share_memory=self._spec.transport != "tcp",
                encryption=load_encryption(settings.run_dir) if self._spec.encrypt else None,
            )
            self._link = CoordinatorLink(
                settings.run_dir,
                settings.worker,
                self._build_report,
                self._receive,
                number_attempt(settings.resumed),
                silence=self._spec.silence,
            )
            if self._spec.transport == "nixl":
                self._mesh.remote_memory = self._open_remote_memory()
            report_notices(self._link.request_report)
            if settings.seat.is_head:
                self._links = GangLinks(settings.seat.sockets, self._report_failure, self.request_report)
            _set_reporter(self)
        self.steps = OpenReports(self._link, self._send_step)

    def _open_remote_memory(self) -> RemoteMemory | None:
        """Return this worker's access to the memory of other machines; None: NIXL does not work here."""
        try:
            agent = NixlAgent(f"worker-{self.worker}", reached=bool(self._spec.listen))
        except OSError as error:
            self._report_transport(f"worker {self.worker} sends payloads over its connections: {error}")
            return None
        return RemoteMemory(agent, self._report_unread)

    def _report_unread(self, reader: int, owner: int, why: str) -> None:
        self._report_transport(f"worker {owner} sends its payloads to worker {reader} from now on: {why}")

    def _report_transport(self, why: str) -> None:
        self.report_event(why, EventLine(time=0.0, kind=FALLBACK, who=f"worker {self.worker}", why=why))

    def connect(
        self,
        member: MemberMachine,
        gradients: Gradients,
        state: TrainingState,
        pinned: Pinned,
        *,
        measure_norms: bool,
        sharing: int = 1,
    ) -> Reactor:
        """Return the reactor, connected to the peers; after `report_ready` the coordinator uses it.

        Args:
            sharing: as in `Pinned`.
        """
        self._member, self._pinned, self.state = member, pinned, state
        if self.tracking is not None:
            self.tracking.begin(self._spec, pinned)
        if self._head is not None:
            self._reactor = FollowingReactor(
                member, gradients, state, measure_norms=measure_norms, link=self._head
            )
        else:
            kind = (
                Reactor if self._links is None else partial(HeadReactor, links=self._links, sharing=sharing)
            )
            self._reactor = kind(
                member,
                gradients,
                state,
                measure_norms=measure_norms,
                mesh=self._mesh,
                coordinator=self._link,
                reports=self.steps,
            )
        return self._reactor

    # -- to the coordinator --------------------------------------------------------------------------------

    def report_ready(self, probe: Probe | None) -> None:
        """Report that this worker has rehearsed, with its bits; None: they are not compared."""
        if isinstance(self._reactor, FollowingReactor):
            priority.restore()
            self._reactor.report_rehearsed(probe)
            return
        if isinstance(self._reactor, HeadReactor):
            probe = self._reactor.gather_probes(probe)
        if self._pinned is not None and probe is not None:
            self._pinned = msgspec.structs.replace(self._pinned, probe=probe)
        priority.restore()
        self._ready = True
        if self._link is not None:
            self._link.request_report()

    def report_end(self) -> None:
        """Report that the script has ended and that this worker waits for its dismissal."""
        self.finished = self.script_ended = True
        if self._reactor is not None:
            if self.state is not None and self._seat.processes > 1:
                # Process 0 reads the whole model there, with the last changes of the script.
                self.state.placement.commit_values()
            self._reactor.post(events.ScriptEnded())
        if self._link is not None:
            self._link.request_report()

    def wait_for_order(self) -> control.WriteModel | control.Dismiss:
        """Wait until the coordinator asks this worker to write the model, or dismisses it.

        Raises:
            RunFailed: the script of another worker goes on with a round that this one's does not have.
        """
        assert self._reactor is not None, "a finished worker has trained"
        while True:
            try:
                return self.last_orders.get(timeout=LOOK_S)
            except Empty:
                self._reactor.raise_failure()

    def await_cause(self) -> None:
        """Wait a moment if this worker has several processes: an error in one may follow the end of another.

        Then the agent ends this process, too, and reports the first cause.
        """
        others = self._links or self._head
        if others is not None and others.has_lost_process():
            time.sleep(END_S)

    def prepare_writing(self) -> None:
        """Let this worker write the whole model, of which other processes have parts."""
        if isinstance(self._reactor, HeadReactor) and self.state is not None:
            self.state.gather_tensor = GatheredShards(self.state, self._reactor.find_final_planes()).gather

    def send(self, message: control.FromWorker) -> None:
        """Send a message to the coordinator once."""
        if self._head is not None and isinstance(message, control.WorkerFailed):
            self._head.report_failure(message.traceback, lost=message.lost, timeout_s=FAILURE_S)
        if self._link is not None:
            self._link.send(message)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent."""
        if self._link is not None:
            self._link.flush(timeout_s)

    def flush_last(self, code: int) -> None:
        """Wait a moment until everything is sent, before this process ends with a code."""
        self.flush(2.0 if code == 0 else 0.2)

    def report_event(self, key: str, event: EventLine) -> None:
        """Report an event that all workers see; the coordinator writes one event per key."""
        stamped = msgspec.structs.replace(event, time=time.time())
        self.send(control.WorkerEvent(worker=self.worker, key=key, event=stamped))
        if self.tracking is not None and event.kind == evaluations.KIND:
            self.tracking.add_evaluation(stamped)

    def report_digest(self, key: str, digest: Digest, step: int) -> None:
        """Report the digest of the state after a step, if its line of the ledger cannot have it."""
        detail = {"parameters_sha256": digest.parameters, "optimizer_sha256": digest.optimizer}
        why = f"of parameters {digest.parameters[:16]}"
        self.report_event(key, EventLine(time=0.0, kind="digest", why=why, step=step, detail=detail))

    def warn(self, key: str, text: str, *, step: int) -> None:
        """Warn once per run of a probable mistake in the script; all workers send the same warning."""
        self.report_event(key, EventLine(time=0.0, kind="warning", who="script", why=text, step=step))

    def report_step(
        self,
        round_: WorkerRound,
        samples: Samples,
        norm: float | None,
        *,
        digest_due: bool,
        skipped: bool = False,
        learning_rates: tuple[float, ...] = (),
        logged: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Report a committed step, after the script has gone on from it and a due digest is known."""
        if (self._link is None and self.tracking is None) or round_.commit is None:
            return
        outcome = round_.outcome
        # Excludes the script's work between steps, such as an evaluation.
        step_s = time.perf_counter() - round_.entered_at
        if round_.computed:
            self._compute.append((round_.seconds["compute"] + round_.seconds["deal"]) / round_.computed)
        line = LedgerLine(
            step=outcome.step,
            generation=round_.begin.generation if round_.begin else 0,
            workers=outcome.shares,
            samples=samples,
            loss=outcome.loss,
            loss_hex=outcome.loss.hex(),
            time=time.time(),
            seconds={**round_.seconds, "step": step_s},
            grad_norm=norm,
            skipped=skipped,
            learning_rates=learning_rates,
            logged=logged,
            agreed=outcome.agreed,
            absent=self._list_absent_sites(outcome.left_out),
        )
        report = control.StepReport(
            worker=self.worker, line=line, step_s=step_s, healthy=round_.commit.healthy
        )
        self.steps.add(report, digest_due=digest_due)

    def _list_absent_sites(self, left_out: tuple[Span, ...]) -> tuple[str, ...]:
        ranks = expand_spans(left_out)
        return tuple(sorted({self._pinned.rank_sites[rank] for rank in ranks})) if self._pinned else ()

    def report_complete(self) -> None:
        """Report that all workers have committed the last step."""
        self.complete = True
        self.steps.send_all()

    def _send_step(self, report: control.StepReport) -> None:
        if self._link is not None:
            self._link.report_step(report)
        if self.tracking is not None:
            self.tracking.add_step(report.line)

    def _build_report(self) -> control.WorkerReport:
        member, mesh = self._member, self._mesh
        host, port = (mesh.host, mesh.port) if mesh else ("", 0)
        report = control.WorkerReport(
            worker=self.worker,
            pid=os.getpid(),
            host=host,
            port=port,
            node=self._node,
            state=self._find_state(),
            notice=get_notice(),
            sites=self._sites,
        )
        if member is None:
            return report
        return msgspec.structs.replace(
            report,
            generation=member.works_in,
            newest=member.newest,
            step=member.step,
            complete=member.complete,
            virtual_ranks=len(member.assigned),
            blocks=len(member.blocks_held),
            last_blocks=find_spans(member.blocks_to_write) if self.finished else (),
            compute_s=median(self._compute) if self._compute else 0.0,
            pinned=self._pinned,
            checkpoints=self._list_parts(),
            ending=self.ending,
            stopped=self.stopped,
            traffic=_find_traffic(self._reactor, member.works_in),
            crossings=_count_crossings(self._reactor),
        )

    def _list_parts(self) -> tuple[control.CheckpointPart, ...]:
        if self.checkpoint_writer is None:
            return ()
        if self._links is None:
            return self.checkpoint_writer.parts
        others = [self._links.parts.get(number, ()) for number in range(1, self._links.processes)]
        return merge_parts([self.checkpoint_writer.parts, *others])

    def _find_state(self) -> control.WorkerState:
        if self._member is not None and self._member.left:
            return "leaving"
        if self.finished:
            return "finished"
        if self._member is not None and self._member.works_in:
            return "member"
        return "ready" if self._ready else "starting"

    # -- from the coordinator ------------------------------------------------------------------------------

    def _report_failure(self, failed: ScriptFailed) -> None:
        """Pass on that the script has failed in another process of this worker."""
        self.send(control.WorkerFailed(worker=self.worker, traceback=failed.traceback, lost=failed.lost))
        self.flush(FAILURE_S)

    def _follow_dismissal(self, end: EndWorker) -> None:
        self._receive(control.Dismiss(code=end.code, why=end.why))

    def _receive(self, message: control.ToWorker) -> None:
        if isinstance(message, control.Dismiss) and self._links is not None:
            self._links.send(EndWorker(message.code, message.why))
        match message:
            case control.Propose(generation=generation):
                if self._reactor is not None:
                    self._reactor.post(events.GenerationProposed(generation))
            case control.StopTraining():
                if self._reactor is not None:
                    self._reactor.post(events.StopRequested())
            case control.TakeCheckpoint(after=after):
                self._take_checkpoint(after)
            case control.PublishCheckpoint():
                if self.checkpoint_writer is not None:
                    self.checkpoint_writer.publish(message)
            case control.WriteAgain(writers=writers, blocks=spans, attempt=attempt):
                if self._reactor is not None and self.checkpoint_writer is not None:
                    blocks = tuple(sorted(expand_spans(spans)))
                    self._reactor.post(events.RewriteRequested(writers, blocks, attempt))
            case control.WriteModel():
                self.last_orders.put(message)
            case control.Dismiss(code=code, why=why):
                if code:
                    sys.stderr.write(f"worker {self.worker} is dismissed: {why}\n")
                    sys.stderr.flush()
                if self.script_ended or (self._member is not None and self._member.left):
                    self.last_orders.put(message)
                    return
                # End the process without waiting for the script, which has no decisions left.
                threading.Thread(
                    target=_exit, name="elastane-dismissal", args=(self, code), daemon=True
                ).start()
            case control.Acknowledge():
                pass  # the link has taken it

    def _take_checkpoint(self, after: int) -> None:
        """Request a checkpoint after reserving memory for the copy, so that no step waits for the memory."""
        reactor, writer, member = self._reactor, self.checkpoint_writer, self._member
        if reactor is None or writer is None or member is None or member.generation is None:
            return
        share = 1 / max(1, len(member.generation.members))
        writer.prepare(share, lambda: reactor.post(events.CheckpointRequested(after)))

    def request_report(self) -> None:
        """Send a report soon."""
        if isinstance(self._reactor, FollowingReactor) and self.checkpoint_writer is not None:
            self._reactor.report_parts(self.checkpoint_writer.parts)
        if self._link is not None:
            self._link.request_report()


_reporter: Reporter | None = None


def _set_reporter(reporter: Reporter) -> None:
    global _reporter  # noqa: PLW0603 - the worker's main thread outlives the user's script
    _reporter = reporter


def get_reporter() -> Reporter | None:
    """Return the reporter of this process; None: its script has not joined yet."""
    return _reporter


def _find_traffic(reactor: Reactor | None, generation: int) -> control.TrafficBytes | None:
    meter = None if reactor is None else reactor.traffic
    return None if meter is None else meter.find_bytes(generation)


def _count_crossings(reactor: Reactor | None) -> dict[SiteName, int]:
    meter = None if reactor is None else reactor.traffic
    return {} if meter is None else meter.count_crossings()


def _exit(reporter: Reporter, code: int) -> None:
    reporter.flush_last(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
