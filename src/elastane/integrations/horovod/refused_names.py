"""The names of ``horovod.torch`` that a script cannot use here, each with a reason and another way."""

from elastane.common.errors import BadInput

_PROCESS_SETS = (
    "an elastic run changes its processes, so a set of their ranks would name others after a resize",
    "exchange among all processes; for groups of fixed ranks use torch.distributed.new_group",
)
_TIMELINE = (
    "the times of each restart are in the events of the run",
    "use elastane report RUN, or torch.profiler inside the script",
)
REFUSED: dict[str, tuple[str, str]] = {
    "ProcessSet": _PROCESS_SETS,
    "add_process_set": _PROCESS_SETS,
    "alltoall": (
        "elastic scripts of Horovod do not shuffle tensors between processes",
        "use torch.distributed.all_to_all_single, after hvd.init(), which opens its process group",
    ),
    "global_process_set": _PROCESS_SETS,
    "join": (
        "a process that waits for the others would miss their commits",
        "use hvd.elastic.ElasticSampler, which gives all processes equally many batches",
    ),
    "remove_process_set": _PROCESS_SETS,
    "sparse_allreduce_async": (
        "elastane.integrations.horovod exchanges dense tensors",
        "pass sparse_as_dense=True to hvd.DistributedOptimizer, or send tensor.to_dense()",
    ),
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    "SyncBatchNorm": (
        "its statistics need an exchange inside the forward and the backward pass",
        "use torch.nn.SyncBatchNorm on GPUs, after hvd.init(), which opens its process group; or GroupNorm",
    ),
}
"""By name: what it means, and what to do."""
_UNKNOWN = (
    "it has the parts of horovod.torch that elastic scripts use, and no others",
    "see docs/migrating.md for the list, and for the same loop over elastane.join()",
)


def build_name_error(name: str) -> AttributeError:
    """Return the error for a name that `elastane.integrations.horovod` lacks."""
    means, do = REFUSED.get(name, _UNKNOWN)
    return AttributeError(str(BadInput(f"elastane.integrations.horovod has no {name}", means=means, do=do)))
