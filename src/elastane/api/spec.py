"""What a user asks for: one run, its limits and the choices pinned for its whole life."""

from typing import Literal

import msgspec

SCHEMA = 1


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One elastic run, as ``elastane run`` was asked for it; the ``spec`` of ``run.json``.

    Args:
        name: what other terminals call the run.
        script: path of the training script.
        args: its arguments.
        min_workers: nobody may ask for fewer; deaths and drains can bring the run below it.
        max_workers: never more workers than this.
        start: workers to begin with.
        virtual_ranks: V, the fixed pieces of every global batch; None: global batch over microbatch.
        copies: copies of the optimizer state; None: every worker keeps everything.
        convergence: ``exact`` sums gradients in one fixed tree; ``fast`` in whatever order is cheapest.
        seed: of the sample order, dropout and (through ``elastane.join``) the initial weights.
        threads: intra-op threads of each worker; pinned, because gradient bits depend on it.
        digest_every: steps between two digests of the state in the ledger.
        transport: ``shared`` hands gradients over in shared memory, ``tcp`` over the workers' connections.
    """

    name: str
    script: str
    args: tuple[str, ...] = ()
    min_workers: int = 1
    max_workers: int = 8
    start: int = 1
    virtual_ranks: int | None = None
    copies: int | None = None
    convergence: Literal["exact", "fast"] = "exact"
    seed: int = 0
    threads: int = 1
    digest_every: int = 50
    transport: Literal["shared", "tcp"] = "shared"


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
    virtual_ranks: int
    global_batch: int
    microbatch: int
    dataset_length: int
    steps: int
    seed: int
    threads: int
    convergence: str
    copies: int | None
    parameters: int
    blocks: int
    layout_digest: str
    optimizer: str
    versions: dict[str, str]
    dataset_digest: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: the request, and, once the first worker has loaded the script, what is pinned."""

    schema: int = SCHEMA
    spec: RunSpec
    pinned: Pinned | None = None
    created: str
