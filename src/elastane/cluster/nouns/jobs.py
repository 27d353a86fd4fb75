"""The job spec, version 1: the program of a job, its resources, its limits and its owner.

YAML, JSON and Python share one schema. Files use ``camelCase`` and the field names that users know from
SageMaker HyperPod, Kubeflow and Kueue; Python uses ``snake_case``.
"""

from datetime import datetime
from typing import Literal

import msgspec

from elastane.run.nouns.checkpoint_policy import CheckpointSettings
from elastane.run.nouns.trackers import Tracker

VERSION: Literal[1] = 1


class SpecPart(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
):
    """Base of every part of a spec: written in camelCase; an unknown field is an error.

    Frozen values form no cycles, so the garbage collector need not scan the tens of thousands of them.
    """


class ElasticPolicy(SpecPart, frozen=True, kw_only=True, gc=False):
    """The numbers of workers that a job may have, and how long changes may take.

    Its timeouts are an hour at most, because other jobs may wait that long for their devices.

    Args:
        min_replicas: the job runs with at least this many workers, or waits.
        max_replicas: never more workers than this.
        replica_increment_step: legal sizes are ``min_replicas`` plus multiples of this. None: those that may
            be faster than the ones below: they share the virtual ranks evenly, and above one node they fill
            whole nodes (`elastane.cluster.scheduler.sizes`).
        replica_discrete_values: the legal sizes, ascending, instead of a step; empty: by step.
        graceful_shutdown_timeout_in_seconds: how long a worker that is asked to leave may take.
        scaling_timeout_in_seconds: how long granted workers may take to arrive before the grant is taken
            back. At the start of an attempt, arriving means that the process exists; later, that the worker
            trains.
        faulty_scale_down_timeout_in_seconds: how long a job waits for the replacement of failed capacity
            before it is shrunk or requeued.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    replica_increment_step: int | None = None
    replica_discrete_values: tuple[int, ...] = ()
    graceful_shutdown_timeout_in_seconds: float = 60.0
    scaling_timeout_in_seconds: float = 300.0
    faulty_scale_down_timeout_in_seconds: float = 30.0

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most workers."""
        values = self.replica_discrete_values
        return (values[0], values[-1]) if values else (self.min_replicas, self.max_replicas)


class WorkerResources(SpecPart, frozen=True, kw_only=True, gc=False):
    """The resources of one worker.

    Args:
        devices: number of devices, on one node or on whole nodes; None: one for each process of the worker.
        kinds: acceptable device kinds, best first; empty: any. A running job keeps its kind, because results
            are exact on one kind only.
    """

    devices: int | None = None
    kinds: tuple[str, ...] = ()


class DataPlacement(SpecPart, frozen=True, kw_only=True, gc=False):
    """The sites where the job's data may be read.

    Args:
        regions: sites a pool may be at; empty: any.
        labels: labels a pool must carry, with these values.
        sites: those to which the script binds its data. The job begins with a worker at each of them, in
            pools of engines, and has none elsewhere; each worker reads the data of its site. Empty: its
            workers are at one site, whichever it is.
    """

    regions: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    sites: tuple[str, ...] = ()


class JobTarget(SpecPart, frozen=True, kw_only=True, gc=False):
    """The goal of a job; once it is reached, the job needs no more workers.

    Args:
        throughput: samples per second, wanted from the start; a job that reaches it does not grow.
        loss: training loss, as the mean of `elastane.cluster.nouns.engine.RECENT_STEPS` steps; a job
            that reaches it is stopped and counts as finished.
        by: the time by which ``loss`` should be reached, allowed only with ``loss``; counts like a deadline.
    """

    throughput: float | None = None
    loss: float | None = None
    by: datetime | None = None


class RunPolicy(SpecPart, frozen=True, kw_only=True, gc=False):
    """When a job is suspended, stopped for good, or forgotten.

    Args:
        suspend: the job waits until this is False again.
        active_deadline_seconds: a job that has held devices for this long is stopped and counts as failed;
            None: no limit.
        ttl_seconds_after_finished: this long after the job's end the cluster forgets it; its files stay.
            None: never.
        job_max_retry_count: restarts after crashes of the job itself; resizes and preemptions do not count.
    """

    suspend: bool = False
    active_deadline_seconds: float | None = None
    ttl_seconds_after_finished: float | None = None
    job_max_retry_count: int = 3


