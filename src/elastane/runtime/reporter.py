"""What a worker says about itself and what it is told: the seam between training and the coordinator."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from statistics import median
from types import MappingProxyType

import msgspec

from elastane.agent import priority
from elastane.api import control
from elastane.api.checkpoints import WrittenFile
from elastane.api.endpoint import read_secret
from elastane.api.records import Digest, EventLine, LedgerLine, Samples
from elastane.api.spec import Pinned
from elastane.protocol import events
from elastane.protocol.member_machine import MemberMachine
from elastane.runtime.checkpoints.writer import CheckpointWriter
from elastane.runtime.links.coordinator_link import CoordinatorLink
from elastane.runtime.links.mesh import Mesh
from elastane.runtime.reactor import Reactor
from elastane.runtime.state.gradients import Gradients
from elastane.runtime.state.state import TrainingState
from elastane.runtime.worker_round import WorkerRound
from elastane.runtime.worker_settings import WorkerSettings


class Reporter:
    """One worker's line to the rest of the run; silent when it trains alone.

    Attributes:
        taker: takes this worker's part in checkpoints; None: the run keeps none.
        written: ``WriteModel`` requests, for the main thread once its script has ended.
        complete: the loop over the steps came to its end.
        finished: so did the script.
        ending: why the script has ended the run before its last step; empty if it has not.
        stopped: the user has, likewise.
        loop_left: for a script that has ended inside its loop; whether that can end the run.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.worker = settings.worker
        self.alone = settings.run_dir is None
        self.written: SimpleQueue[control.WriteModel] = SimpleQueue()
        self._spec = settings.spec
        self._control: CoordinatorLink | None = None
        self._mesh: Mesh | None = None
        self._reactor: Reactor | None = None
        self._member: MemberMachine | None = None
        self._pinned: Pinned | None = None
        self._ready = False
        self._compute: deque[float] = deque(maxlen=10)
        # Reports of steps whose digest is not known yet, or whose script may still record something.
        self._held_back: list[control.StepReport] = []
        self._awaits_digest = self._awaits_script = False
        self.state: TrainingState | None = None
        self.taker: CheckpointWriter | None = None
        self.complete = self.finished = False
        self.ending, self.stopped = "", False
        self.loop_left: Callable[[], bool] = lambda: False
        if settings.run_dir is not None:
            secret = bytes.fromhex(read_secret(settings.run_dir))
            self._mesh = Mesh(settings.worker, secret)
            self._control = CoordinatorLink(settings.run_dir, settings.worker, self._report, self._hear)
            global _here  # noqa: PLW0603 - the worker's main thread outlives the user's script
            _here = self

    def connect(
        self,
        member: MemberMachine,
        gradients: Gradients,
        state: TrainingState,
        pinned: Pinned,
        *,
        measure_norms: bool,
    ) -> Reactor:
        """Begin to take part; `ready` must follow before anybody counts on it."""
        self._member, self._pinned, self.state = member, pinned, state
        self._reactor = Reactor(
            member,
            gradients,
            state,
            measure_norms=measure_norms,
            mesh=self._mesh,
            upstream=self._control,
            shared=self._spec.transport == "shared",
        )
        return self._reactor

    # -- up ------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """The rehearsal is over."""
        priority.restore()
        self._ready = True
        if self._control is not None:
            self._control.changed()

    def end(self) -> None:
        """The script has ended; all that is left is to be dismissed."""
        self.finished = True
        if self._control is not None:
            self._control.changed()

    def tell(self, message: control.FromWorker) -> None:
        """Say something once."""
        if self._control is not None:
            self._control.tell(message)

    def flush(self, timeout_s: float) -> None:
        """Wait until all is said."""
        if self._control is not None:
            self._control.flush(timeout_s)

    def happened(self, key: str, event: EventLine) -> None:
        """An event all workers see alike; written once."""
        stamped = msgspec.structs.replace(event, time=time.time())
        self.tell(control.WorkerEvent(worker=self.worker, key=key, event=stamped))

    def warn(self, key: str, text: str, *, step: int) -> None:
        """Say once per run what the script has probably not meant; all workers say it alike."""
        self.happened(key, EventLine(time=0.0, kind="warning", who="script", why=text, step=step))

    def committed(
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
        """Report a committed step, once the script has gone on from it and a due digest is known."""
        if self._control is None or round_.commit is None:
            return
        outcome = round_.outcome
        # What the script does between steps, an evaluation say, is no part of them.
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
        )
        report = control.StepReport(
            worker=self.worker, line=line, step_s=step_s, healthy=round_.commit.healthy
        )
        self._held_back.append(report)
        self._awaits_digest, self._awaits_script = digest_due, True

    def recorded(self, values: Mapping[str, float], files: Mapping[str, WrittenFile]) -> None:
        """The script has recorded something of the step just made: all of it so far."""
        if self._held_back:
            newest = self._held_back[-1]
            line = msgspec.structs.replace(newest.line, logged=dict(values), artifacts=dict(files))
            self._held_back[-1] = msgspec.structs.replace(newest, line=line)

    def script_went_on(self) -> None:
        """The script can record nothing more of the step just made."""
        self._awaits_script = False
        self._release()

    def digested(self, step: int, digest: Digest) -> None:
        """The digest of the state after ``step`` is known."""
        for i, report in enumerate(self._held_back):
            if report.line.step == step:
                line = msgspec.structs.replace(report.line, digest=digest)
                self._held_back[i] = msgspec.structs.replace(report, line=line)
        self._awaits_digest = False
        self._release()

    def settled(self) -> None:
        """The last step is made by all, and no digest is awaited any more."""
        self.complete = True
        self.release_all()

    def release_all(self) -> None:
        """Report all steps that have been made, whatever is still awaited."""
        self._awaits_digest = self._awaits_script = False
        self._release()

    def _release(self) -> None:
        if self._awaits_digest or self._awaits_script:
            return
        held, self._held_back = self._held_back, []
        for report in held:
            if self._control is not None:
                self._control.step(report)

    def _report(self) -> control.WorkerReport:
        member, mesh = self._member, self._mesh
        host, port = (mesh.host, mesh.port) if mesh else ("", 0)
        mine = control.WorkerReport(
            worker=self.worker, pid=os.getpid(), host=host, port=port, state=self._state()
        )
        if member is None:
            return mine
        return msgspec.structs.replace(
            mine,
            generation=member.works_in,
            newest=member.newest,
            step=member.step,
            complete=member.complete,
            virtual_ranks=len(member.claims),
            blocks=member.blocks_held,
            compute_s=median(self._compute) if self._compute else 0.0,
            pinned=self._pinned,
            checkpoints=self.taker.parts if self.taker is not None else (),
            ending=self.ending,
            stopped=self.stopped,
        )

    def _state(self) -> control.WorkerState:
        if self._member is not None and self._member.left:
            return "leaving"
        if self.finished:
            return "finished"
        if self._member is not None and self._member.works_in:
            return "member"
        return "ready" if self._ready else "starting"

    # -- down ----------------------------------------------------------------------------------------------

    def _hear(self, message: control.ToWorker) -> None:  # noqa: C901, PLR0912 - one row per kind of message
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
                if self.taker is not None:
                    self.taker.publish(message)
            case control.WriteAgain(writers=writers, attempt=attempt):
                # Asked again while it is under way, it is not begun anew.
                if self._reactor is not None and self.taker is not None and self.taker.begin_again(attempt):
                    self._reactor.post(events.RewriteRequested(writers))
            case control.WriteModel():
                self.written.put(message)
            case control.Dismiss(code=code, why=why):
                if code:
                    print(f"worker {self.worker} is dismissed: {why}", file=sys.stderr, flush=True)  # noqa: T201
                # From this thread, whatever the script is doing: the process has nothing left to decide.
                threading.Thread(
                    target=_exit, name="elastane-dismissal", args=(self, code), daemon=True
                ).start()
            case control.Acknowledge():
                pass  # the line itself keeps account

    def _take_checkpoint(self, after: int) -> None:
        """Memory for the copy is made ready first, so that no step waits for it."""
        reactor, taker, member = self._reactor, self.taker, self._member
        if reactor is None or taker is None or member is None or member.generation is None:
            return
        share = 1 / max(1, len(member.generation.members))
        taker.prepare(share, lambda: reactor.post(events.CheckpointRequested(after)))

    def changed(self) -> None:
        """Report soon."""
        if self._control is not None:
            self._control.changed()


_here: Reporter | None = None


def get_reporter() -> Reporter | None:
    """The reporter of this process, once its script has joined."""
    return _here


def _exit(reporter: Reporter, code: int) -> None:
    reporter.flush(2.0 if code == 0 else 0.2)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
