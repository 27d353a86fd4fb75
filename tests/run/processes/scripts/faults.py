"""Faults at exact moments, made inside the worker by replacing functions of Elastane.

The fault ``WORKER:STEP:MOMENT[:SIGNAL]`` sends a signal, SIGKILL by default, to this worker at this moment of
this step. Moments of a worker that joins ignore the step.

The hold ``MOMENT[:STEP]`` stops the first worker that reaches this moment of a checkpoint of this step or a
later one. The worker creates the file ``held`` and waits until the test creates the file ``release``.
"""

import faulthandler
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch

from elastane.run.checkpoints.storage import local
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns import control
from elastane.run.nouns.checkpoints import parse_checkpoint_age
from elastane.run.protocol import actions, events, messages
from elastane.run.worker import work_queue, worker, worker_settings
from elastane.run.worker.checkpoints.copier import StateCopier
from elastane.run.worker.data.batch_sources import BatchSource, MapBatchSource
from elastane.run.worker.evaluation import Evaluation
from elastane.run.worker.gathered_tensors import GatheredTensors
from elastane.run.worker.links import connection, payload_offers
from elastane.run.worker.links.coordinator_link import CoordinatorLink
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.links.nixl_agent import NixlAgent
from elastane.run.worker.reactor import Reactor
from elastane.run.worker.state import gradients
from elastane.run.worker.state.gradient_groups import GroupLimits
from elastane.run.worker.state.leaf_writer import LeafWriter, WaitingLeaf
from elastane.run.worker.state.slot_memory import DeviceSlots, HostSlots
from elastane.run.worker.state.training_state import TrainingState
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.work_queue import Work, WorkQueue

POLL_S = 0.02
Strike = Callable[[], None]
Moment = Callable[[int, Strike], None]


def _run_dir():
    run_dir = worker_settings.get_settings().run_dir
    return None if run_dir is None else run_dir.root


def wait_for(*names: str) -> None:
    """Wait for one of these files in the run directory; without a run directory, do not wait."""
    root = _run_dir()
    while root is not None and not any((root / name).exists() for name in names):
        time.sleep(POLL_S)


def pace(first: int) -> None:
    """Let each step from ``first`` on wait for the file ``gate-STEP`` or ``gates``."""

    def wait(training: Trainer) -> None:
        if training.step + 1 >= first:
            wait_for(f"gate-{training.step + 1}", "gates")

    _around(Trainer, "take_script_changes", before=wait)


def withhold_reports(first: int) -> None:
    """Let the first machine report neither the steps from ``first`` on nor their events."""
    own = worker_settings.get_settings()
    if own.run_dir is None or own.run_dir.node:
        return

    send = CoordinatorLink.send

    def withhold_step(link: CoordinatorLink, report: control.StepReport) -> None:
        if report.line.step >= first:
            link._sent = sys.maxsize

    def withhold_event(link: CoordinatorLink, message: control.FromWorker) -> None:
        if isinstance(message, control.WorkerEvent) and message.event.step >= first:
            link._unconfirmed.append((message.event.step, message))
        else:
            send(link, message)

    _around(CoordinatorLink, "report_step", before=withhold_step)
    CoordinatorLink.send = withhold_event


def fail_import(node: str) -> None:
    own = worker_settings.get_settings()
    if own.run_dir is not None and own.run_dir.node == node:
        raise ImportError(f"a library is missing on {node}")


def wait_if_worker(number: int, name: str) -> None:
    if worker_settings.get_settings().worker == number:
        wait_for(name)


def delay_loading(number: int) -> None:
    """Let a worker that joins wait for the file ``load`` before it loads the state that peers have sent."""

    def wait(_reactor: Reactor, action: object) -> None:
        if isinstance(action, actions.LoadState):
            wait_for("load")

    if worker_settings.get_settings().worker == number:
        _around(Reactor, "_act", before=wait)


