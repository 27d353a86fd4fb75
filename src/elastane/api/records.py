"""The records of a run: steps in the ledger, changes in the events."""

from collections.abc import Mapping

import msgspec

from elastane.api.bounds import Count, Difference, Duration, Moment, Position, Steps
from elastane.api.checkpoints import WrittenFile
from elastane.api.exit_codes import ExitCode

OUTCOMES = {
    "run.finished": ExitCode.OK,
    "run.failed": ExitCode.FAILED,
    "run.stopped": ExitCode.STOPPED_BY_USER,
}
"""Kinds of events that end an attempt of a run, each with the exit code of the run."""

SCRIPT = "script"
"""The ``who`` of a ``run.finished`` before the last planned step."""


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """The samples of one step: positions ``start`` to ``stop`` of the shuffled epoch.

    ``checksum`` is the sum modulo 2**64 of a hash of every index really loaded (see
    `elastane.protocol.sampling.hash_sample`), so that `elastane verify` can prove coverage without trusting
    the run's own arithmetic.

    Of a stream, ``shards`` has the positions drawn from each shard, ``start`` to ``stop``; the step's are
    the sums over all shards. ``ended`` says that the epoch ended with this step.
    """

    epoch: Position
    start: Position
    stop: Position
    count: Count
    checksum: str
    shards: dict[int, tuple[Position, Position]] = {}
    ended: bool = False


class Digest(msgspec.Struct, frozen=True):
    """SHA-256 over the blocks of the state after a step: first all, then the first 8 bytes per block."""

    parameters: str
    optimizer: str
    parameter_blocks: tuple[str, ...]
    optimizer_blocks: tuple[str, ...]


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One committed step. Written once, in order, without gaps.

    ``workers`` maps each worker to the virtual ranks it computed in this step, as ``[start, stop)``
    pairs. ``seconds`` holds the time per phase (``deal``, ``compute``, ``reduce``, ``apply``), the
    longest over the workers, and ``step``, from entering a step to having applied it. ``learning_rates``
    are those of the optimizer's groups in this step, one for all groups that have the same. ``skipped``: the
    scaled gradient overflowed, so the optimizer did not run and the scale went down. ``loss`` reads back as
    None when it was not finite, for which JSON has no number; ``loss_hex`` says what it was. ``logged`` has
    what the script gave to ``run.log``, None for what was not finite; ``artifacts`` what it wrote through
    ``run.artifact``, by name.
    """

    step: Steps
    generation: Position
    workers: dict[int, tuple[tuple[Position, Position], ...]]
    samples: Samples
    loss: float | None
    loss_hex: str
    time: Moment
    seconds: dict[str, Duration]
    grad_norm: float | None = None
    learning_rates: tuple[float, ...] = ()
    skipped: bool = False
    digest: Digest | None = None
    logged: Mapping[str, float | None] = {}
    artifacts: Mapping[str, WrittenFile] = {}


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a run.

    ``kind`` is one of ``run.started``, ``worker.started``, ``worker.ready``, ``worker.joined``,
    ``worker.left``, ``worker.died``, ``worker.hung``, ``worker.refused``, ``worker.failed``,
    ``data.awaited``, ``coordinator.started``, ``coordinator.died``, ``resize.requested``,
    ``drain.requested``, ``stop.requested``, ``generation.started``, ``shares.rebalanced``, ``evaluation``,
    ``message``, ``digest``, ``ledger.stalled``, ``checkpoint.saved``, ``checkpoint.failing``,
    ``checkpoint.abandoned``, ``checkpoint.restored``, ``model.failing``, ``warning``, ``run.resumed``,
    ``run.finished``, ``run.failed``, ``run.stopped``.

    A ``generation.started`` event is written once the first step of the generation has committed:
    ``pause_ms`` then maps each healthy worker (in it before and after) to what that step took beyond its
    usual one, ``pause_steps`` to the same in usual steps. ``workers`` are then its members; in a
    ``worker.*`` event, the one it is about. ``key`` is that of the `elastane.api.control.WorkerEvent` it came
    from. A number in ``detail`` reads back as None when it was not finite. ``files`` are, in ``run.finished``
    and ``run.stopped``, those of the finished model as they were written. ``samples``, in ``evaluation``, is
    how many samples were evaluated: ``detail`` has the totals over all of them.
    """

    time: Moment
    kind: str
    who: str = ""
    why: str = ""
    step: Steps | None = None
    generation: Position | None = None
    workers: tuple[int, ...] = ()
    pause_ms: dict[int, Difference] = {}
    pause_steps: dict[int, Difference] = {}
    key: str = ""
    detail: Mapping[str, float | int | str | None] = {}
    files: Mapping[str, WrittenFile] = {}
    samples: int | None = None
