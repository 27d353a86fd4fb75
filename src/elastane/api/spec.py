"""What a user asks for: one run, its limits and the choices pinned for all its attempts."""

from typing import Literal

import msgspec

from elastane.api.bounds import Count, Position, Steps, VirtualRanks
from elastane.api.rundir import RunDir

SCHEMA = 1
MAX_SHARD_BYTES = 5_000_000_000
"""As ``transformers`` cut models for years: a file that every store and file system still takes."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a run keeps its state, where, and how long.

    Args:
        url: root of the run's checkpoints, a path or any URL that fsspec knows; empty: in the run directory.
        every_s: seconds between two; None: not by time.
        every_steps: steps between two; None: not by steps.
        auto: the interval follows from what a checkpoint costs and how often the run is interrupted.
        each_epoch: one at the end of each epoch.
        each_evaluation: one after each evaluation.
        keep_last: number of the newest that are kept.
        keep_every: also keep those of every this many steps.
        keep_best: the best by a metric stays too: ``("eval_loss", "min")``.
    """

    url: str = ""
    every_s: float | None = None
    every_steps: int | None = None
    auto: bool = False
    each_epoch: bool = False
    each_evaluation: bool = False
    keep_last: int = 2
    keep_every: int | None = None
    keep_best: tuple[str, Literal["min", "max"]] | None = None

    def root(self, run_dir: RunDir) -> str:
        """Path or URL under which the checkpoints of a run in this directory lie."""
        return self.url or str(run_dir.checkpoints)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One elastic run, as ``elastane run`` was asked for it; the ``spec`` of ``run.json``.

    Args:
        name: what other terminals call the run.
        script: path of the training script; of a module, of its file.
        module: what ``python -m`` would be told; empty: it is a script.
        args: its arguments.
        min_workers: the fewest that may be requested; deaths and drains can bring the run below it.
        max_workers: never more workers than this.
        start: workers to begin with.
        self_sizing: a controller decides on the number of workers, until a user sets it.
        virtual_ranks: V, the fixed pieces of every global batch; None: global batch over microbatch.
        copies: copies of the optimizer state; None: every worker keeps everything.
        convergence: ``exact`` sums gradients in one fixed tree; ``fast`` in whatever order is cheapest.
        seed: of the sample order, dropout and (through ``elastane.join``) the initial weights.
        threads: intra-op threads of each worker; pinned, because gradient bits depend on it.
        digest_every: steps between two digests of the state in the ledger.
        checkpoints: when the state is kept; None: never.
        transport: ``shared`` hands gradients over in shared memory, ``tcp`` over the workers' connections.
        max_shard_bytes: a model with more bytes of weights is written in shards of at most this many.
        save_optimizer: write the optimizer's state beside the model; only if every worker keeps all of it.
        debug: the one worker has the terminal of `elastane run`; it is never hung, and not replaced.
    """

    name: str
    script: str
    module: str = ""
    args: tuple[str, ...] = ()
    min_workers: int = 1
    max_workers: int = 8
    start: int = 1
    self_sizing: bool = False
    virtual_ranks: int | None = None
    copies: int | None = None
    convergence: Literal["exact", "fast"] = "exact"
    seed: int = 0
    threads: int = 1
    digest_every: int = 50
    checkpoints: CheckpointPolicy | None = None
    transport: Literal["shared", "tcp"] = "shared"
    max_shard_bytes: int = MAX_SHARD_BYTES
    save_optimizer: bool = False
    debug: bool = False

    @property
    def program(self) -> tuple[str, ...]:
        """What to write after ``python``, or after the options of ``elastane run``."""
        return (*(("-m", self.module) if self.module else (self.script,)), *self.args)


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """What the script turned out to be; equal on every worker, or the worker is refused.

    Args:
        script_digest: SHA-256 of the script's text.
        virtual_ranks: V.
        global_batch: samples per step.
        microbatch: samples per virtual rank.
        dataset_length: samples per epoch; 0: a stream.
        steps: steps the run lasts; 0: until its stream has ended as often as was asked for.
        seed: as in `RunSpec`.
        threads: as in `RunSpec`.
        convergence: as in `RunSpec`.
        copies: as in `RunSpec`.
        parameters: number of trained elements.
        blocks: number of blocks of the flat state.
        layout_digest: SHA-256 over names, shapes, dtypes and block borders.
        optimizer: class and hyperparameters at the start, readable.
        versions: of elastane, torch, python and the device, readable.
        dataset_digest: SHA-256 over a few samples, or over what the dataset says identifies it.
    """

    script_digest: str
    virtual_ranks: VirtualRanks
    global_batch: Count
    microbatch: Count
    dataset_length: Position
    steps: Steps
    seed: int
    threads: int
    convergence: str
    copies: int | None
    parameters: Position
    blocks: Position
    layout_digest: str
    optimizer: str
    versions: dict[str, str]
    dataset_digest: str = ""


class Resumed(msgspec.Struct, frozen=True):
    """What the present attempt of a run began with.

    Args:
        checkpoint: its name; empty: none, everything is done again.
        step: of the checkpoint.
        times: how often the run has been resumed.
        first_worker: number of the first worker of this attempt; none is used twice.
        first_term: of its first coordinator, likewise.
    """

    checkpoint: str
    step: Steps
    times: Count
    first_worker: Position
    first_term: Position


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: the request, and, once the first worker has loaded the script, what is pinned.

    Args:
        schema: of this file.
        spec: what was asked for.
        pinned: None before the first worker has loaded the script.
        created: UTC.
        resumed: what the present attempt began with; None in the first.
        typed: the options of ``elastane run`` that the user has typed; None: the run was asked for in another
            way.
    """

    schema: int = SCHEMA
    spec: RunSpec
    pinned: Pinned | None = None
    created: str
    resumed: Resumed | None = None
    typed: tuple[str, ...] | None = None
