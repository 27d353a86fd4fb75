"""What a training script meets: `join`, `Run.prepare`, `Run.steps`, `Run.evaluate`."""

import hashlib
import math
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import elastane
from elastane.api.errors import BadInput, RunFailed
from elastane.api.heartbeat import Phase
from elastane.api.membership import Generation, Member
from elastane.api.records import Digest, EventLine
from elastane.api.spec import Pinned
from elastane.protocol import member as core
from elastane.protocol.mesh import Leaf, Outcome
from elastane.runtime import settings
from elastane.runtime.data import Collate, Deck, MapDataset, Plan, deal_in_order, make_plan, seed_everything
from elastane.runtime.gradients import Gradients
from elastane.runtime.heartbeat import Heartbeat
from elastane.runtime.layout import ModelLayout, check_dense
from elastane.runtime.reactor import Reactor
from elastane.runtime.reporting import Reporter
from elastane.runtime.rounds import Round
from elastane.runtime.state import TrainingState

AnyModule = TypeVar("AnyModule", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


def join() -> "Run":
    """Take part in the run this process belongs to; alone, under ``elastane run``, on any engine.

    Pins the number of intra-op threads and seeds every generator, so that the model built next begins with
    the same values everywhere.
    """
    here = settings.current()
    torch.set_num_threads(here.spec.threads)
    seed_everything(here.spec.seed)
    return Run(here)


class Run:
    """One worker's part in a run; made by `join`."""

    def __init__(self, here: settings.Settings) -> None:
        self._here = here
        self._spec = here.spec
        self._worker = here.worker
        beats = here.run_dir.beats if here.run_dir else None
        self._heartbeat = Heartbeat(beats, here.worker)
        self._heartbeat.beat(Phase.STARTING)
        self._reporter = Reporter(here)
        self._parts: _Parts | None = None
        self._plan: Plan | None = None
        self._prints = 0
        self._finished = False

    # -- what the user calls -------------------------------------------------------------------------------

    def prepare(
        self,
        model: AnyModule,
        optimizer: AnyOptimizer,
        *,
        scheduler: LRScheduler | None = None,
        clip_grad_norm: float | None = None,
    ) -> tuple[AnyModule, AnyOptimizer]:
        """Take charge of the model's state; returns the same objects.

        Args:
            model: on the CPU; its parameters and buffers are moved into shared memory, in place.
            optimizer: any of ``torch.optim`` with ``--copies all``, an elementwise one with ``--copies N``.
            scheduler: stepped once after every training step.
            clip_grad_norm: largest norm of the whole gradient, as ``clip_grad_norm_`` has it.

        Raises:
            BadInput: a model or optimizer that cannot be trained this way.
        """
        if self._parts is not None:
            raise BadInput(
                "prepare was called twice", means="a run trains one model", do="wrap several in one nn.Module"
            )
        layout = ModelLayout(model, optimizer)
        check_dense(layout)
        gradients = Gradients(layout, exact=self._spec.convergence == "exact")
        state = TrainingState(model, optimizer, scheduler, layout, self._spec.copies)
        self._parts = _Parts(layout, gradients, state, clip_grad_norm, _describe(optimizer))
        return model, optimizer

    def steps(
        self,
        dataset: MapDataset,
        *,
        global_batch: int,
        microbatch: int,
        until: str | int,
        collate: Collate | None = None,
    ) -> Iterator["Step"]:
        """The training steps of the run, from where it stands to its end.

        Args:
            dataset: map-style; shuffled anew each epoch by the run's seed, every sample once.
            global_batch: samples per step, whatever the number of workers.
            microbatch: samples per virtual rank; ``--virtual-ranks`` takes precedence.
            until: ``"3 epochs"``, ``"500 steps"`` or a number of steps.
            collate: list of samples to a batch; PyTorch's default otherwise.

        Raises:
            BadInput: numbers that do not fit together.
        """
        parts = self._prepared()
        if self._plan is not None:
            raise BadInput(
                "steps was called twice", means="a run has one sequence of steps", do="use one loop"
            )
        plan = self._plan = make_plan(
            dataset,
            global_batch,
            microbatch,
            until,
            virtual_ranks=self._spec.virtual_ranks,
            seed=self._spec.seed,
        )
        if self._here.run_dir and plan.virtual_ranks < self._spec.max_workers:
            raise BadInput(
                f"{plan.virtual_ranks} virtual ranks cannot keep {self._spec.max_workers} workers busy",
                means="each worker needs at least one virtual rank of every step",
                do=f"use --workers up to {plan.virtual_ranks}, or a smaller microbatch",
            )
        parts.start(self._reporter, self._pinned(parts, plan), self._spec.digest_every)
        deck = Deck(dataset, plan, collate)
        while not self._finished:
            step = Step(self, parts, plan, deck)
            yield step
            step.finish()
            self._heartbeat.beat(Phase.USER)
            self._finished = step.number >= plan.steps or step.stopped
        self._settle(parts)

    def evaluate(
        self, dataset: MapDataset, *, microbatch: int, collate: Collate | None = None
    ) -> "Evaluation":
        """One pass over a dataset, spread over the workers; iterate it and `Evaluation.add` to it."""
        parts = self._prepared()
        if parts.reactor is None:
            raise BadInput(
                "evaluate was called before the first step",
                means="a worker that joins later would have to do it again",
                do="evaluate inside the loop over run.steps, or after it",
            )
        return Evaluation(self, parts, dataset, microbatch, collate)

    def print(self, *values: object) -> None:
        """Print once per run, not once per worker."""
        text = " ".join(map(str, values))
        if self._here.run_dir is None:
            print(text, flush=True)  # noqa: T201 - that is its purpose
            return
        step = self._parts.step if self._parts else 0
        self._prints += 1
        self._reporter.happened(
            f"print-{step}-{self._prints}", EventLine(time=0.0, kind="message", why=text, step=step)
        )

    @property
    def digest(self) -> Digest | None:
        """Digests of the state after the last step; None until the loop over `steps` has ended."""
        return self._parts.digest if self._parts and self._finished else None

    # -- inside --------------------------------------------------------------------------------------------

    def _prepared(self) -> "_Parts":
        if self._parts is None:
            raise BadInput(
                "the run has no model yet",
                means="prepare comes first",
                do="call run.prepare(model, optimizer)",
            )
        return self._parts

    def _round(self, parts: "_Parts", kind: core.Kind, size: int) -> Round:
        assert parts.reactor is not None, "rounds come after start"  # noqa: S101
        return Round(parts.reactor, self._heartbeat, kind, size)

    def _committed(self, parts: "_Parts", outcome: Outcome) -> None:
        """Take note of what every kind of round may bring."""
        if len(outcome.digests) == len(parts.layout.blocks):
            parts.digest = _digest(outcome)
            self._reporter.digested(parts.step, parts.digest)
        self._prints = 0

    def _settle(self, parts: "_Parts") -> None:
        """A last round: all agree on the digest of the finished state."""
        round_ = self._round(parts, "settle", 0)
        for _ in round_:
            raise AssertionError("settling has no virtual ranks")
        self._committed(parts, round_.outcome)
        self._reporter.settled()
        self._heartbeat.beat(Phase.FINISHED)

    def _pinned(self, parts: "_Parts", plan: Plan) -> Pinned:
        script = Path(self._spec.script)
        text = script.read_bytes() if self._here.run_dir and script.is_file() else b""
        return Pinned(
            script_digest=hashlib.sha256(text).hexdigest(),
            virtual_ranks=plan.virtual_ranks,
            global_batch=plan.global_batch,
            microbatch=plan.microbatch,
            dataset_length=plan.length,
            steps=plan.steps,
            seed=self._spec.seed,
            threads=self._spec.threads,
            convergence=self._spec.convergence,
            copies=self._spec.copies,
            parameters=parts.layout.elements,
            blocks=len(parts.layout.blocks),
            layout_digest=parts.layout.digest(),
            optimizer=parts.optimizer,
            versions={
                "elastane": elastane.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "device": torch.backends.cpu.get_cpu_capability(),
            },
        )


class Step:
    """One training step; iterate it for the microbatches of my virtual ranks.

    A joiner's first iteration begins with a rehearsal: one microbatch whose gradients are thrown away, to
    have everything loaded and warm before the others wait for it.

    Attributes:
        loss: of the whole step, the same on every worker; known after the iteration.
        stopped: the run stops after this step.
    """

    def __init__(self, run: Run, parts: "_Parts", plan: Plan, deck: Deck) -> None:
        self._run = run
        self._parts = parts
        self._plan = plan
        self._deck = deck
        self._number = parts.step + 1 if parts.rehearsed else 0
        self._round: Round | None = None
        self._batch_at_hand: tuple[int, Any, Leaf] | None = None
        self._rehearsing = False
        self._left_to_iterate = True
        self._announcing = False
        self.loss = math.nan
        self.stopped = False

    @property
    def number(self) -> int:
        """From 1. On a joiner's first step it is known once its iteration is over."""
        return self._number or self._parts.step + 1

    @property
    def epoch(self) -> int:
        """From 0."""
        return self._plan.samples(self.number).epoch

    def __iter__(self) -> Iterator[Any]:
        self._left_to_iterate = False
        parts = self._parts
        if not parts.rehearsed:
            yield from self._rehearse()
        round_ = self._round = self._run._round(parts, "train", self._plan.virtual_ranks)  # noqa: SLF001
        seconds = round_.seconds
        for rank in round_:
            assert round_.begin is not None, "computing follows the beginning"  # noqa: S101
            self._number = round_.begin.step
            begun = time.perf_counter()
            batch = self._deck.deal(self._number, rank)
            dealt = time.perf_counter()
            seconds["deal"] += dealt - begun
            self._begin_leaf(round_, rank)
            leaf = Leaf(rank, self._run._worker)  # noqa: SLF001
            if batch is not None:
                leaf = Leaf(rank, self._run._worker, samples=batch.samples, checksum=batch.checksum)  # noqa: SLF001
                self._batch_at_hand = (rank, batch, leaf)
                yield batch.inputs
                if self._is_pending():
                    raise BadInput(
                        f"step {self._number}: a microbatch was taken without step.backward(loss)",
                        means="its samples would be lost",
                        do="call step.backward once for every microbatch",
                    )
                leaf = self._leaf
            untouched = parts.gradients.end_leaf(
                parts.state.buffer_changes() if batch else parts.no_changes()
            )
            seconds["compute"] += time.perf_counter() - dealt
            round_.done(msgspec.structs.replace(leaf, untouched=untouched))
        self._apply(round_)

    def backward(self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None) -> None:
        """The backward pass of the microbatch at hand.

        Args:
            loss: scalar; the mean over the microbatch's samples, or, with ``weight``, the sum.
            weight: what the sum is to be divided by over the whole step, such as a number of tokens.

        Raises:
            RunFailed: the loss is not finite.
        """
        if self._rehearsing:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        if self._batch_at_hand is None:
            raise BadInput(
                "step.backward was called without a microbatch",
                means="each microbatch has one backward pass",
                do="call it once inside the loop over the step",
            )
        (rank, _, leaf), self._batch_at_hand = self._batch_at_hand, None
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunFailed(
                f"the loss of step {self._number}, virtual rank {rank} is {value}",
                means="the step was not committed; the state is that of the step before",
                do="look at the learning rate and at this microbatch; the step is reproducible by its number",
            )
        self._parts.weighted = weight is not None
        if weight is None:
            share = leaf.samples / self._plan.samples(self._number).count
            loss.backward(torch.full_like(loss, share))  # type: ignore[no-untyped-call]
            self._leaf = msgspec.structs.replace(leaf, loss=value, weight=float(leaf.samples))
        else:
            total = float(weight)
            loss.backward()  # type: ignore[no-untyped-call]
            mean = value / total if total else 0.0
            self._leaf = msgspec.structs.replace(leaf, loss=mean, weight=total)

    def finish(self) -> None:
        """Called between steps: the iteration must have run to its end."""
        if self._left_to_iterate or self._round is None or self._round.commit is None:
            raise BadInput(
                f"step {self.number} was not iterated to its end",
                means="its samples would be lost and the other workers would wait for ever",
                do="loop over the whole step, without break or return",
            )

    def _is_pending(self) -> bool:
        return self._batch_at_hand is not None

    def _rehearse(self) -> Iterator[Any]:
        parts = self._parts
        if parts.alone:
            parts.rehearsed = True
            return
        batch = self._deck.deal(1, 0)
        assert batch is not None, "the first virtual rank has samples"  # noqa: S101
        self._rehearsing = True
        yield batch.inputs
        self._rehearsing = False
        parts.state.buffer_changes()
        parts.rehearsed = True
        self._run._reporter.ready()  # noqa: SLF001

    def _begin_leaf(self, round_: Round, rank: int) -> None:
        gradients, assignment = self._parts.gradients, round_.assignment
        reactor = self._parts.reactor
        assert reactor is not None, "steps come after start"  # noqa: S101

        def announce(blocks: tuple[int, ...]) -> None:
            reactor.post(core.Final(assignment, blocks, gradients.parts()))

        gradients.begin_leaf(rank, announce if round_.last else None)

    def _apply(self, round_: Round) -> None:
        parts, commit = self._parts, round_.commit
        assert commit is not None, "applied once committed"  # noqa: S101
        assert parts.reactor is not None, "steps come after start"  # noqa: S101
        outcome = commit.outcome
        self._number = outcome.step
        begun = time.perf_counter()
        # Digests in these votes are of the state before this step.
        self._run._committed(parts, outcome)  # noqa: SLF001
        scale, norm = parts.scale(outcome)
        filled = self._plan.filled(outcome.step)
        sums = parts.gradients.sums
        parts.state.apply(outcome, sums, commit.held, scale=scale, virtual_ranks=filled)
        parts.step = outcome.step
        parts.reactor.post(core.Applied())
        self.loss = outcome.loss
        self.stopped = outcome.stop
        round_.seconds["apply"] = time.perf_counter() - begun
        self._run._reporter.committed(round_, self._plan, norm, self._run._spec.digest_every)  # noqa: SLF001


class Evaluation:
    """A pass over a dataset; its sums are exact and the same on every worker.

    Attributes:
        sums: of everything added, by name; complete after the iteration.
    """

    def __init__(
        self, run: Run, parts: "_Parts", dataset: MapDataset, microbatch: int, collate: Collate | None
    ) -> None:
        self._run, self._parts, self._dataset = run, parts, dataset
        self._microbatch, self._collate = microbatch, collate
        self._added: dict[str, list[float]] = {}
        self.sums: dict[str, float] = {}

    def __iter__(self) -> Iterator[Any]:
        length, size = len(self._dataset), -(-len(self._dataset) // self._microbatch)
        run, parts = self._run, self._parts
        round_ = run._round(parts, "evaluate", size)  # noqa: SLF001
        for rank in round_:
            positions = range(rank * self._microbatch, min((rank + 1) * self._microbatch, length))
            batch = deal_in_order(self._dataset, positions, self._collate)
            self._added = {}
            yield batch.inputs
            added = {name: math.fsum(values) for name, values in self._added.items()}
            leaf = Leaf(
                rank,
                run._worker,
                samples=batch.samples,
                checksum=batch.checksum,
                sums=added,  # noqa: SLF001
            )
            round_.done(leaf)
        run._committed(parts, round_.outcome)  # noqa: SLF001
        self.sums = dict(round_.outcome.sums)
        line = EventLine(time=0.0, kind="evaluation", step=parts.step, detail=dict(self.sums))
        run._reporter.happened(f"evaluation-{round_.outcome.round}", line)  # noqa: SLF001
        run._heartbeat.beat(Phase.USER)  # noqa: SLF001

    def add(self, **values: float | torch.Tensor) -> None:
        """Add to the named sums, in fp64; tensors are summed first."""
        for name, value in values.items():
            number = value.double().sum().item() if isinstance(value, torch.Tensor) else float(value)
            self._added.setdefault(name, []).append(number)


class _Parts:
    """What `Run.prepare` makes, and what of it changes."""

    def __init__(
        self,
        layout: ModelLayout,
        gradients: Gradients,
        state: TrainingState,
        clip_grad_norm: float | None,
        optimizer: str,
    ) -> None:
        self.layout, self.gradients, self.state = layout, gradients, state
        self.clip_grad_norm = clip_grad_norm
        self.optimizer = optimizer
        self.reactor: Reactor | None = None
        self.alone = True
        self.rehearsed = False
        self.step = 0
        self.weighted = False
        self.digest: Digest | None = None

    def start(self, reporter: Reporter, pinned: Pinned, digest_every: int) -> None:
        """Begin to take part: from now on the coordinator may count on this worker."""
        layout = core.Layout(
            virtual_ranks=pinned.virtual_ranks,
            blocks=len(self.layout.blocks),
            units=self.state.units,
            unit_bytes=self.state.keeper.unit_bytes,
            copies=pinned.copies,
            digest_every=digest_every,
        )
        member = core.Member(reporter.worker, layout)
        clip = self.clip_grad_norm is not None
        self.alone = reporter.alone
        self.reactor = reporter.connect(member, self.gradients, self.state, pinned, measure_norms=clip)
        if self.alone:
            me = Member(reporter.worker, "", 0)
            self.reactor.post(core.Proposed(Generation(1, 1, (me,), planned=False)))

    def no_changes(self) -> list[torch.Tensor]:
        """The buffer changes of a virtual rank without samples."""
        return [torch.zeros_like(place.view(self.gradients.sums)) for place in self.layout.buffer_places]

    def scale(self, outcome: Outcome) -> tuple[float, float | None]:
        """Factor of every gradient, and the gradient's norm if it is clipped."""
        divided = 1.0 / outcome.weight if self.weighted and outcome.weight else 1.0
        if self.clip_grad_norm is None or outcome.norm_squared is None:
            return divided, None
        norm = math.sqrt(outcome.norm_squared) * divided
        return divided * min(1.0, self.clip_grad_norm / (norm + CLIP_EPSILON)), norm


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
