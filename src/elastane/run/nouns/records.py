"""The records of a run: steps in the ledger, changes in the events."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from elastane.common.bounds import Count, Difference, Duration, Moment, Position, Steps
from elastane.common.exit_codes import ExitCode
from elastane.run.nouns.checkpoints import WrittenFile

RunEnd: TypeAlias = Literal["run.finished", "run.failed", "run.stopped"]
"""The kinds of events that end an attempt of a run."""

OUTCOMES: Mapping[str, ExitCode] = {
    "run.finished": ExitCode.OK,
    "run.failed": ExitCode.FAILED,
    "run.stopped": ExitCode.STOPPED_BY_USER,
}
"""Each kind of event that ends an attempt, with the exit code of the run."""

SCRIPT = "script"
"""The ``who`` of a ``run.finished`` event when the script ends the run before the last planned step."""

FALLBACK = "transport.fallback"
"""The kind of the event about a worker that sends payloads which others should read in its memory."""

TRAFFIC = "traffic.measured"
"""The kind of the events with the bytes that a machine exchanges with others in a usual step."""

PRINTED = "printed"
"""The kind of the event for a line that the script prints between two steps."""

AGENT = "agent"
"""The ``who`` of a run's last event if its coordinator was killed before it could write that event."""

ENDS_WITH_MODEL = ("run.finished", "run.stopped")
"""Kinds of events that are written after the finished model."""


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """The samples of one step: positions ``start`` to ``stop`` of the shuffled epoch.

    ``checksum`` is the sum modulo 2**64 of a hash of every index that was actually loaded (see
    `elastane.run.protocol.sampling.hash_sample`). With it `elastane verify` proves coverage without trusting
    the run's own arithmetic.

    For a stream, ``shards`` maps each shard to the positions drawn from it, ``start`` to ``stop``; the step's
    ``start`` and ``stop`` are the sums over all shards. ``ended`` is True if the epoch ended with this step.
    ``content`` is the sum modulo 2**64 of a hash of the content of every sample; only streams have it.
    """

    epoch: Position
    start: Position
    stop: Position
    count: Count
    checksum: str
    shards: dict[int, tuple[Position, Position]] = {}
    ended: bool = False
    content: str = ""


class Digest(msgspec.Struct, frozen=True):
    """SHA-256 of the state after a step: over all blocks, and for each block the first 8 bytes of its own."""

    parameters: str
    optimizer: str
    parameter_blocks: tuple[str, ...]
    optimizer_blocks: tuple[str, ...]


Shares: TypeAlias = dict[int, tuple[tuple[Position, Position], ...]]
"""The virtual ranks that each worker computes, as ``[start, stop)`` pairs."""


SPOT_CHECK_FAILED = "spot_check.failed"
"""The kind of the event about a worker that computed a virtual rank wrongly."""


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One committed step. Written once, in order, without gaps.

    ``workers`` maps each worker to the virtual ranks it computed in this step, as ``[start, stop)`` pairs.
    ``seconds`` holds the longest time of any worker for each phase (``deal``, ``compute``, ``reduce``,
    ``apply``) and for the whole ``step``, from entering it to having applied it. ``learning_rates`` are those
    of the optimizer's groups in this step, one value if all groups have the same. ``skipped`` is True if the
    scaled gradient overflowed: the optimizer did not run, and the scale was lowered. ``loss`` reads back as
    None if it was not finite, because JSON has no such number; ``loss_hex`` holds the exact value. ``logged``
    has the values that the script passed to ``run.log``, None for those that were not finite; ``artifacts``
    has the files that it wrote through ``run.artifact``, by name. ``agreed`` is the number of its virtual
    ranks that another worker computed once more, in a spot check, with the same bits. ``absent`` are the
    sites that the round left out: ``workers`` and ``samples`` lack their virtual ranks.
    """

    step: Steps
    generation: Position
    workers: Shares
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
    agreed: int = 0
    absent: tuple[str, ...] = ()


class AbsentSites(msgspec.Struct, frozen=True):
    """Sites that consecutive rounds leave out: from the step ``first`` to ``last``, both included."""

    first: Steps
    last: Steps
    sites: tuple[str, ...]


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a run.

    ``kind`` is one of ``run.started``, ``worker.started``, ``worker.ready``, ``worker.joined``,
    ``worker.left``, ``worker.died``, ``worker.hung``, ``worker.refused``, ``worker.failed``,
    ``data.awaited``, ``coordinator.started``, ``coordinator.died``, ``resize.requested``,
    ``drain.requested``, ``stop.requested``, ``stop.announced`` (to the processes of an unmodified script),
    ``generation.started``, ``generation.unheard``, ``claim.waiting``, ``shares.rebalanced``,
    ``evaluation``, ``message``, ``printed``, ``digest``, ``spot_check.failed``,
    ``ledger.stalled``, ``checkpoint.saved``, ``checkpoint.failing``, ``checkpoint.abandoned``,
    ``checkpoint.restored``, ``traffic.measured``, ``transport.fallback``, ``model.failing``, ``warning``,
    ``trackers.requested``, ``privacy.planned``, ``run.resumed``, ``run.finished``, ``run.failed``,
    ``run.stopped``.

    A ``generation.started`` event is written once the first step of the generation has committed:
    ``pause_ms`` then maps each healthy worker (a member before and after) to the milliseconds that this step
    took beyond a usual one, and ``pause_steps`` to the same time in usual steps. ``workers`` are then the
    members; in a ``worker.*`` event, the one worker that it is about. ``key`` is that of the
    `elastane.run.nouns.control.WorkerEvent` that reported the event. A number in ``detail`` reads back as
    None if it was not finite. ``files``, in ``run.finished`` and ``run.stopped``, are the files of the
    finished model as they were written. ``samples``, in ``evaluation``, is the number of samples evaluated;
    ``detail`` has the totals over all of them.
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
