"""All that training a model takes, kept together: its state, its rounds and whom to tell."""

import hashlib
import math
import platform
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import elastane
from elastane.api.errors import BadInput
from elastane.api.heartbeat import Phase
from elastane.api.membership import Generation, Member
from elastane.api.records import Digest
from elastane.api.spec import Pinned
from elastane.protocol import actions, events
from elastane.protocol import member as core
from elastane.protocol.layout import Layout
from elastane.protocol.mesh import Outcome
from elastane.runtime.data import Plan
from elastane.runtime.gradients import Gradients
from elastane.runtime.heartbeat import Heartbeat
from elastane.runtime.layout import ModelLayout, check_dense
from elastane.runtime.reactor import Reactor
from elastane.runtime.reporting import Reporter
from elastane.runtime.rounds import Round
from elastane.runtime.settings import Settings
from elastane.runtime.state import TrainingState

CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


class Training:
    """One worker's copy of the training.

    Args:
        here: where this process takes part.
        heartbeat: moved by the training thread.
        reporter: the way to the coordinator.
        model: as given to ``prepare``.
        optimizer: likewise.
        scheduler: likewise.
        clip_grad_norm: largest norm of the whole gradient; None: unlimited.

    Attributes:
        step: training steps committed and applied.
        rehearsed: this worker has everything loaded and warm.
        digest: of the state, when last computed.
    """

    def __init__(
        self,
        here: Settings,
        heartbeat: Heartbeat,
        reporter: Reporter,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None,
        clip_grad_norm: float | None,
    ) -> None:
        self.worker, self.spec = here.worker, here.spec
        self.heartbeat, self.reporter = heartbeat, reporter
        self.layout = ModelLayout(model, optimizer)
        check_dense(self.layout)
        self.gradients = Gradients(self.layout, exact=here.spec.convergence == "exact")
        self.state = TrainingState(model, optimizer, scheduler, self.layout, here.spec.copies)
        self.clip_grad_norm = clip_grad_norm
        self.step = 0
        # Alone nobody waits for this process, so it need not rehearse.
        self.rehearsed = reporter.alone
        self.digest: Digest | None = None
        self._reactor: Reactor | None = None

    @property
    def reactor(self) -> Reactor:
        """Carries out this worker's protocol.

        Raises:
            BadInput: no step has begun yet.
        """
        if self._reactor is None:
            raise BadInput(
                "evaluate was called before the first step",
                means="a worker that joins later would have to do it again",
                do="evaluate inside the loop over run.steps, or after it",
            )
        return self._reactor

    def start(self, plan: Plan, dataset_digest: str) -> None:
        """Begin to take part: once rehearsed, the coordinator may count on this worker."""
        layout = Layout(
            virtual_ranks=plan.virtual_ranks,
            blocks=len(self.layout.blocks),
            units=self.state.units,
            unit_bytes=self.state.keeper.unit_bytes,
            copies=self.spec.copies,
            digest_every=self.spec.digest_every,
        )
        member = core.Member(self.worker, layout)
        self._reactor = self.reporter.connect(
            member,
            self.gradients,
            self.state,
            self._pinned(plan, dataset_digest),
            measure_norms=self.clip_grad_norm is not None,
        )
        if self.reporter.alone:
            me = Member(self.worker, "", 0)
            self._reactor.post(events.Proposed(Generation(1, 1, (me,), planned=False)))

    def ready(self) -> None:
        """The rehearsal is over."""
        self.gradients.touch()
        self.state.rehearse(self.gradients.sums)
        self.rehearsed = True
        self.reporter.ready()

    def round(self, kind: events.Kind, size: int) -> Round:
        """The next round, not yet entered."""
        return Round(self.reactor, self.heartbeat, kind, size)

    def apply(self, commit: actions.Commit) -> float | None:
        """Take a committed training step.

        Returns:
            The gradient's norm before clipping; None unless it is clipped.
        """
        outcome = commit.outcome
        # Digests in these votes are of the state before this step.
        self.committed(outcome)
        scale, norm = self._scale(outcome)
        self.state.apply(outcome, self.gradients.sums, commit.held, scale=scale, virtual_ranks=outcome.filled)
        self.step = outcome.step
        self.reactor.post(events.Applied())
        return norm

    def committed(self, outcome: Outcome) -> None:
        """Take note of what the outcome of any round may bring."""
        if len(outcome.digests) == len(self.layout.blocks):
            self.digest = _digest(outcome)
            self.reporter.digested(self.step, self.digest)

    def settle(self) -> None:
        """A last round, in which all agree on the digest of the finished state."""
        round_ = self.round("settle", 0)
        for _ in round_:
            raise AssertionError("settling has no virtual ranks")
        self.committed(round_.outcome)
        self.reporter.settled()
        self.heartbeat.beat(Phase.FINISHED)

    def _scale(self, outcome: Outcome) -> tuple[float, float | None]:
        """Factor of every gradient, and the gradient's norm if it is clipped."""
        divided = 1.0 / outcome.weight if outcome.weighted and outcome.weight else 1.0
        if self.clip_grad_norm is None or outcome.norm_squared is None:
            return divided, None
        norm = math.sqrt(outcome.norm_squared) * divided
        return divided * min(1.0, self.clip_grad_norm / (norm + CLIP_EPSILON)), norm

    def _pinned(self, plan: Plan, dataset_digest: str) -> Pinned:
        script = Path(self.spec.script)
        text = script.read_bytes() if script.is_file() else b""
        return Pinned(
            script_digest=hashlib.sha256(text).hexdigest(),
            virtual_ranks=plan.virtual_ranks,
            global_batch=plan.global_batch,
            microbatch=plan.microbatch,
            dataset_length=plan.length,
            dataset_digest=dataset_digest,
            steps=plan.steps,
            seed=self.spec.seed,
            threads=self.spec.threads,
            convergence=self.spec.convergence,
            copies=self.spec.copies,
            parameters=self.layout.elements,
            blocks=len(self.layout.blocks),
            layout_digest=self.layout.digest(),
            optimizer=_describe(self.state.optimizer),
            versions={
                "elastane": elastane.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "device": torch.backends.cpu.get_cpu_capability(),
            },
        )


def _describe(optimizer: Optimizer) -> str:
    defaults = ", ".join(f"{key}={value!r}" for key, value in sorted(optimizer.defaults.items()))
    return f"{type(optimizer).__name__}({defaults})"


def _digest(outcome: Outcome) -> Digest:
    pairs = [outcome.digests[block] for block in sorted(outcome.digests)]
    values, states = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Digest(
        parameters=hashlib.sha256("".join(values).encode()).hexdigest(),
        optimizer=hashlib.sha256("".join(states).encode()).hexdigest(),
        parameter_blocks=tuple(value[:16] for value in values),
        optimizer_blocks=tuple(value[:16] for value in states),
    )