class JobTraining(SpecPart, frozen=True, kw_only=True, gc=False):
    """How the job trains. The trained bytes depend on the first six fields, never on the cluster.

    Args:
        seed: seed of the sample order, dropout and initial weights.
        threads: intra-op threads of each worker.
        virtual_ranks: V, the number of pieces of every global batch; None: global batch divided by
            microbatch.
        convergence: ``exact``: the same bits for any number of workers; ``fast``: sums in the cheapest order.
        numerics: ``native`` computes with all instructions of the CPU; ``portable`` only with those that all
            CPUs of the architecture have.
        copies: how many workers keep each piece of the optimizer's state; ``all``: every worker has it whole.
        checkpoints: when it saves checkpoints.
        origin: in a file ``from``: the URL or directory of the checkpoints of another run, with the state of
            which the job begins: ``URL@STEP``, or the newest one. Settings that decide the bits and have
            their defaults are then those of that run. Empty: it begins from nothing.
        log: the trackers that receive the metrics of each step.
        preload: installed modules that every worker imports. They are loaded once, before the workers are
            forked from that process, so their import must start no thread.
    """

    seed: int = 0
    threads: int = 1
    virtual_ranks: int | None = None
    convergence: Literal["exact", "fast"] = "exact"
    numerics: Literal["native", "portable"] = "native"
    copies: int | Literal["all"] = "all"
    checkpoints: CheckpointSettings = CheckpointSettings()
    origin: str = msgspec.field(default="", name="from")
    log: tuple[Tracker, ...] = ()
    preload: tuple[str, ...] = ()


class JobSpec(SpecPart, frozen=True, kw_only=True, gc=False):
    """The description of one job, as submitted.

    Args:
        version: of this schema.
        name: unique in the cluster.
        script: a Python training script; a relative path starts at ``working_dir``.
        module: instead of a script, the name of a Python module as ``python -m`` takes it, installed or in
            ``working_dir``.
        command: instead of either, a program and its arguments; no shell interprets them.
        args: arguments of the script or the module.
        contract: ``torchrun``: the program is an unmodified script for torchrun, which restarts at each new
            size from its own snapshot; ``elastane``: it calls `elastane.join`.
        nproc_per_node: processes of each worker of an unmodified script.
        processes: of each worker of a script that calls `elastane.join`; several ones divide the model.
        max_restarts: restarts after failures of an unmodified script.
        stall_timeout_seconds: an unmodified script that prints nothing for this long has failed; None: never.
        working_dir: absolute path of the directory in which its processes start; empty: the directory of the
            script's or the module's file.
        code: digest of the code that the job brings with it, see
            `elastane.run.machines.joining.shipped_code.compute_code_digest`. ``script`` and ``working_dir``
            are then paths in the code, from its root, where its processes start if ``working_dir`` is empty.
            Empty: the paths are those of the machines.
        image: the container image of its agents, see `elastane.cluster.nouns.images.parse_image`. It has
            Elastane and torch, and counts for more than that of a pool. Empty: that of the pool, or none.
        env: additional environment variables.
        team: the team that owns it and that provides its quota.
        queue: a label within the team, for sorting.
        priority_class: name of a `elastane.cluster.nouns.config.PriorityClass`; empty: the cluster's
            default.
        resources_per_worker: the resources of one worker.
        elastic_policy: its numbers of workers.
        run_policy: when it is suspended, stopped for good, or forgotten.
        training: seed, threads, checkpoints.
        borrow: it may use quota that other teams leave idle, and gives it back when they need it.
        spot: some of its workers may run on capacity that can be taken away with a short notice.
        data: where its data may be read.
        deadline: when it should be done; a job that is late grows before others of its priority.
        target: the goal after which it needs no more workers.
        budget: the most it may cost, in the currency of the pools' prices.
    """

    version: Literal[1] = VERSION
    name: str
    command: tuple[str, ...] = ()
    script: str = ""
    module: str = ""
    args: tuple[str, ...] = ()
    contract: Literal["elastane", "torchrun"] = "elastane"
    nproc_per_node: int = 1
    processes: int = 1
    max_restarts: int = 0
    stall_timeout_seconds: float | None = None
    working_dir: str = ""
    code: str = ""
    image: str = ""
    env: dict[str, str] = {}
    team: str
    queue: str = ""
    priority_class: str = ""
    resources_per_worker: WorkerResources = WorkerResources()
    elastic_policy: ElasticPolicy = ElasticPolicy()
    run_policy: RunPolicy = RunPolicy()
    training: JobTraining = JobTraining()
    borrow: bool = True
    spot: bool = False
    data: DataPlacement = DataPlacement()
    deadline: datetime | None = None
    target: JobTarget = JobTarget()
    budget: float | None = None

    @property
    def stays_together(self) -> bool:
        """Whether all workers must be on one machine, as those of unmodified scripts or several processes."""
        return self.contract == "torchrun" or self.processes > 1

    @property
    def worker_processes(self) -> int:
        """The processes of each worker, whichever contract its script keeps."""
        return self.processes if self.contract == "elastane" else self.nproc_per_node

    @property
    def worker_devices(self) -> int:
        """The number of devices of each worker."""
        devices = self.resources_per_worker.devices
        return self.worker_processes if devices is None else devices

    @property
    def program(self) -> tuple[str, ...]:
        """The program of each worker and its arguments, as a user writes them."""
        return self.command or (*(("-m", self.module) if self.module else (self.script,)), *self.args)
