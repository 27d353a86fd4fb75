"""The settings of ``accelerate launch``, typed or from its file, as the environment of a script."""

import os
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
import typer

from elastane.api.documents import read_yaml
from elastane.api.errors import BadInput
from elastane.cli.options import CONTRACT
from elastane.cli.runs.run_options import RunOptions

Precision = Literal["no", "fp16", "bf16"]
KINDS = frozenset({"NO", "MULTI_CPU", "MULTI_GPU"})
IGNORED = frozenset(
    {"compute_environment", "debug", "machine_rank", "main_training_function", "rdzv_backend"}
)
"""Fields of the file that change nothing on one machine. Accelerate writes them into every file."""


class AccelerateOptions(RunOptions, frozen=True, kw_only=True):
    """Options of ``elastane launch`` as typed; None: not typed, so the file or the default decides."""

    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config_file",
            metavar="FILE",
            help="Settings of accelerate config. Default: its default_config.yaml, if there is one.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    num_processes: Annotated[
        int | None,
        typer.Option(
            "--num_processes",
            "-np",
            metavar="N",
            help="Number of processes, unless --workers gives a range.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    mixed_precision: Annotated[
        Precision | None,
        typer.Option(
            "--mixed_precision",
            metavar="|".join(get_args(Precision)),
            help="Precision of the script's Accelerator, unless the script sets it.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    cpu: Annotated[
        bool,
        typer.Option("--cpu", help="Train on the CPU, even if there are GPUs.", rich_help_panel=CONTRACT),
    ] = False
    gpu_ids: Annotated[
        str | None,
        typer.Option(
            "--gpu_ids",
            metavar="N,N,…|all",
            help="GPUs that the script may use, as CUDA_VISIBLE_DEVICES. Default: all.",
            rich_help_panel=CONTRACT,
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        typer.Option(
            "--gradient_accumulation_steps",
            metavar="N",
            help="Batches for each step of the optimizer, unless the script sets it.",
            rich_help_panel=CONTRACT,
        ),
    ] = None


class AccelerateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a file of ``accelerate config`` that make sense under the contract of torchrun."""

    distributed_type: str = "NO"
    mixed_precision: Precision = "no"
    num_processes: int | None = None
    num_machines: int = 1
    use_cpu: bool = False
    gpu_ids: str = "all"
    same_network: bool = True
    downcast_bf16: str = "no"
    enable_cpu_affinity: bool = False


def read_accelerate_file(named: Path | None) -> AccelerateFile:
    """Return the settings of a file, or of the default file of Accelerate.

    Args:
        named: the file; None: the default one, which may be missing.

    Raises:
        BadInput: the file cannot be read, or asks for more than the contract can give.
    """
    path = find_default_file() if named is None else named
    if named is None and not path.is_file():
        return AccelerateFile()
    try:
        document = read_yaml(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", do="check --config_file") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error.what}", means=error.means, do=error.do) from error
    if not isinstance(document, dict):
        raise BadInput(f"{path} has no settings", do="write it with: accelerate config")
    wanted = {name: value for name, value in document.items() if name not in IGNORED}
    unused = {name: value for name, value in wanted.items() if name not in AccelerateFile.__struct_fields__}
    if asked := sorted(name for name, value in unused.items() if value not in (None, False, "", {}, [])):
        raise _refuse(f"{path} sets {', '.join(map(str, asked))}")
    try:
        settings = msgspec.convert(
            {name: value for name, value in wanted.items() if name not in unused}, AccelerateFile
        )
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}", do="write it with: accelerate config") from error
    if settings.distributed_type not in KINDS or settings.num_machines != 1:
        kind = f"distributed_type {settings.distributed_type} on {settings.num_machines} machines"
        raise _refuse(f"{path} asks for {kind}")
    return settings


def find_default_file() -> Path:
    """Return where ``accelerate config`` writes."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def build_accelerate_environment(options: AccelerateOptions, file: AccelerateFile) -> dict[str, str]:
    """Return the variables that ``accelerate launch`` would set for the script.

    Raises:
        BadInput: a number is too small.
    """
    environment = {
        "ACCELERATE_MIXED_PRECISION": options.mixed_precision or file.mixed_precision,
        "ACCELERATE_USE_CPU": str(options.cpu or file.use_cpu),
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }
    if (steps := options.gradient_accumulation_steps) is not None:
        if steps < 1:
            raise BadInput(f"--gradient_accumulation_steps {steps} is below 1", do="use 1 or more")
        environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(steps)
    if (gpus := options.gpu_ids or file.gpu_ids) != "all":
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    return environment


def choose_worker_range(options: AccelerateOptions, file: AccelerateFile) -> str | None:
    """Return ``--workers`` for the number of processes; None: no number was asked for.

    Raises:
        BadInput: the number is too small.
    """
    number = options.num_processes
    if number is None:
        number = file.num_processes
    if number is None:
        return None
    if number < 1:
        raise BadInput(f"--num_processes {number} is below 1", do="use 1 or more")
    return str(number)


def _refuse(what: str) -> BadInput:
    return BadInput(
        what,
        means="elastane launch runs plain data parallelism on one machine, under the contract of torchrun",
        do="use elastane.join() for sharded optimizer state (--copies), or accelerate launch",
    )
