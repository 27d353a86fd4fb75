"""The description of a run: the request, its limits and the choices pinned for all its attempts."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

from elastane.common.bounds import Count, Position, Steps, VirtualRanks
from elastane.run.nouns.hosts import RunHost
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.records import AbsentSites
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.silence_limits import SILENCE_S, SilenceLimit, SilenceLimits
from elastane.run.nouns.trackers import Tracker

SCHEMA = 1
MAX_SHARD_BYTES = 5_000_000_000
"""The default of ``transformers`` for years: every store and file system accepts files of this size."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When and where a run saves checkpoints, and which it keeps.

    Args:
        url: root of the run's checkpoints, a path or any URL that fsspec knows; empty: in the run directory.
        every_s: seconds between two; None: not by time.
        every_steps: steps between two; None: not by steps.
        auto: the interval follows from the cost of a checkpoint and from how often the run is interrupted.
        each_epoch: save one at the end of each epoch.
        each_evaluation: save one after each evaluation.
        keep_last: number of the newest to keep.
        keep_every: also keep those of every this many steps.
        keep_best: also keep the best by a metric, such as ``("eval_loss", "min")``.
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

    def get_root(self, run_dir: RunDir) -> str:
        """Return the path or URL that contains the checkpoints of a run in this directory."""
        return self.url or str(run_dir.checkpoints)


