"""The job spec, version 1: what a job needs, how far it may stretch, and whom it belongs to.

One schema for YAML, JSON and Python: files write ``camelCase`` with the names that SageMaker HyperPod,
Kubeflow and Kueue made known, Python writes ``snake_case``.
"""

from datetime import datetime
from typing import Literal

import msgspec

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
    """Base of everything in a spec: written in camelCase, unknown fields refused.

    Frozen values form no cycles, so the garbage collector need not look at the tens of thousands of them.
    """


class ElasticPolicy(SpecPart, frozen=True, kw_only=True, gc=False):
    """How far a job stretches.

    Its timeouts are an hour at most: other jobs may wait that long for their devices.

    Args:
        min_replicas: the job's claim: it runs with at least so many workers or waits.
        max_replicas: never more workers than this.
        replica_increment_step: legal sizes are ``min_replicas`` plus multiples of this.
        replica_discrete_values: the legal sizes, ascending, instead of a step; empty: by step.
        graceful_shutdown_timeout_in_seconds: how long a worker that is asked to leave may take.
        scaling_timeout_in_seconds: how long workers that were granted may take to arrive before the grant is
            taken back: at a start to exist, beside others to train with them.
        faulty_scale_down_timeout_in_seconds: how long a job waits for the replacement of failed capacity
            before it is shrunk or requeued.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    replica_increment_step: int = 1
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
    """What one worker takes.

    Args:
        devices: so many devices, on one node or on whole nodes.
        kinds: device kinds that will do, best first; empty: any. A running job stays with its kind, because
            results are only exact on one.
    """

    devices: int = 1
    kinds: tuple[str, ...] = ()


class DataPlacement(SpecPart, frozen=True, kw_only=True, gc=False):
    """Where the job's data may be read.

    Args:
        regions: sites a pool may be at; empty: any.
        labels: labels a pool must carry, with these values.
    """

    regions: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class JobTarget(SpecPart, frozen=True, kw_only=True, gc=False):
    """When more workers would be more than enough.

    Args:
        throughput: samples per second; wanted from the start on: a job that has it does not grow.
        loss: of training, as the mean of `elastane.api.observations.RECENT_STEPS` steps; a job that has come
            down to it is stopped, and has finished.
        by: the time by which ``loss`` is wanted, and only with it; counts like a deadline.
    """

    throughput: float | None = None
    loss: float | None = None
    by: datetime | None = None


class RunPolicy(SpecPart, frozen=True, kw_only=True, gc=False):
    """When a job is held, given up or forgotten.

    Args:
        suspend: keep the job out of the cluster until this is taken back.
        active_deadline_seconds: seconds of holding devices after which the job is stopped, and has failed;
            None: no limit.
        ttl_seconds_after_finished: so long after its end the cluster forgets the job; its files stay.
            None: never.
        job_max_retry_count: restarts after a crash of the job's own; resizes and preemptions do not count.
    """

    suspend: bool = False
    active_deadline_seconds: float | None = None
    ttl_seconds_after_finished: float | None = None
    job_max_retry_count: int = 3


class JobCheckpoints(SpecPart, frozen=True, kw_only=True, gc=False):
    """When the job's state is kept, where, and how long; `elastane.api.checkpoint_policy` reads it.

    Args:
        every: ``auto``, ``never``, or an interval: ``10 min``, ``500 steps``.
        at: after each of these, too.
        url: a directory or any URL that fsspec knows; empty: in the run directory.
        keep_last: so many of the newest stay.
        keep_every: those of every so many steps stay, too.
        keep_best: the best by a metric stays, too: ``eval_loss:min``; empty: none.
    """

    every: str = "auto"
    at: tuple[Literal["epoch", "evaluation"], ...] = ()
    url: str = ""
    keep_last: int = 2
    keep_every: int | None = None
    keep_best: str = ""


class JobTraining(SpecPart, frozen=True, kw_only=True, gc=False):
    """How the job trains. Its bytes depend on the first five, and on nothing that a cluster does.

    Args:
        seed: of the sample order, dropout and initial weights.
        threads: intra-op threads of each worker.
        virtual_ranks: V, the fixed pieces of every global batch; None: global batch over microbatch.
        convergence: ``exact``: the same bits for any number of workers; ``fast``: sums in the cheapest order.
        copies: how many workers keep each piece of the optimizer's state; ``all``: every worker has it whole.
        checkpoints: when its state is kept.
    """

    seed: int = 0
    threads: int = 1
    virtual_ranks: int | None = None
    convergence: Literal["exact", "fast"] = "exact"
    copies: int | Literal["all"] = "all"
    checkpoints: JobCheckpoints = JobCheckpoints()


class JobSpec(SpecPart, frozen=True, kw_only=True, gc=False):
    """One job, as it was submitted.

    Args:
        version: of this schema.
        name: unique in the cluster.
        script: a Python training script; a path that is not absolute begins in ``working_dir``.
        module: instead, the name of a Python module that trains, as ``python -m`` takes it: installed,
            or in ``working_dir``.
        command: instead of either, a program and its arguments, nothing of which reaches a shell.
        args: of the script or the module.
        working_dir: absolute path of the directory in which its processes begin; empty: that of the script's
            or the module's file.
        env: variables of its environment.
        team: whose quota it runs on.
        queue: of the team, for humans to sort by.
        priority_class: name of a `elastane.api.priorities.PriorityClass`; empty: the cluster's default.
        resources_per_worker: what one worker takes.
        elastic_policy: how far it stretches.
        run_policy: when it is held or given up.
        training: seed, threads, checkpoints.
        borrow: it may use quota that others leave idle, and gives it back when they want it.
        spot: some of its workers may run on capacity that can vanish with a notice.
        data: where its data may be read.
        deadline: when it should be done; a job that is late grows before others of its priority.
        target: when more workers would be more than enough.
        budget: the most it may cost, in the currency of the pools' prices.
    """

    version: Literal[1] = VERSION
    name: str
    command: tuple[str, ...] = ()
    script: str = ""
    module: str = ""
    args: tuple[str, ...] = ()
    working_dir: str = ""
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
    def program(self) -> tuple[str, ...]:
        """What each worker runs, as one would write it."""
        return self.command or (*(("-m", self.module) if self.module else (self.script,)), *self.args)
