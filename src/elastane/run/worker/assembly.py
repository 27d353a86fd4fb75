"""The construction of a worker's training: its state, its protocol layout, its checkpoint writer."""

import hashlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import elastane
from elastane.run.attempts.beginnings import open_checkpoints
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.nouns.checkpoints import SAVED_BY, Retention
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.round_options import InnerName
from elastane.run.nouns.spec import CheckpointRun, Pinned, number_attempt
from elastane.run.protocol import events
from elastane.run.protocol.layout import Layout
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.worker.checkpoints.copier import PlainState
from elastane.run.worker.checkpoints.state_reader import StartingCheckpoint
from elastane.run.worker.checkpoints.state_slices import find_host_keys
from elastane.run.worker.checkpoints.writer import CheckpointWriter
from elastane.run.worker.data.batch_sources import BatchPlan, BatchSource
from elastane.run.worker.finished.model_writer import check_writable
from elastane.run.worker.gangs.gang_checks import check_gang
from elastane.run.worker.reporter import Reporter
from elastane.run.worker.state import devices
from elastane.run.worker.state.averaged_state import AveragedState
from elastane.run.worker.state.edited_values import refuse_edits
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.inner_optimizer import InnerOptimizer, OuterOptimizer, build_outer
from elastane.run.worker.state.loss_scaling import LossScaling
from elastane.run.worker.state.model_layout import ModelLayout, check_dense
from elastane.run.worker.state.optimizer_shards import updates_elementwise
from elastane.run.worker.state.placement import choose_placement
from elastane.run.worker.state.row_sums import SCHEME
from elastane.run.worker.state.run_keep import RunKeep
from elastane.run.worker.state.training_state import TrainingState
from elastane.run.worker.worker_settings import WorkerSettings

PORTION_BYTES, EVERYTHING_BYTES = 16 << 20, 1 << 62


class TrainingParts(msgspec.Struct, frozen=True):
    """The parts of one worker's training.

    Args:
        scaling: the scaling of the losses; None: they are not scaled.
    """

    layout: ModelLayout
    gradients: Gradients
    scaling: LossScaling | None
    state: TrainingState


def build_parts(
    settings: WorkerSettings,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    scheduler: LRScheduler | None,
    scaler: GradScaler | None,
    clip_grad_norm: float | None,
    keep: RunKeep,
    outer: OuterOptimizer | None = None,
    inner_state: InnerName = "fresh",
) -> TrainingParts:
    """Lay out the state of a checked model and optimizer, and move it to the placement of the run.

    Args:
        clip_grad_norm: the largest norm of the gradient of an inner step, in a run of rounds.
        outer: builds the optimizer that steps once in a round; None: the run has no rounds.
        inner_state: the state with which the optimizer begins in each virtual rank of a round.

    Raises:
        BadInput: the run cannot train, carry or write this model.
    """
    shards = None
    if settings.spec.processes > 1:
        # Importing FSDP takes a while, and the workers of other runs do not need it.
        from elastane.run.worker.state.local_shards import LocalShards

        shards = LocalShards(model, optimizer, settings.spec.processes)
    averaged = None
    if inner_state == "averaged":
        averaged = AveragedState(optimizer, {parameter: name for name, parameter in model.named_parameters()})
    layout = ModelLayout(model, optimizer, shards, averaged)
    if shards is not None:
        check_gang(settings.spec, layout, optimizer, scaler=scaler)
    check_dense(layout)
    check_writable(model)
    exact = settings.spec.convergence == "exact"
    if exact:
        devices.pin_kernels(layout.device)
    inner, placement = None, choose_placement(layout, in_rounds=outer is not None)
    if outer is not None:
        inner = InnerOptimizer(optimizer, scheduler, clip_grad_norm, layout, placement, averaged)
        optimizer = build_outer(outer, optimizer)
    gradients = Gradients(layout, exact=exact, memory=placement.slots)
    is_scaled = scaler is not None and scaler.is_enabled()
    scaling = LossScaling(scaler, optimizer, layout.device) if scaler is not None and is_scaled else None
    state = TrainingState(
        model,
        optimizer,
        scheduler,
        layout,
        copies=settings.spec.copies,
        placement=placement,
        scaling=scaling,
        keep=keep,
        shards=shards,
        inner=inner,
    )
    # Refuse here a state that the first vote could not carry.
    state.replicated.digest_parts()
    return TrainingParts(layout, gradients, scaling, state)


