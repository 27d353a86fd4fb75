"""The training thread's side of a round: enter it, compute what is dealt, return with its outcome."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty

from elastane.api.heartbeat_file import Phase
from elastane.protocol import actions, events
from elastane.protocol.messages import Leaf, RoundOutcome
from elastane.runtime.heartbeat import Heartbeat
from elastane.runtime.reactor import Directive, Reactor, ReactorFailure

BEAT_S = 0.1


class WorkerLeft(BaseException):
    """This worker has left the run: the script is unwound and ends. Not an error."""


class WorkerRound:
    """One round as the training thread lives it.

    Iterating yields virtual ranks until the round has committed; more may come when somebody dies.

    Args:
        reactor: whom to tell, and who tells.
        heartbeat: moved while computing and while waiting.
        kind: of the round.
        size: its virtual ranks.
        checkpoint: the state after it is to be kept.

    Attributes:
        begin: number, step and generation, known from the first virtual rank on.
        commit: what was decided; None until then.
        last: the virtual rank at hand is the last one dealt so far.
        seconds: time spent per phase.
        entered_at: when, by ``time.perf_counter``.
        newcomer: it has waited to be taken in; nobody has waited for it before the round begins.
    """

    def __init__(
        self,
        reactor: Reactor,
        heartbeat: Heartbeat,
        kind: events.RoundKind,
        size: int,
        *,
        checkpoint: bool = False,
    ) -> None:
        self._reactor = reactor
        self._heartbeat = heartbeat
        self._entered = events.RoundEntered(kind, size, checkpoint)
        self._todo: deque[int] = deque()
        self.assignment = 0
        self.begin: actions.BeginRound | None = None
        self.commit: actions.CommitRound | None = None
        self.seconds = {"deal": 0.0, "compute": 0.0, "reduce": 0.0, "apply": 0.0}
        self.computed = 0
        self.newcomer = False
        self.entered_at = time.perf_counter()
        self._is_entered = False

    def begin_now(self) -> None:
        """Enter the round and wait until it begins, before anything of it is computed."""
        self._enter()
        while self.begin is None:
            self._take(self._directive(wait=True))

    def __iter__(self) -> Iterator[int]:
        self._enter()
        while self.commit is None:
            directive = self._directive(wait=not self._todo)
            self._heartbeat.beat(Phase.STEP)
            if directive is None:
                self._heartbeat.beat(Phase.COMPUTE)
                yield self._todo.popleft()
            else:
                self._take(directive)

    def _enter(self) -> None:
        if self._is_entered:
            return
        self._is_entered = True
        self._heartbeat.beat(Phase.STEP)
        self.entered_at = time.perf_counter()
        self._reactor.post(self._entered)

    def _take(self, directive: Directive | None) -> None:
        if directive is not None:
            match directive:
                case actions.BeginRound():
                    self.begin = directive
                    if self.newcomer:
                        self.newcomer = False
                        self.seconds["reduce"], self.entered_at = 0.0, time.perf_counter()
                case actions.Compute(virtual_ranks, assignment):
                    self._todo.extend(virtual_ranks)
                    self.assignment = assignment
                case actions.CommitRound():
                    self.commit = directive
                case actions.ReleaseScript():
                    raise AssertionError("a script runs on after a step, not inside a round")
                case actions.LeaveTraining():
                    raise WorkerLeft
                case ReactorFailure(error):
                    raise error

    def wait_for_release(self) -> None:
        """Wait, once the step is applied, until the script is released and may change what was trained."""
        match self._directive(wait=True):
            case actions.ReleaseScript():
                return
            case actions.LeaveTraining():
                raise WorkerLeft
            case ReactorFailure(error):
                raise error
            case directive:
                raise AssertionError(f"{directive} before the script was released")

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time spent inside as that of a phase."""
        begun = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - begun

    @property
    def step(self) -> int:
        """The training step this round is, or comes before."""
        assert self.begin is not None, "computing follows the beginning"  # noqa: S101
        return self.begin.step

    @property
    def last(self) -> bool:
        return not self._todo

    @property
    def waiting(self) -> tuple[int, ...]:
        """Virtual ranks after the one at hand, as far as they are known."""
        return tuple(self._todo)

    @property
    def following(self) -> int | None:
        """The virtual rank after the one at hand, as far as is known."""
        return self._todo[0] if self._todo else None

    @property
    def outcome(self) -> RoundOutcome:
        assert self.commit is not None, "asked for after the round"  # noqa: S101
        return self.commit.outcome

    def done(self, leaf: Leaf) -> None:
        """The virtual rank at hand is computed."""
        self.computed += 1
        self._reactor.post(events.Computed(leaf))

    def _directive(self, *, wait: bool) -> Directive | None:
        """The next directive; while there is work and none has come, None."""
        if not wait:
            try:
                return self._reactor.directives.get_nowait()
            except Empty:
                return None
        begun = time.perf_counter()
        while True:
            try:
                directive = self._reactor.directives.get(timeout=BEAT_S)
            except Empty:
                # Waiting for a peer is progress of mine: the one who hangs is the one to be found.
                self._heartbeat.beat(Phase.STEP)
                continue
            self.seconds["reduce"] += time.perf_counter() - begun
            return directive