class TorchrunContract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run starts, stops and restarts a script that keeps the contract of torchrun.

    Args:
        processes: processes of each worker, as ``--nproc-per-node``.
        grace_s: seconds between the announcement of a stop (SIGTERM) and its enforcement (SIGKILL).
        max_restarts: restarts after failures of the script itself. A resize, and a death from outside, do not
            count.
        stall_s: seconds without any output of any process after which the script has failed; None: never.
        environment: further variables of each process, for example those of Accelerate.
    """

    processes: int = 1
    grace_s: float = 30.0
    max_restarts: int = 0
    stall_s: float | None = None
    environment: dict[str, str] = {}


NO_LIMIT = 1 << 16
"""``max_workers`` of a run on several machines that grows with them."""


SpotChecks: TypeAlias = Literal["auto", "off", "every"]
"""When another worker computes a virtual rank once more; ``auto``: in the first steps of workers that have
joined, and afterwards so rarely that it costs at most 0.5 % of the time; ``every``: in each step."""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The request for one elastic run; the ``spec`` of ``run.json``.

    Args:
        name: by which other commands find the run.
        script: path of the training script, or of the module's file.
        module: name as ``python -m`` takes it; empty: the program is a script.
        args: arguments of the script or module.
        min_workers: the fewest that may be requested; deaths and drains can leave the run with fewer.
        max_workers: never more workers than this; `NO_LIMIT`: as many as a step has virtual ranks.
        sizes: the only numbers of workers that may be requested, ascending; empty: all within the limits.
        start: number of workers at the start.
        self_sizing: a controller decides on the number of workers, until a user sets it.
        host_discovery: a command that prints the slots of each host, which then decide; empty: there is none.
        virtual_ranks: V, the number of pieces of every global batch; None: global batch divided by
            microbatch.
        copies: copies of the optimizer state; None: every worker keeps everything.
        convergence: ``exact`` sums gradients in one fixed tree; ``fast`` sums them in the cheapest order.
        numerics: ``native`` computes with all instructions of the CPU; ``portable`` only with those that all
            CPUs of the architecture have.
        seed: seed of the sample order, dropout and (through ``elastane.join``) the initial weights.
        threads: intra-op threads of each worker; pinned, because gradient bits depend on it.
        digest_every: steps between two digests of the state in the ledger.
        spot_checks: how often another worker computes a virtual rank once more, to compare the bits.
        checkpoints: when to save checkpoints; None: never.
        begins_from: URL or directory of checkpoints, perhaps with ``@STEP``, with one of which a job begins;
            empty: with nothing. ``elastane run --from`` reads its own before the run exists.
        listen: the address of the first machine of a run on several ones; empty: only this one takes part.
        advertised: the address at which the others reach the first machine; empty: ``listen``.
        ports: the first and the last TCP port of the first machine; None: any.
        code: SHA-256 of the code that the run shipped to its machines; empty: they have it already.
        directory: the working directory of the workers on every machine; empty: that of `elastane run`.
        hosts: the machines that start with the run; empty: only this one does.
        ssh: the words of the command that starts a shell command on another one of them.
        claims: directory or URL for the claim list of a run on several machines; empty: the run directory.
        silence_s: seconds that a machine, or the coordinator, may be silent before the others go on without
            it. No option of a command sets it.
        end_s: seconds that the process of a worker may take to end after its script, for its threads and exit
            handlers; then it is killed. The run does not wait for it. No option of a command sets it.
        encrypt: encrypt connections between workers of different machines.
        transport: ``shared`` passes gradients in shared memory between workers that can read each other's,
            ``tcp`` always over their connections; ``nixl`` is ``shared``, but the others read them with NIXL.
        max_shard_bytes: a model with more bytes of weights is written in shards of at most this many bytes.
        save_optimizer: write the optimizer's state beside the model; allowed only if every worker keeps all
            of it.
        log: the trackers that receive the metrics of each step.
        debug: the only worker uses the terminal of `elastane run`; it never counts as hung and is not
            replaced.
        contract: the script is unmodified and keeps the contract of torchrun; None: it calls `elastane.join`.
        preload: modules that the fork server imports before it forks workers, which then start at once.
        processes: of each worker; in a worker of several ones ``torch.distributed`` connects them.
        sites: of which the first machine may read the data.
        replayed: the sites that the rounds of an earlier run have left out, and those of this run leave out
            again; None: absent sites decide.
    """

    name: str
    script: str
    module: str = ""
    args: tuple[str, ...] = ()
    min_workers: int = 1
    max_workers: int = 8
    sizes: tuple[int, ...] = ()
    start: int = 1
    self_sizing: bool = False
    host_discovery: str = ""
    virtual_ranks: int | None = None
    copies: int | None = None
    convergence: Literal["exact", "fast"] = "exact"
    numerics: Literal["native", "portable"] = "native"
    seed: int = 0
    threads: int = 1
    digest_every: int = 50
    spot_checks: SpotChecks = "auto"
    checkpoints: CheckpointPolicy | None = None
    begins_from: str = ""
    listen: str = ""
    advertised: str = ""
    ports: tuple[int, int] | None = None
    code: str = ""
    directory: str = ""
    hosts: tuple[RunHost, ...] = ()
    ssh: tuple[str, ...] = ()
    claims: str = ""
    silence_s: SilenceLimit = SILENCE_S
    end_s: float = 60.0
    encrypt: bool = False
    transport: Literal["shared", "tcp", "nixl"] = "shared"
    max_shard_bytes: int = MAX_SHARD_BYTES
    save_optimizer: bool = False
    log: tuple[Tracker, ...] = ()
    debug: bool = False
    contract: TorchrunContract | None = None
    preload: tuple[str, ...] = ()
    processes: int = 1
    sites: tuple[SiteName, ...] = ()
    replayed: tuple[AbsentSites, ...] | None = None

    @property
    def least_ranks(self) -> int:
        """The virtual ranks that a step needs: every process of every worker computes at least one."""
        workers = self.start if self.max_workers == NO_LIMIT else self.max_workers
        return workers * self.processes

    @property
    def worker_processes(self) -> int:
        """The processes of each worker, whichever contract its script keeps."""
        return self.processes if self.contract is None else self.contract.processes

    @cached_property
    def silence(self) -> SilenceLimits:
        """The limits of the silence of machines, and the times between their signs of life."""
        return SilenceLimits(self.silence_s)

    @property
    def program(self) -> tuple[str, ...]:
        """The words after ``python``, or after the options of ``elastane run``, that start the program."""
        return (*(("-m", self.module) if self.module else (self.script,)), *self.args)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The bits that a machine computes in the rehearsal of a worker: a microbatch of step 1.

    Args:
        values: digest of the values with which it was computed. Probes of different values tell nothing.
        result: digest of the loss, the gradients and the square roots of fixed numbers.
        machine: readable facts by name, such as the model of the CPU, that may explain another result.
    """

    values: str
    result: str
    machine: dict[str, str]


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the script that decide the bits. A worker with other facts is refused.

    Args:
        script_digest: SHA-256 of the script's text.
        virtual_ranks: V.
        global_batch: samples per step.
        microbatch: samples per virtual rank; in a run of rounds, samples of each pass of an inner step.
        dataset_length: samples of the dataset; 0: a stream.
        dropped: samples that each epoch leaves out at its end, with ``drop_last=True``.
        steps: planned steps; 0: until the stream has ended as often as requested.
        parameters: number of trained elements.
        blocks: number of blocks of the flat state.
        layout_digest: SHA-256 over names, shapes and dtypes of whole tensors.
        division: SHA-256 over the part of each tensor that each process of a worker has; empty: all of it;
            None: the attempt has another number of processes than the one before, and none has reported yet.
        sharing: number of processes of a worker that compute each microbatch together.
        optimizer: class and hyperparameters at the start, readable.
        versions: versions of elastane, torch, python and the device, readable.
        dataset_digest: SHA-256 over a few samples, or over the dataset's own fingerprint.
        order_digest: SHA-256 over the first epoch's order, if the script chooses it; empty: the seed does.
        probe: None before the rehearsal, without one, or with ``convergence`` ``fast``.
        rank_sites: the site of each virtual rank, where alone its samples are read; empty: data may move.
        absent: what a round does without one of these sites.
        site_digests: of the dataset of each site, like ``dataset_digest``. A worker knows those of its own
            sites, and the run those of all sites that have had a worker.
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
    order_digest: str = ""
    numerics: str = "native"
    dropped: Position = 0
    probe: Probe | None = None
    division: str | None = ""
    sharing: Count = 1
    rank_sites: tuple[SiteName, ...] = ()
    absent: Literal["wait", "skip"] = "wait"
    site_digests: dict[SiteName, str] = {}

    @property
    def samples_per_rank(self) -> int:
        """Samples of each virtual rank in a step or a round."""
        return self.global_batch // self.virtual_ranks


class PastDivision(msgspec.Struct, frozen=True):
    """How earlier attempts of a run have divided its model; digests of their steps describe these parts.

    Args:
        until: the last step of these attempts that counts.
        division: as in `Pinned`.
        blocks: likewise.
    """

    until: Steps
    division: str
    blocks: Position


def find_pinned_at(pinned: Pinned, divisions: Sequence[PastDivision], step: int) -> Pinned:
    """Return the pinned facts with which a step was made.

    Args:
        pinned: of the present attempt.
        divisions: of earlier ones, the oldest first.
    """
    past = next((one for one in divisions if step <= one.until), None)
    if past is None:
        return pinned
    return msgspec.structs.replace(pinned, division=past.division, blocks=past.blocks)


class DataPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the data stands after a step: the next step begins there.

    Args:
        step: the step; 0: the data is at its beginning.
        epoch: number of the epoch of the next sample, from 0.
        start: position of the next sample in that epoch; in a stream, the sum over its shards.
        shards: position in each shard of a stream that is not at the beginning of the epoch.
    """

    step: Steps = 0
    epoch: Position = 0
    start: Position = 0
    shards: dict[int, Position] = {}


