"""The training thread's part of a round: it enters, computes its virtual ranks and takes the outcome."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.protocol import actions, events
from elastane.run.protocol.messages import Leaf, RoundOutcome
from elastane.run.worker.gangs.data_place import LONE_PLACE, DataPlace
from elastane.run.worker.heartbeat import Heartbeat
from elastane.run.worker.late_losses import LateLoss, ResultPoster
from elastane.run.worker.reactor import Directive, Reactor, ReactorFailure

BEAT_S = 0.1


class WorkerLeft(BaseException):
    """The exception that unwinds the script of a worker that has left the run; not an error."""


class WorkerRound:
    """One round; iterate over it for the virtual ranks to compute, until the round has committed.

    More virtual ranks may come when another worker dies.

    Args:
        reactor: drives the protocol, and sends directives to this thread.
        heartbeat: receives beats during computation and waiting.
        size: the number of virtual ranks.
        checkpoint: the run saves the state after the round.
        results: posts the results of this thread; None: the reactor receives them at once.
        place: of this process in its worker, which computes neighbouring virtual ranks together.

    Attributes:
        begin: the number, step and generation; known from the first virtual rank on.
        commit: the decision; None until the round has committed.
        seconds: the time spent in each phase.
        entered_at: the time of entry, by ``time.perf_counter``.
        newcomer: this worker has waited for its admission, so no other worker has waited for it so far.
        recomputes: the current virtual rank is computed for a spot check.
        checked: the virtual rank among those to compute that a spot check compares; None: none.
        left_out: the virtual ranks of absent sites.
    """

    def __init__(
        self,
        reactor: Reactor,
        heartbeat: Heartbeat,
        kind: events.RoundKind,
        size: int,
        *,
        checkpoint: bool = False,
        results: ResultPoster | None = None,
        place: DataPlace = LONE_PLACE,
    ) -> None:
        self._reactor = reactor
        self._results = results or ResultPoster(reactor)
        self._heartbeat = heartbeat
        self._place = place
        self._entered = events.RoundEntered(kind, size, checkpoint)
        self._waiting_ranks: deque[int] = deque()
        self._waiting_checks: deque[int] = deque()
        self.recomputes = False
        self.checked: int | None = None
        self.left_out: frozenset[int] = frozenset()
        self.assignment = 0
        self.begin: actions.BeginRound | None = None
        self.commit: actions.CommitRound | None = None
        self.seconds = {"deal": 0.0, "compute": 0.0, "reduce": 0.0, "apply": 0.0}
        self.computed = 0
        self.newcomer = False
        self.entered_at = time.perf_counter()
        self._is_entered = False

    def begin_now(self) -> None:
        """Enter the round and wait until it begins, before computing any part of it."""
        self._enter()
        while self.begin is None:
            self._take(self._get_directive(wait=True))

    def __iter__(self) -> Iterator[int]:
        self._enter()
        while self.commit is None:
            directive = self._get_directive(wait=not (self._waiting_ranks or self._waiting_checks))
            self._heartbeat.beat(Phase.STEP)
            if directive is None:
                self._heartbeat.beat(Phase.COMPUTE)
                # Other workers wait for the sums of a step first, and for its check only then.
                self.recomputes = not self._waiting_ranks
                seconds = self.seconds.copy()
                yield (self._waiting_ranks or self._waiting_checks).popleft()
                if self.recomputes:
                    # The share of this worker follows from the time that its own virtual ranks take.
                    self.seconds = seconds
            else:
                self._take(directive)

    def _enter(self) -> None:
        if self._is_entered:
            return
        self._is_entered = True
        self._heartbeat.beat(Phase.STEP)
        self.entered_at = time.perf_counter()
        self._reactor.post_result(self._entered)

    def _take(self, directive: Directive | None) -> None:
        if directive is not None:
            match directive:
                case actions.BeginRound():
                    self.begin = directive
                    if self.newcomer:
                        self.newcomer = False
                        self.seconds["reduce"], self.entered_at = 0.0, time.perf_counter()
                case actions.Compute(virtual_ranks, assignment, checked, left_out):
                    # Each place computes one of the neighbouring virtual ranks that come together.
                    self._waiting_ranks.extend(virtual_ranks[self._place.number :: self._place.size])
                    self.assignment, self.checked, self.left_out = assignment, checked, left_out
                case actions.Recompute(virtual_rank):
                    self._waiting_checks.append(virtual_rank)
                case actions.CommitRound():
                    self.commit = directive
                case actions.ReleaseScript():
                    raise AssertionError("a script runs on after a step, not inside a round")
                case actions.LeaveTraining():
                    raise WorkerLeft
                case ReactorFailure(error):
                    raise error

    def wait_for_release(self) -> None:
        """Wait, after the step is applied, until the script may change the state."""
        match self._get_directive(wait=True):
            case actions.ReleaseScript():
                return
            case actions.LeaveTraining():
                raise WorkerLeft
            case ReactorFailure(error):
                raise error
            case directive:
                raise AssertionError(f"{directive} before the script was released")

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the time spent in the context as that of a phase."""
        began_s = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began_s

    @property
    def step(self) -> int:
        """The number of the training step that this round computes or precedes."""
        assert self.begin is not None, "a round begins before it is computed"
        return self.begin.step

    @property
    def is_last(self) -> bool:
        """The current virtual rank is the last one assigned so far."""
        return not self._waiting_ranks

    @property
    def waiting(self) -> tuple[int, ...]:
        """The virtual ranks after the current one that are assigned so far."""
        return tuple(self._waiting_ranks)

    @property
    def following(self) -> int | None:
        """The virtual rank after the current one; None if none is assigned."""
        return self._waiting_ranks[0] if self._waiting_ranks else None

    @property
    def outcome(self) -> RoundOutcome:
        """The outcome that all workers have agreed on."""
        assert self.commit is not None, "a round that is asked has ended"
        return self.commit.outcome

    def finish_leaf(self, leaf: Leaf, loss: LateLoss | None = None) -> None:
        """Report that the current virtual rank is computed.

        Args:
            loss: its loss, which a device still computes; None: the leaf has it.
        """
        self.computed += not self.recomputes
        build = events.Recomputed if self.recomputes else events.Computed
        if loss is None:
            self._results.post(build(leaf))
        else:
            self._results.post_leaf(leaf, loss, build)

    def _get_directive(self, *, wait: bool) -> Directive | None:
        """Return the next directive; None: none has come, and there is work to do."""
        if not wait:
            return self._reactor.take_directive(0.0)
        began_s = time.perf_counter()
        while True:
            directive = self._reactor.take_directive(BEAT_S)
            if directive is not None:
                self.seconds["reduce"] += time.perf_counter() - began_s
                return directive
            # Waiting for a peer counts as progress: the stall detector must find the worker that hangs.
            if not self._reactor.queue.is_stuck():
                self._heartbeat.beat(Phase.STEP)
