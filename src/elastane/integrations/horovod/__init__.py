"""The parts of ``horovod.torch`` that elastic scripts use: ``import elastane.integrations.horovod as hvd``.

A script runs under ``elastane run --contract torchrun``, or alone under plain ``python``. As with Horovod,
the batch and the order of sums follow the number of processes, so the trained bytes depend on it; those of
scripts that use `elastane.join` do not. A change of the number of processes restarts them from warm ones;
`elastic.run` hands the last commit over.
"""

from typing import Any, NoReturn

from elastane.common.extras import require

require("torch", "elastane.integrations.horovod")

# The import of torch must come after the check.
from elastane.integrations.horovod import elastic  # noqa: E402
from elastane.integrations.horovod.collectives import (  # noqa: E402
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
from elastane.integrations.horovod.compression import Compression  # noqa: E402
from elastane.integrations.horovod.optimizer import DistributedOptimizer  # noqa: E402
from elastane.integrations.horovod.parameters import (  # noqa: E402
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from elastane.integrations.horovod.refused_names import build_name_error  # noqa: E402
from elastane.integrations.horovod.world import (  # noqa: E402
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


def gloo_built() -> bool:
    return True


def gloo_enabled() -> bool:
    return True


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def nccl_built() -> int:
    return 0


def mpi_threads_supported() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return False


def ddl_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def __getattr__(name: str) -> NoReturn:
    raise build_name_error(name)


def __dir__() -> list[Any]:
    return sorted(__all__)
