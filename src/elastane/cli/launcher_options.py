"""The options of torchrun and of ``accelerate launch`` that Elastane does not have, and what becomes of each.

An option that changes nothing here is accepted, without a line of its own in the help. Any other is refused,
with what to write instead. docs/unmodified-scripts.md shows both tables.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand

from elastane.cli.command import MISTYPED, print_error
from elastane.cli.options import spell_with_hyphens
from elastane.common.errors import BadInput

FLAG, ANY = "", ".*"


class LauncherOption(NamedTuple):
    """An option of another launcher, under all its names.

    Args:
        names: an asterisk in a refused one stands for any text.
        means: why it changes nothing here, or cannot be used.
        do: what to write instead.
        accepted: a pattern of the values that change nothing here; `FLAG`: it has none, and changes nothing;
            None: it is refused.
    """

    names: tuple[str, ...]
    means: str
    do: str = "omit it"
    accepted: str | None = None

    def refuse(self, typed: str) -> BadInput:
        """Return the error for the option as it was typed."""
        return BadInput(f"{typed} cannot be used here", means=self.means, do=self.do)


RENDEZVOUS = LauncherOption(
    ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--rdzv-id"),
    "one process starts all others, without a rendezvous; TORCHELASTIC_RUN_ID is the name of the run",
    accepted=ANY,
)
MONITORING = LauncherOption(("--monitor-interval",), "the end of a process is noticed at once", accepted=ANY)
ROLE = LauncherOption(
    ("--role",), "there is one role, and ROLE_NAME is its name: default", accepted="default"
)
LOGS = LauncherOption(
    (
        "--log-dir",
        "--tee",
        "-t",
        "--redirects",
        "-r",
        "--local-ranks-filter",
        "--duplicate-std*",
        "--logs-specs",
        "--event-log-handler",
    ),
    "the terminal shows rank 0, and logs/ in the run directory (--run-dir) has the output of every process",
    "omit it; elastane logs RUN shows the output, elastane events RUN what has happened",
)
NO_PYTHON = LauncherOption(
    ("--no-python",),
    "the processes are forked from Python, which has imported torch already",
    "give a Python script, or with -m the name of a module",
)
SHARDED = LauncherOption(
    (
        "--use-*",
        "--fsdp-*",
        "--deepspeed-*",
        "--zero*",
        "--offload-*",
        "--gradient-clipping",
        "--megatron-lm-*",
        "--parallelism-config-*",
    ),
    "elastane launch runs plain data parallelism, as torchrun does",
    "use elastane.join() for sharded optimizer state (--copies), or accelerate launch",
)
OTHER_DEVICES = LauncherOption(
    ("--tpu*", "--no-tpu-cluster", "--vm", "--env", "--aws-*", "--mpirun-*"),
    "elastane launch starts processes on the CPUs or GPUs of this machine",
    "use accelerate launch",
)

TORCHRUN = (
    LauncherOption(("--standalone",), "each start has its own store, on a free port", accepted=FLAG),
    LauncherOption(
        ("--nnodes",),
        "all processes of an unmodified script run on one machine",
        "write --workers MIN:MAX for that many groups of --nproc-per-node processes on this machine; for "
        "several machines, call elastane.join() in the script (docs/many-machines.md)",
        accepted="1(:1)?",
    ),
    LauncherOption(
        ("--node-rank",),
        "all processes of an unmodified script run on one machine",
        "omit it; for several machines, call elastane.join() in the script (docs/many-machines.md)",
        accepted="0",
    ),
    RENDEZVOUS,
    LauncherOption(
        ("--master-addr", "--master-port", "--local-addr"),
        "MASTER_ADDR is 127.0.0.1, and MASTER_PORT a free port, another one for each start",
        accepted=ANY,
    ),
    MONITORING,
    ROLE,
    LauncherOption(("--start-method",), "under torchrun too it changes nothing for a script", accepted=ANY),
    LauncherOption(("--run-path",), "a script always runs in a Python that is there already", accepted=FLAG),
    LauncherOption(("--use-env",), "LOCAL_RANK is always in the environment", accepted=FLAG),
    LOGS,
    NO_PYTHON,
    LauncherOption(
        ("--shutdown-timeout",),
        "--grace is the time between SIGTERM and SIGKILL",
        "write it with a unit: --grace 30s",
    ),
    LauncherOption(
        ("--signals-to-handle",),
        "the processes get SIGTERM before each stop, and no other signal is passed on",
        "omit it, and let the script save on SIGTERM",
    ),
    LauncherOption(
        ("--virtual-local-rank",),
        "LOCAL_RANK counts the processes of a worker",
        "use --nproc-per-node 1 and more --workers: each process then has its GPU as device 0",
    ),
    LauncherOption(
        ("--numa-binding",),
        "Elastane does not bind processes to CPUs",
        "omit it, or call os.sched_setaffinity in the script",
    ),
)
"""Options of torchrun, for ``elastane run`` and ``elastane submit`` with ``--contract torchrun``."""

ACCELERATE = (
    LauncherOption(("--multi-gpu",), "each process uses a GPU, if there are any", accepted=FLAG),
    LauncherOption(
        ("--num-machines",),
        "all processes of an unmodified script run on one machine",
        "call elastane.join() in the script (docs/many-machines.md), or use accelerate launch",
        accepted="1",
    ),
    LauncherOption(
        ("--machine-rank",),
        "all processes of an unmodified script run on one machine",
        "omit it; for several machines use elastane.join() or accelerate launch",
        accepted="0",
    ),
    LauncherOption(
        ("--main-process-ip", "--main-process-port"),
        "MASTER_ADDR is 127.0.0.1, and MASTER_PORT a free port, another one for each start",
        accepted=ANY,
    ),
    LauncherOption(("--same-network",), "it is about several machines", accepted=FLAG),
    RENDEZVOUS,
    MONITORING,
    ROLE,
    LauncherOption(
        ("--quiet", "-q"), "only the traceback of the process that failed is printed", accepted=FLAG
    ),
    LauncherOption(("--downcast-bf16",), "it is about TPUs", accepted=FLAG),
    LauncherOption(("--main-training-function",), "it is about TPUs", accepted=ANY),
    LauncherOption(
        ("--dynamo-backend",),
        "elastane launch compiles no model",
        "call torch.compile in the script, or pass dynamo_plugin to its Accelerator",
        accepted="no",
    ),
    LauncherOption(
        ("--dynamo-*",),
        "elastane launch compiles no model",
        "call torch.compile in the script, or pass dynamo_plugin to its Accelerator",
    ),
    LauncherOption(
        ("--num-cpu-threads-per-process",),
        "--threads sets OMP_NUM_THREADS of each process",
        "write --threads N",
    ),
    LauncherOption(
        ("--debug",),
        "variables of the terminal are passed on to the script",
        "omit it, and set ACCELERATE_DEBUG_MODE=true",
    ),
    LauncherOption(("--enable-cpu-affinity",), "Elastane does not bind processes to CPUs"),
    LOGS,
    NO_PYTHON,
    SHARDED,
    LauncherOption(
        ("--fp8-*",),
        "--mixed_precision is no, fp16 or bf16",
        "omit it, or pass the settings to the script's Accelerator",
    ),
    OTHER_DEVICES,
)
"""Options of ``accelerate launch``, for ``elastane launch``."""


class LauncherCommand(TyperCommand):
    """A command that refuses the options of another launcher in words."""

    launcher: ClassVar[tuple[LauncherOption, ...]] = TORCHRUN

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except MISTYPED as error:
            self.refuse(getattr(error, "option_name", ""), args)
            raise

    def refuse(self, name: str, args: list[str]) -> None:
        """Print why an option cannot be used, and end; return if it is unknown."""
        option = find_launcher_option(name, self.launcher)
        if option is not None and option.accepted is None:
            error = option.refuse(name)
            print_error(error, error.exit_code, as_json="--json" in args)
            raise typer.Exit(error.exit_code)


def find_launcher_option(name: str, launcher: tuple[LauncherOption, ...]) -> LauncherOption | None:
    """Return the option of another launcher with this name, in either spelling; None: it has none."""
    spelt = spell_with_hyphens(name)
    return next(
        (option for option in launcher if any(fnmatchcase(spelt, known) for known in option.names)), None
    )


def accept_launcher_options(
    launcher: tuple[LauncherOption, ...],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the accepted options of another launcher to a command."""
    accepted = {_name_parameter(option): option for option in launcher if option.accepted is not None}
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.accepted == FLAG else None,
            annotation=Annotated[
                bool if option.accepted == FLAG else str | None, typer.Option(*option.names, hidden=True)
            ],
        )
        for name, option in accepted.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call_without_options(*args: Any, **kwargs: Any) -> None:
            typed = {name: value for name in accepted if (value := kwargs.pop(name)) not in (None, False)}
            # `elastane launch` always has the contract, and no option for it.
            check_accepted_options(accepted, typed, contract=kwargs.get("contract", "torchrun"))
            command(*args, **kwargs)

        signature = inspect.signature(command)
        parameters = [*signature.parameters.values(), *added]
        call_without_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        call_without_options.__annotations__ = {
            parameter.name: parameter.annotation for parameter in parameters
        }
        return call_without_options

    return decorate


def check_accepted_options(
    accepted: Mapping[str, LauncherOption], typed: Mapping[str, object], *, contract: str | None
) -> None:
    """Check the typed options of another launcher that a command accepts.

    ``accepted`` and ``typed`` have the names of parameters; the value of a typed flag is True.
    """
    for name, value in typed.items():
        option = accepted[name]
        if contract is None:
            raise BadInput(
                f"{option.names[0]} needs --contract torchrun",
                means="it is an option of torchrun, for scripts that read RANK and WORLD_SIZE",
                do="add --contract torchrun for an unmodified script, or omit the option",
            )
        if value is not True and not re.fullmatch(option.accepted or "", str(value)):
            raise option.refuse(f"{option.names[0]} {value}")


def _name_parameter(option: LauncherOption) -> str:
    return option.names[0].removeprefix("--").replace("-", "_")
