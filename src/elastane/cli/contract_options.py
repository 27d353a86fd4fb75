"""The options of unmodified scripts, which ``elastane run`` and ``elastane submit`` share."""

from elastane.api.errors import BadInput
from elastane.api.spec import TorchrunContract
from elastane.cli.option_values import check_at_least, read_duration_s
from elastane.cli.train_options import TrainOptions

ONLY_WITH_CONTRACT = ("nproc_per_node", "max_restarts", "stall_timeout", "grace")
NOT_WITH_CONTRACT = (
    "copies",
    "virtual_ranks",
    "convergence",
    "numerics",
    "seed",
    "checkpoint_every",
    "checkpoint_at",
    "checkpoint_dir",
    "keep_last",
    "keep_every",
    "keep_best",
    "log",
    "transport",
    "digest_every",
    "save_optimizer",
    "max_shard_size",
    "debug",
    "accept_changes",
)
"""Options about the state of the model, which only the script knows."""


def build_contract(options: TrainOptions) -> TorchrunContract | None:
    """Return the contract of the script; None: it is a script for Elastane.

    Raises:
        BadInput: the options do not fit together; the error names the one to change.
    """
    if options.contract is None:
        if typed := list_typed(options, ONLY_WITH_CONTRACT):
            raise BadInput(
                f"{' and '.join(typed)} need{'s' * (len(typed) == 1)} --contract torchrun",
                means="a script that calls elastane.join has one process for each worker, and no restarts",
                do="add --contract torchrun for an unmodified script, or omit the option",
            )
        return None
    if typed := list_typed(options, NOT_WITH_CONTRACT):
        raise BadInput(
            f"--contract torchrun cannot be combined with {', '.join(typed)}",
            means="the model, its data and its snapshots belong to the unmodified script",
            do="omit them; the script has its own arguments, after its name",
        )
    defaults = TorchrunContract()
    processes = defaults.processes if options.nproc_per_node is None else options.nproc_per_node
    restarts = defaults.max_restarts if options.max_restarts is None else options.max_restarts
    check_at_least("--nproc-per-node", processes, 1)
    check_at_least("--max-restarts", restarts, 0)
    grace_s = defaults.grace_s if options.grace is None else read_duration_s("--grace", options.grace)
    return TorchrunContract(
        processes=processes, max_restarts=restarts, grace_s=grace_s, stall_s=read_stall_timeout_s(options)
    )


def read_stall_timeout_s(options: TrainOptions) -> float | None:
    """Return the longest silence of a script; None: there is no limit.

    Raises:
        BadInput: the option is not a duration, or is zero.
    """
    if options.stall_timeout is None:
        return None
    stall_s = read_duration_s("--stall-timeout", options.stall_timeout)
    if not stall_s:
        raise BadInput("--stall-timeout 0 leaves no time for anything", do="write for example 10min")
    return stall_s


def list_typed(options: TrainOptions, names: tuple[str, ...]) -> list[str]:
    """Return the options of these names that the user typed, as they are written."""
    return [
        "--" + name.replace("_", "-") for name in names if getattr(options, name, None) not in (None, False)
    ]
