"""The parts of ``horovod.torch`` that elastic scripts use: ``import elastane.integrations.horovod as hvd``.

A script runs under ``elastane run --contract torchrun``, or alone under plain ``python``. As with Horovod,
the batch and the order of sums follow the number of processes, so the trained bytes depend on it; those of
scripts that use `elastane.join` do not. A change of the number of processes restarts them from warm ones;
`elastic.run` hands the last commit over.
"""

from typing import Any, NoReturn

from elastane.common.extras import require_for_import

with require_for_import("torch", "elastane.integrations.horovod"):
    from elastane.integrations.horovod import elastic
    from elastane.integrations.horovod.collectives import (
        Adasum,
        Average,
        Max,
        Min,
        Product,
        Sum,
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        grouped_allgather,
        grouped_allreduce,
        grouped_allreduce_,
        poll,
        reducescatter,
        synchronize,
    )
    from elastane.integrations.horovod.compression import Compression
    from elastane.integrations.horovod.optimizer import DistributedOptimizer
    from elastane.integrations.horovod.parameters import (
        allgather_object,
        broadcast_object,
        broadcast_optimizer_state,
        broadcast_parameters,
    )
    from elastane.integrations.horovod.refused_names import build_name_error
    from elastane.integrations.horovod.world import (
        cross_rank,
        cross_size,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
    )

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "synchronize",
]


def _is_built() -> bool:
    return True


def _is_not_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


gloo_built = gloo_enabled = _is_built
mpi_built = mpi_enabled = mpi_threads_supported = _is_not_built
ccl_built = cuda_built = ddl_built = rocm_built = _is_not_built


def __getattr__(name: str) -> NoReturn:
    raise build_name_error(name)


def __dir__() -> list[Any]:
    return sorted(__all__)