def build_protocol_layout(
    settings: WorkerSettings, parts: TrainingParts, plan: BatchPlan, together: int
) -> Layout:
    """Return the constants of the protocol's decisions; ``together`` as in `Layout`."""
    spec = settings.spec
    return Layout(
        virtual_ranks=plan.virtual_ranks,
        blocks=len(parts.layout.blocks),
        units=parts.state.units,
        unit_bytes=parts.state.shards.unit_bytes,
        copies=spec.copies,
        fetch_bytes=_choose_fetch_bytes(parts.state),
        digest_every=spec.digest_every,
        began_at=settings.began_at.step,
        compared=spec.convergence == "exact",
        spot_checks=spec.spot_checks if spec.processes == 1 else "off",
        together=together,
        checkpoints=settings.run_dir is not None and spec.checkpoints is not None,
        rank_sites=plan.rank_sites,
        absent=plan.absent if spec.replayed is None else "wait",
        replayed=spec.replayed or (),
    )


def _choose_fetch_bytes(state: TrainingState) -> int:
    """Return the most optimizer state that a joiner fetches in one round."""
    # An optimizer that couples parameters runs when all state is there. A run of rounds fetches all at once
    # too: until it is there, each round would send new values in full.
    at_once = state.inner is not None or not updates_elementwise(state.optimizer)
    return EVERYTHING_BYTES if at_once else PORTION_BYTES


def build_pinned(
    settings: WorkerSettings,
    parts: TrainingParts,
    plan: BatchPlan,
    data: str,
    batches: BatchSource,
    together: int,
) -> Pinned:
    """Return the facts that must be equal on all workers.

    Args:
        data: the digest of the dataset.
        batches: with the digests of the order and of the data of sites.
    """
    spec, optimizer = settings.spec, parts.state.optimizer
    script = Path(spec.script)
    text = script.read_bytes() if script.is_file() else b""
    inner = parts.state.inner
    return Pinned(
        script_digest=hashlib.sha256(text).hexdigest(),
        virtual_ranks=plan.virtual_ranks,
        global_batch=plan.global_batch,
        microbatch=plan.microbatch,
        dataset_length=plan.length,
        dropped=plan.dropped,
        dataset_digest=data,
        order_digest=batches.order_digest,
        site_digests=batches.site_digests,
        steps=plan.steps,
        seed=spec.seed,
        threads=spec.threads,
        convergence=spec.convergence,
        numerics=spec.numerics,
        copies=spec.copies,
        parameters=parts.layout.elements,
        blocks=len(parts.layout.blocks),
        layout_digest=parts.layout.digest(),
        division="" if spec.processes == 1 else parts.state.get_shards().describe(),
        sharing=spec.processes // together,
        optimizer=_describe(optimizer) + ("" if inner is None else _describe_rounds(plan, inner)),
        versions={
            "elastane": elastane.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "device": devices.describe_device(parts.layout.device),
            "digests": SCHEME,
        },
        rank_sites=plan.rank_sites,
        absent=plan.absent,
    )


def _describe_rounds(plan: BatchPlan, inner: InnerOptimizer) -> str:
    wire = "" if inner.wire is None else f", {inner.wire.name} for each {inner.wire.group}"
    state = "" if inner.averaged is None else ", averaged"
    delay = ", a round later" if inner.delayed else ""
    noise = "" if inner.noise is None else f", {inner.noise.describe()}"
    steps = f"{plan.inner_steps} steps of {_describe(inner.optimizer)}"
    return f" over rounds of {steps}{state}{delay}{wire}{noise}"