def delay_applying(number: int, step: int) -> None:
    """Let a worker wait for the file ``apply`` before it applies a step."""

    def wait(_state: TrainingState, outcome: messages.RoundOutcome, *_args: Any, **_options: Any) -> None:
        if outcome.step == step:
            wait_for("apply")

    if worker_settings.get_settings().worker == number:
        _around(TrainingState, "apply", before=wait)


def corrupt(number: int, step: int) -> None:
    """Change the optimizer state of a worker after a step."""

    def spoil(state: TrainingState, outcome: messages.RoundOutcome, *_args: Any, **_options: Any) -> None:
        if outcome.step == step:
            for moments in state.shards._optimizer.state.values():
                moments["exp_avg"].add_(1e-6)

    if worker_settings.get_settings().worker == number:
        _around(TrainingState, "apply", after=spoil)


def flip_bits(
    parameter: torch.nn.Parameter, number: str, step: str, times: str = "", *, rounds: bool = False
) -> None:
    """Flip one bit of a gradient in each microbatch of a spot check that a worker computes from ``step`` on.

    Args:
        times: ``once``: not when it computes the same microbatch again.
        rounds: flip one bit of what a whole virtual rank has changed instead.
    """
    if worker_settings.get_settings().worker != int(number):
        return
    loaded: list[tuple[int, int]] = [(0, 0)]
    checks = False
    done: set[tuple[int, int]] = set()

    def note(_source: MapBatchSource, at: int, rank: int) -> None:
        loaded.append((at, rank))

    def note_check(now: gradients.Gradients, *_args: Any, **_options: Any) -> None:
        nonlocal checks
        checks = now._fingerprints is not None

    def flip(gradient: torch.Tensor) -> torch.Tensor:
        place = loaded[-1]
        if not checks or place[0] < int(step) or (times == "once" and place in done):
            return gradient
        done.add(place)
        wrong = gradient.clone()
        wrong.view(torch.int32).view(-1)[0] ^= 1 << 20
        return wrong

    _around(MapBatchSource, "load", before=note)
    _around(gradients.Gradients, "begin_leaf", after=note_check)
    _around(gradients.Gradients, "begin_check", after=note_check)
    if not rounds:
        parameter.register_hook(flip)
        return
    take = gradients.Gradients.take_differences

    def take_flipped(now: gradients.Gradients, differences: Iterable[Mapping[int, torch.Tensor]]) -> None:
        own = next(place for place, one in enumerate(now.layout.parameters) if one is parameter)
        take(now, ({at: flip(one) if at == own else one for at, one in part.items()} for part in differences))

    gradients.Gradients.take_differences = take_flipped


def corrupt_values(number: int, step: int) -> None:
    """Change a value of a block in each step from ``step`` on, in a worker that does not own the block."""

    def spoil(training: Trainer, at: int) -> None:
        member = training.reactor.member
        others = [block for block in range(member.layout.blocks) if not member.keeps_state_of(block)]
        if at >= step:
            training.layout.view_block(training.state.arena.tensors, others[0])[0] += 1

    if worker_settings.get_settings().worker == number:
        _around(Trainer, "open_to_script", before=spoil)


def get_worker() -> int:
    return worker_settings.get_settings().worker


def get_slowdown() -> float:
    """Return the factor of a step's time: worker 1 is ten times slower; with a file ``hurry`` none waits."""
    root = _run_dir()
    if root is not None and (root / "hurry").exists():
        return 0.0
    return 10.0 if worker_settings.get_settings().worker == 1 else 1.0


