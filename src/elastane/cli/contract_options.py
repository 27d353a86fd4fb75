"""The options of unmodified scripts, which ``elastane run`` and ``elastane submit`` share."""

import re

from elastane.cli.devices import count_cores, count_devices, count_gpus
from elastane.cli.option_values import check_at_least, read_duration_s
from elastane.cli.options import spell_option
from elastane.cli.train_options import TrainOptions
from elastane.common.errors import BadInput
from elastane.run.nouns.spec import TorchrunContract

ONLY_WITH_CONTRACT = ("nproc_per_node", "max_restarts", "stall_timeout", "grace")
DEVICE_WORDS = ("gpu", "cpu", "auto")
NOT_WITH_CONTRACT = (
    "processes",
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
    "spot_checks",
    "digest_every",
    "save_optimizer",
    "max_shard_size",
    "debug",
    "accept_changes",
    "from_",
)
"""Options about the state of the model, which only the script knows."""
ON_OTHER_MACHINES = ("listen", "advertise", "ports", "site", "encrypt", "claims", "hosts", "ssh")
"""Options about several machines; all processes of an unmodified script run on one."""


def build_contract(options: TrainOptions) -> TorchrunContract | None:
    """Return the contract of the script; None: it is a script for Elastane."""
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
    if typed := list_typed(options, ON_OTHER_MACHINES):
        raise BadInput(
            f"--contract torchrun cannot be combined with {', '.join(typed)}",
            means="all processes of an unmodified script run on one machine",
            do="omit them, or call elastane.join() in the script (docs/many-machines.md)",
        )
    defaults = TorchrunContract()
    processes = read_process_count(options) or defaults.processes
    restarts = defaults.max_restarts if options.max_restarts is None else options.max_restarts
    check_at_least("--max-restarts", restarts, 0)
    grace_s = defaults.grace_s if options.grace is None else read_duration_s("--grace", options.grace)
    return TorchrunContract(
        processes=processes, max_restarts=restarts, grace_s=grace_s, stall_s=read_stall_timeout_s(options)
    )


def read_process_count(options: TrainOptions) -> int | None:
    """Return the number of processes of each worker, as torchrun counts them; None: it was not typed."""
    text = options.nproc_per_node
    if text is None:
        return None
    if text == "cpu":
        return count_cores()
    if text == "auto":
        return count_devices()[0]
    if text == "gpu":
        if gpus := count_gpus():
            return gpus
        raise BadInput(
            "--nproc-per-node gpu: this machine has no NVIDIA GPU that the run may use",
            means="a worker would have no process",
            do="write a number, or auto for the cores of a machine without GPUs",
        )
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        raise BadInput(
            f"invalid --nproc-per-node: {text!r}", do="write a number of processes, or gpu, cpu or auto"
        )
    check_at_least("--nproc-per-node", int(text), 1)
    return int(text)


def read_job_process_count(options: TrainOptions) -> int | None:
    """Return the number of processes of each worker of a job; None: it was not typed."""
    if options.nproc_per_node in DEVICE_WORDS:
        raise BadInput(
            f"--nproc-per-node {options.nproc_per_node} cannot be used for a job",
            means="it counts the devices of this machine, and the job may run on another one",
            do="write a number, such as --nproc-per-node 8",
        )
    return read_process_count(options)


def read_stall_timeout_s(options: TrainOptions) -> float | None:
    """Return the longest silence of a script; None: there is no limit."""
    if options.stall_timeout is None:
        return None
    stall_s = read_duration_s("--stall-timeout", options.stall_timeout)
    if not stall_s:
        raise BadInput("--stall-timeout 0 leaves no time for anything", do="write for example 10min")
    return stall_s


def list_typed(options: TrainOptions, names: tuple[str, ...]) -> list[str]:
    """Return the options of these names that the user typed, as they are written."""
    return [spell_option(name) for name in names if getattr(options, name, None) not in (None, False)]