def _describe(optimizer: Optimizer) -> str:
    defaults = ", ".join(f"{key}={value!r}" for key, value in sorted(optimizer.defaults.items()))
    return f"{type(optimizer).__name__}({defaults})"


def open_run_catalog(settings: WorkerSettings) -> Catalog:
    """Return the catalog of the checkpoints of a run, which has a directory."""
    run_dir = settings.run_dir
    assert run_dir is not None, "a process that trains alone has no checkpoints"
    return open_checkpoints(run_dir, settings.spec.checkpoints)


def open_starting_checkpoint(
    settings: WorkerSettings, state: TrainingState, reporter: Reporter
) -> StartingCheckpoint | None:
    """Return the checkpoint from which this attempt of the run resumes; None: it starts from nothing.

    Raises:
        StorageError: the checkpoint cannot be read.
    """
    resumed = settings.resumed
    if resumed is None or not resumed.checkpoint:
        return None
    name, worker = resumed.checkpoint, settings.worker

    def report_restored(nbytes: int, seconds: float) -> None:
        rate = nbytes / 1e9 / seconds if seconds else 0.0
        line = EventLine(
            time=0.0,
            kind="checkpoint.restored",
            who=f"worker {worker}",
            why=f"{name}: {nbytes / 1e6:.1f} MB in {seconds:.2f} s, {rate:.2f} GB/s",
            step=checkpoint.outcome.step,
            workers=(worker,),
            detail={"name": name, "bytes": nbytes, "seconds": seconds},
        )
        reporter.report_event(f"restored-{worker}-{time.time_ns()}", line)
        if edits := state.replicated.edits:
            if not resumed.adapted:
                refuse_edits(edits)
            edited = "; ".join(map(str, edits))
            reporter.warn("edits", f"the run goes on with edited values: {edited}", step=resumed.step)

    checkpoint = StartingCheckpoint(open_run_catalog(settings), name, state, report_restored)
    return checkpoint


def build_checkpoint_writer(
    settings: WorkerSettings,
    state: TrainingState,
    member: MemberMachine,
    reporter: Reporter,
    post: Callable[[events.Event], None],
    pinned: Pinned,
) -> CheckpointWriter:
    """Return the writer of this worker's part of every checkpoint.

    Args:
        settings: the settings of the worker; the run has checkpoints.
        post: informs the protocol of a finished copy, or of a refusal by the storage.
        pinned: the pinned facts of the run.
    """
    spec, resumed = settings.spec, settings.resumed
    policy = spec.checkpoints
    assert policy is not None, "only a run with checkpoints has a writer"
    run = CheckpointRun(
        name=spec.name, pinned=pinned, virtual_ranks=spec.virtual_ranks, began_at=settings.began_at
    )

    def describe() -> PlainState:
        plain = {
            # The tensors of it are separate entries of the file: see `state_slices.list_slices`.
            "rest": json.dumps(state.replicated.describe()[0]),
            "on_host": find_host_keys(state),
            "cursors": member.outcome.cursors if member.outcome is not None else {},
            # A run that resumes from the last checkpoint of a finished script only writes the model.
            "ending": reporter.ending,
            SAVED_BY: msgspec.to_builtins(run, str_keys=True),
        }
        return PlainState(plain, dict(state.replicated.metrics))

    return CheckpointWriter(
        settings.worker,
        state,
        open_run_catalog(settings),
        resumed=number_attempt(resumed),
        retention=Retention(
            last=policy.keep_last,
            every=policy.keep_every,
            best=policy.keep_best,
            origin=resumed.checkpoint if resumed is not None else "",
        ),
        describe=describe,
        report_copied=lambda request: post(events.SnapshotTaken(request)),
        report_publication=reporter.send,
        report_change=reporter.request_report,
        report_refusal=lambda refused: post(events.StorageRefused(refused)),
        seat=settings.seat,
    )
