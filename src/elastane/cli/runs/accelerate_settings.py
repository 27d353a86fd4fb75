"""The settings of ``accelerate launch``, typed or from its file, as the environment of a script.

A key of the file is honoured, or accepted or refused as the option of the same name.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from elastane.cli.launcher_options import (
    ACCELERATE,
    FLAG,
    OTHER_DEVICES,
    SHARDED,
    LauncherOption,
    find_launcher_option,
)
from elastane.cli.options import CONTRACT, flag, option
from elastane.cli.runs.run_options import RunOptions
from elastane.common.documents import read_document, read_yaml
from elastane.common.errors import BadInput

Precision = Literal["no", "fp16", "bf16"]
ONLY_IN_THE_FILE = (
    LauncherOption(("--compute-environment",), OTHER_DEVICES.means, OTHER_DEVICES.do, "LOCAL_MACHINE"),
    LauncherOption(
        ("--distributed-type",),
        "elastane launch runs plain data parallelism on the CPUs or GPUs of this machine",
        SHARDED.do,
        accepted="NO|MULTI_CPU|MULTI_GPU",
    ),
    LauncherOption(("--parallelism-config",), SHARDED.means, SHARDED.do),
    LauncherOption(("--commands", "--command-file"), OTHER_DEVICES.means, OTHER_DEVICES.do),
)
"""Keys of the file that are no options of ``accelerate launch``, written as options."""


class AccelerateOptions(RunOptions, frozen=True, kw_only=True):
    """Options of ``elastane launch`` as typed; None: not typed, so the file or the default decides."""

    config_file: Annotated[
        Path | None,
        option(
            "FILE",
            "Settings of accelerate config. Default: its default_config.yaml, if there is one.",
            "--config_file",
            panel=CONTRACT,
        ),
    ] = None
    num_processes: Annotated[
        int | None,
        option(
            "N",
            "Number of processes, unless --workers gives a range.",
            "--num_processes",
            "-np",
            panel=CONTRACT,
        ),
    ] = None
    mixed_precision: Annotated[
        Precision | None,
        option(
            "|".join(get_args(Precision)),
            "Precision of the script's Accelerator, unless the script sets it.",
            "--mixed_precision",
            panel=CONTRACT,
        ),
    ] = None
    cpu: Annotated[bool, flag("Train on the CPU, even if there are GPUs.", "--cpu", panel=CONTRACT)] = False
    gpu_ids: Annotated[
        str | None,
        option(
            "N,N,…|all",
            "GPUs that the script may use, as CUDA_VISIBLE_DEVICES. Default: all.",
            "--gpu_ids",
            panel=CONTRACT,
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        option(
            "N",
            "Batches for each step of the optimizer, unless the script sets it.",
            "--gradient_accumulation_steps",
            panel=CONTRACT,
        ),
    ] = None


class AccelerateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a file of ``accelerate config`` that change how the script runs."""

    mixed_precision: Precision = "no"
    num_processes: int | None = None
    use_cpu: bool = False
    gpu_ids: str = "all"
    debug: bool = False


def read_accelerate_file(named: Path | None) -> AccelerateFile:
    """Return the settings of a file; None: of the default file of Accelerate, which may be missing."""
    path = find_default_file() if named is None else named
    if named is None and not path.is_file():
        return AccelerateFile()
    try:
        with path.open("rb") as file:
            document = read_yaml(read_document(file))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", do="check --config_file") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error.what}", means=error.means, do=error.do) from error
    if not isinstance(document, dict):
        raise BadInput(f"{path} has no settings", do="write it with: accelerate config")
    # A key without a value counts as missing, as for Accelerate.
    given = {str(name): value for name, value in document.items() if value is not None}
    for name in sorted(given.keys() - set(AccelerateFile.__struct_fields__)):
        _check_key(path, name, given.pop(name))
    if (precision := given.get("mixed_precision", "no")) not in get_args(Precision):
        raise BadInput(
            f"{path} sets mixed_precision to {precision}",
            means="elastane launch has no, fp16 and bf16",
            do="write one of them; for fp8, pass the settings to the script's Accelerator",
        )
    try:
        return msgspec.convert(given, AccelerateFile)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}", do="write it with: accelerate config") from error


def find_key(name: str) -> LauncherOption | None:
    """Return what becomes of a key of the file that is not honoured; None: Accelerate has no such key."""
    return find_launcher_option(f"--{name}", (*ONLY_IN_THE_FILE, *ACCELERATE))


def _check_key(path: Path, name: str, value: Any) -> None:
    """Check a key of the file that the script does not notice."""
    option = find_key(name)
    if option is None:
        raise BadInput(
            f"{path} has an unknown key: {name}",
            means="accelerate config writes no such key",
            do="correct or remove it, or write the file again with: accelerate config",
        )
    if option.accepted is None:
        unchanged = value in (False, "", {}, [])
    else:
        pattern = ".*" if option.accepted == FLAG else option.accepted
        unchanged = re.fullmatch(pattern, str(value), re.IGNORECASE) is not None
    if not unchanged:
        shown = "" if isinstance(value, (dict, list)) else f" to {value}"
        raise BadInput(f"{path} sets {name}{shown}", means=option.means, do=option.do)


def find_default_file() -> Path:
    """Return where ``accelerate config`` writes."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def build_accelerate_environment(options: AccelerateOptions, file: AccelerateFile) -> dict[str, str]:
    """Return the variables that ``accelerate launch`` would set for the script."""
    environment = {
        "ACCELERATE_MIXED_PRECISION": options.mixed_precision or file.mixed_precision,
        "ACCELERATE_USE_CPU": str(options.cpu or file.use_cpu),
        "ACCELERATE_DYNAMO_BACKEND": "NO",
    }
    if file.debug:
        environment["ACCELERATE_DEBUG_MODE"] = "true"
    if (steps := options.gradient_accumulation_steps) is not None:
        if steps < 1:
            raise BadInput(f"--gradient_accumulation_steps {steps} is below 1", do="use 1 or more")
        environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(steps)
    if (gpus := options.gpu_ids or file.gpu_ids) != "all":
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    return environment


def choose_worker_range(options: AccelerateOptions, file: AccelerateFile) -> str | None:
    """Return ``--workers`` for the number of processes; None: no number was asked for."""
    number = options.num_processes
    if number is None:
        number = file.num_processes
    if number is None:
        return None
    if number < 1:
        raise BadInput(f"--num_processes {number} is below 1", do="use 1 or more")
    return str(number)