DATA_START = DataPosition()


class RunOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The run and the step with the state of which another run began (``elastane run --from``).

    Args:
        run: name of that run.
        directory: its directory, on the machine where the run began, or the URL of its checkpoints.
        checkpoint: name of the checkpoint there, of which this run has a copy.
        position: the step, and where the data stood after it.
        pinned: the pinned facts of that run; those of this run may differ.
        parameters_sha256: digest of the parameters in that run's ledger; empty: it has none of that step.
        optimizer_sha256: digest of the optimizer state there; empty likewise.
    """

    run: str
    directory: str
    checkpoint: str
    position: DataPosition
    pinned: Pinned
    parameters_sha256: str = ""
    optimizer_sha256: str = ""

    @property
    def step(self) -> int:
        return self.position.step

    def __str__(self) -> str:
        return f"{self.run} at step {self.step}"


class CheckpointRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run that has saved a checkpoint; with this in its manifest, the checkpoint is enough to begin from.

    Args:
        name: of the run.
        pinned: its pinned facts.
        virtual_ranks: that it was started with; None: global batch divided by microbatch.
        began_at: the step after which it began, and where the data stood then.
    """

    name: str
    pinned: Pinned
    virtual_ranks: VirtualRanks | None = None
    began_at: DataPosition = DATA_START


class Resumed(msgspec.Struct, frozen=True):
    """The state with which the current attempt of a run began.

    Args:
        checkpoint: its name; empty: there was none, and all steps are made again.
        step: of the checkpoint.
        times: how often the run has been resumed; 0: its first attempt, which has an origin.
        first_worker: number of the first worker of this attempt; none is used twice.
        first_term: term of the first coordinator of this attempt; none is used twice.
        adapted: the user has accepted changes of the script or the software since that checkpoint.
    """

    checkpoint: str
    step: Steps
    times: Count
    first_worker: Position
    first_term: Position
    adapted: bool = False


def number_attempt(resumed: Resumed | None) -> int:
    """Return how often a run had been resumed when an attempt began.

    Args:
        resumed: the beginning of the attempt; None: it is the first one.
    """
    return 0 if resumed is None else resumed.times


class RunSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """The software with which an attempt of a run began, so that a machine that has another is refused early.

    Args:
        versions: of elastane, torch and python.
        architecture: of the CPU, such as ``x86_64``.
        script_digest: SHA-256 of the script's text; empty: unknown.
    """

    versions: dict[str, str]
    architecture: str
    script_digest: str


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: the request and, once the first worker has loaded the script, the pinned facts.

    Args:
        schema: version of the file's format.
        pinned: None before the first worker has loaded the script.
        created: time of creation, UTC.
        resumed: how the current attempt began; None in the first attempt, unless the run has an origin.
        origin: the state of another run with which this one began; None: it began from nothing.
        typed: the options of ``elastane run`` that the user typed; None: the run was not started by that
            command.
        software: of the machine on which the present attempt began; None: no other machine can take part.
        divisions: of the model in earlier attempts, the oldest first; empty: all have divided it alike.
    """

    schema: int = SCHEMA
    spec: RunSpec
    pinned: Pinned | None = None
    created: str
    resumed: Resumed | None = None
    origin: RunOrigin | None = None
    typed: tuple[str, ...] | None = None
    software: RunSoftware | None = None
    divisions: tuple[PastDivision, ...] = ()

    @property
    def began_at(self) -> DataPosition:
        """The step after which the run began, and where the data stood then."""
        return DATA_START if self.origin is None else self.origin.position