def record_work() -> None:
    """Write each virtual rank that begins and each step that is applied to files, for tests and peers."""
    root, number = _run_dir(), worker_settings.get_settings().worker
    if root is None:
        return
    faulthandler.register(signal.SIGUSR1)
    notes = os.open(root / f"assigned-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record_rank(_source: BatchSource, step: int, rank: int) -> None:
        os.write(notes, f"{step} {rank}\n".encode())

    _around(BatchSource, "load", before=record_rank)

    def record_step(
        _state: TrainingState, outcome: messages.RoundOutcome, *_args: Any, **_options: Any
    ) -> None:
        (root / f"applied-{outcome.step}-{number}").touch()

    _around(TrainingState, "apply", after=record_step)


def note_opening(site: str) -> None:
    """Note that this worker opens the data of a site."""
    root = _run_dir()
    if root is not None:
        (root / f"opened-{site}-{worker_settings.get_settings().worker}").touch()


def record_sent_sums() -> None:
    """Write the bytes of sums that this worker sends to each peer to a file: round, peer, bytes."""
    root, number = _run_dir(), worker_settings.get_settings().worker
    if root is None:
        return
    notes = os.open(root / f"sent-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(_mesh: Mesh, peer: int, message: Any, payload: Any = None) -> None:
        if isinstance(message, messages.PartialSumsReady | messages.SumsReady):
            size = sum(memoryview(piece).nbytes for piece in payload or ())
            os.write(notes, f"{message.round} {peer} {size}\n".encode())

    _around(Mesh, "send", before=record)


def record_read_sums() -> None:
    """Write the bytes of sums that this worker reads from its peers to a file: round, bytes."""
    root, number = _run_dir(), worker_settings.get_settings().worker
    if root is None:
        return
    notes = os.open(root / f"read-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    issue, counted = Reactor._act, 0

    def record(reactor: Reactor, action: actions.Action) -> None:
        nonlocal counted
        before = reactor.queue.bytes_read
        issue(reactor, action)
        if isinstance(action, actions.Reduce | actions.MergeSums | actions.TakeSums):
            counted += reactor.queue.bytes_read - before
        elif isinstance(action, actions.CommitRound):
            os.write(notes, f"{action.outcome.round} {counted}\n".encode())
            counted = 0

    Reactor._act = record


def renew_keys(after_bytes: int) -> None:
    """Renew the keys of encrypted connections after so many bytes, and note each peer in a file."""
    root, number = _run_dir(), worker_settings.get_settings().worker
    connection.RENEW_BYTES = after_bytes
    if root is None:
        return
    notes = os.open(root / f"renewed-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(to: connection.PeerConnection, *adopted: Any) -> None:
        os.write(notes, f"{to.peer}\n".encode())

    _around(connection.PeerConnection, "adopt", before=record)


def arm(text: str) -> None:
    number, step, moment, *name = text.split(":")
    if worker_settings.get_settings().worker == int(number):
        signal_ = signal.Signals[f"SIG{name[0] if name else 'KILL'}"]
        MOMENTS[moment](int(step), lambda: _strike(signal_))


def _strike(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    while True:
        # A stop reaches this thread a little later than the call.
        time.sleep(POLL_S)


def set_apart() -> None:
    """Let workers read each other's memory only with NIXL, and note each peer that is read in a file."""
    root, number = _run_dir(), worker_settings.get_settings().worker
    payload_offers.OFFERED_BYTES = 1
    Mesh._can_read = lambda *_: False
    if root is None:
        return
    notes = os.open(root / f"remote-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(_agent: NixlAgent, peer: str, *_: Any) -> None:
        os.write(notes, f"{peer}\n".encode())

    _around(NixlAgent, "begin_read", before=record)


def _around(owner: type, name: str, *, before: Callable | None = None, after: Callable | None = None) -> None:
    inner = getattr(owner, name)

    @wraps(inner)
    def outer(self: Any, *args: Any, **options: Any) -> Any:
        if before is not None:
            before(self, *args, **options)
        result = inner(self, *args, **options)
        if after is not None:
            after(self, *args, **options)
        return result

    setattr(owner, name, outer)


def _in_step(step: int, strike: Strike) -> Callable[[int], None]:
    """Return a function that strikes at its first call in the step."""

    def at(now: int) -> None:
        if now == step:
            strike()

    return at


def data_late(step: int, _strike: Strike) -> None:
    """Let the samples of a step wait for the file ``data``."""
    at = _in_step(step, lambda: wait_for("data"))
    _around(MapBatchSource, "_load_batch", before=lambda _source, now, _rank: at(now))


def before_compute(step: int, strike: Strike) -> None:
    at = _in_step(step, strike)
    _around(BatchSource, "load", before=lambda _source, now, _rank: at(now))


def in_inner_step(step: int, strike: Strike) -> None:
    """Strike in the last of three inner steps of the worker's second virtual rank."""
    loaded: list[int] = []

    def load(_source: BatchSource, now: int, _part: int) -> None:
        loaded.append(now)
        if loaded.count(step) == 6:
            strike()

    _around(BatchSource, "load", before=load)


def in_backward(step: int, strike: Strike) -> None:
    """Strike in the second virtual rank of the step, when some gradients are written and others are not."""
    loaded: list[int] = []
    added: list[int] = []
    # The rehearsals of a worker that starts with the run belong to step 1.
    second = 5 if step == 1 else 2

    def load(_source: BatchSource, now: int, _rank: int) -> None:
        loaded.append(now)
        added.clear()

    def add(_leaf: object, added_now: Mapping[int, object]) -> None:
        added.extend(added_now)
        if loaded.count(step) == second and len(added) >= 2:
            strike()

    # Otherwise all gradients of a small model would be added together.
    for memory in (HostSlots, DeviceSlots):
        memory.early_groups = memory.groups = GroupLimits(most=2)
    _around(BatchSource, "load", before=load)
    for kind in (LeafWriter, WaitingLeaf):
        _around(kind, "add", after=add)


def _at_message(kind: type, *, sent: int | None, applied: int = 0) -> Moment:
    """Return the moment of a message of this kind.

    Args:
        kind: the type of the message.
        sent: strike after this number of messages; None: strike in place of the first one.
        applied: before that, wait until this number of other workers have applied the step.
    """

    def moment(step: int, strike: Strike) -> None:
        counted: list[int] = []

        def due(message: object) -> bool:
            # Before the first evaluation, rounds are steps.
            return isinstance(message, kind) and getattr(message, "round", step) == step

        def before(_reactor: Reactor, _peer: int, message: object, _payload: object) -> None:
            if sent is None and due(message):
                _wait_for_others(step, applied)
                strike()

        def after(_reactor: Reactor, peer: int, message: object, _payload: object) -> None:
            if due(message):
                counted.append(peer)
                if len(counted) == sent:
                    _wait_for_others(step, applied)
                    strike()

        _around(Reactor, "_send", before=before, after=after)

    return moment


def _wait_for_others(step: int, count: int) -> None:
    root, own = _run_dir(), f"applied-{step}-{worker_settings.get_settings().worker}"
    while root is not None and len({path.name for path in root.glob(f"applied-{step}-*")} - {own}) < count:
        time.sleep(POLL_S)


def _at_action(kind: type, *, done: bool) -> Moment:
    """Return the moment before an action of this kind, or after it."""

    def moment(step: int, strike: Strike) -> None:
        def look(reactor: Reactor, action: object) -> None:
            if isinstance(action, kind) and (
                kind in (actions.SendState, actions.LoadState) or reactor.member.step + 1 == step
            ):
                strike()

        _around(Reactor, "_act", before=None if done else look, after=look if done else None)

    return moment


def before_apply(step: int, strike: Strike) -> None:
    """Strike when all have committed the step and two others have applied it."""

    def at(_state: TrainingState, outcome: messages.RoundOutcome, *_args: Any, **_options: Any) -> None:
        if outcome.step == step:
            _wait_for_others(step, 2)
            strike()

    _around(TrainingState, "apply", before=at)


class HangingQueue(WorkQueue):
    """The queue of a device that does nothing any more."""

    def issue(self, work: Work) -> None:
        self.begin(work)


def device_hangs(step: int, _strike: Strike) -> None:
    """Let the device of this worker hang from its first sum in a step on."""
    work_queue.STUCK_S = 0.2

    def look(reactor: Reactor, action: object) -> None:
        if isinstance(action, actions.Reduce) and reactor.member.step + 1 == step:
            reactor.queue = HangingQueue(reactor.post)

    _around(Reactor, "_act", before=look)


def lose_gathered_tensors() -> None:
    """Remove the tensors of an evaluation before a worker reads those of the others."""

    def remove(tensors: GatheredTensors, round_: int, *_args: object) -> None:
        shutil.rmtree(tensors._folders.use(round_), ignore_errors=True)

    _around(GatheredTensors, "collect", before=remove)


def in_evaluation(_step: int, strike: Strike) -> None:
    """Strike after the first batch, before its result is reported."""
    _around(Evaluation, "add", after=lambda _evaluation, **_values: strike())


def _at_vote(kind: events.RoundKind, *, sent: int | None) -> Moment:
    """Return the moment of a vote in the first round of this kind; ``sent`` as in `_at_message`."""

    def moment(_step: int, strike: Strike) -> None:
        entered: list[events.RoundKind] = []
        counted: list[int] = []

        def post(_reactor: Reactor, event: object) -> None:
            if isinstance(event, events.RoundEntered):
                entered.append(event.kind)

        def due(message: object) -> bool:
            return isinstance(message, messages.Vote) and entered[-1] == kind

        def before(_reactor: Reactor, _peer: int, message: object, _payload: object) -> None:
            if sent is None and due(message):
                strike()

        def after(_reactor: Reactor, peer: int, message: object, _payload: object) -> None:
            if due(message):
                counted.append(peer)
                if len(counted) == sent:
                    strike()

        _around(Reactor, "post_result", before=post)
        _around(Reactor, "_send", before=before, after=after)

    return moment


def before_writing_model(_step: int, strike: Strike) -> None:
    inner = worker.write_finished

    def outer(*args: Any) -> None:
        strike()
        inner(*args)

    worker.write_finished = outer


def between_moving_models_files(_step: int, strike: Strike) -> None:
    inner, moves = Path.replace, []

    def outer(path: Path, target: Path) -> Path:
        moves.append(target)
        if len(moves) == 2:
            strike()
        return inner(path, target)

    Path.replace = outer


def _in_thread(name: str | None) -> Moment:
    """Return a moment at which a thread of the worker dies, not the worker."""

    def moment(step: int, _strike: Strike) -> None:
        def die() -> None:
            raise ZeroDivisionError("in a thread")

        at = _in_step(step, lambda: threading.Thread(target=die, name=name).start())
        _around(BatchSource, "load", before=lambda _source, now, _rank: at(now))

    return moment


MOMENTS: dict[str, Moment] = {
    "device-hangs": device_hangs,
    "before-compute": before_compute,
    "in-backward": in_backward,
    "in-inner-step": in_inner_step,
    "before-first-ready": _at_message(messages.PartialSumsReady, sent=None),
    "after-first-ready": _at_message(messages.PartialSumsReady, sent=1),
    "after-first-sum": _at_action(actions.Reduce, done=True),
    "after-first-summed": _at_message(messages.SumsReady, sent=1),
    "before-vote": _at_message(messages.Vote, sent=None),
    "after-one-vote": _at_message(messages.Vote, sent=1),
    "after-one-vote-that-counted": _at_message(messages.Vote, sent=1, applied=1),
    "after-both-votes": _at_message(messages.Vote, sent=2, applied=2),
    "data-late": data_late,
    "a-thread-of-ours-dies": _in_thread("elastane-reports"),
    "a-thread-of-the-script-dies": _in_thread(None),
    "before-apply": before_apply,
    "in-evaluation": in_evaluation,
    "before-vote-on-evaluation": _at_vote("evaluate", sent=None),
    "after-one-vote-on-evaluation": _at_vote("evaluate", sent=1),
    "before-vote-on-the-end": _at_vote("settle", sent=None),
    "after-one-vote-on-the-end": _at_vote("settle", sent=1),
    "before-writing-model": before_writing_model,
    "between-moving-models-files": between_moving_models_files,
    "before-publish": _at_message(messages.Published, sent=None, applied=2),
    "after-one-published": _at_message(messages.Published, sent=1, applied=2),
    "donor-before-serving": _at_action(actions.SendState, done=False),
    "joiner-after-status": _at_message(messages.Status, sent=1),
    "joiner-after-fetch": _at_message(messages.Fetch, sent=1),
    "joiner-before-loading": _at_action(actions.LoadState, done=False),
}


# -- holds ---------------------------------------------------------------------------------------------------


def hold(text: str) -> None:
    """Wait at a moment in the first attempt that reaches it, and not in later attempts."""
    moment, _, step = text.partition(":")
    root = _run_dir()
    if root is not None and not (root / "held").exists():
        HOLDS[moment](int(step or 0))


def _wait_for_release() -> None:
    root = _run_dir()
    assert root is not None, "a hold needs a run directory"
    (root / "held").touch()
    wait_for("release")


def _hold_while_copying(step: int) -> None:
    def copying(_copier: StateCopier, job: Any) -> None:
        if job.snapshot.blocks and job.snapshot.step >= step:
            _wait_for_release()

    _around(StateCopier, "_copy", before=copying)


def _hold_at_file(pattern: str, where: str, step: int) -> None:
    """Wait ``before``, ``within`` or ``after`` the writing of a file of a checkpoint."""
    writing = threading.local()

    def is_it(name: str) -> bool:
        directory, _, file = name.partition("/")
        age = parse_checkpoint_age(directory)
        return age is not None and age[1] >= step and fnmatch(file, pattern)

    def before(_place: LocalStorage, name: str, _buffers: object) -> None:
        writing.it = is_it(name)
        if where == "before" and writing.it:
            _wait_for_release()

    def after(_place: LocalStorage, _name: str, _buffers: object) -> None:
        if where == "after" and writing.it:
            _wait_for_release()

    inner = local._SyncingFile.write

    def within(file: Any, batch: list[memoryview]) -> None:
        if where == "within" and writing.it:
            half = sum(map(len, batch)) // 2
            inner(file, [memoryview(b"".join(batch))[:half]])
            _wait_for_release()
            batch = local._skip_bytes(batch, half)
        inner(file, batch)

    local._SyncingFile.write = within
    _around(LocalStorage, "write", before=before, after=after)


def _hold_while_deleting(step: int) -> None:
    """Wait when the marker of an older checkpoint is deleted and its other files are not."""

    def deleting(_place: LocalStorage, directory: str) -> None:
        age = parse_checkpoint_age(directory)
        if age is not None and age[1] >= step:
            _wait_for_release()

    _around(LocalStorage, "delete_directory", before=deleting)


def _hold_before_model(_step: int) -> None:
    inner = worker.write_finished

    def outer(*args: Any) -> None:
        _wait_for_release()
        inner(*args)

    worker.write_finished = outer


HOLDS: dict[str, Callable[[int], None]] = {
    "copying": _hold_while_copying,
    "within-part": partial(_hold_at_file, "part-*.distcp", "within"),
    "before-record": partial(_hold_at_file, "part-*.json", "before"),
    "before-metadata": partial(_hold_at_file, ".metadata", "before"),
    "within-manifest": partial(_hold_at_file, "manifest.json", "within"),
    "before-marker": partial(_hold_at_file, "COMPLETE", "before"),
    "within-marker": partial(_hold_at_file, "COMPLETE", "within"),
    "after-marker": partial(_hold_at_file, "COMPLETE", "after"),
    "deleting": _hold_while_deleting,
    "before-model": _hold_before_model,
}
