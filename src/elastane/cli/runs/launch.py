"""``elastane launch``: run a script of Accelerate, as ``accelerate launch`` does, at every size."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from elastane.cli.command import AsJson, open_console
from elastane.cli.contract_options import NOT_WITH_CONTRACT, ON_OTHER_MACHINES
from elastane.cli.launcher_options import ACCELERATE, LauncherCommand, accept_launcher_options
from elastane.cli.options import argument, expand_options, list_explicit_options
from elastane.cli.runs.accelerate_settings import (
    AccelerateOptions,
    build_accelerate_environment,
    choose_worker_range,
    read_accelerate_file,
)
from elastane.cli.runs.run import open_new_run, train_to_end
from elastane.common.extras import require

OF_OTHER_SCRIPTS = (*NOT_WITH_CONTRACT, *ON_OTHER_MACHINES, "contract", "nproc_per_node", "resume")
"""Options of ``elastane run`` that a script of Accelerate has no use for."""


class LaunchCommand(LauncherCommand):
    """The command: it refuses options of ``accelerate launch`` in words."""

    launcher = ACCELERATE


def launch_script(
    context: typer.Context,
    script: Annotated[Path, argument("SCRIPT", "A script that uses Accelerate.")],
    args: Annotated[
        list[str] | None, argument("ARGS", "Arguments of the script: all words after SCRIPT.")
    ] = None,
    *,
    options: AccelerateOptions,
    as_json: AsJson = False,
) -> None:
    """Run a script of Accelerate elastically, in place of accelerate launch.

    It restarts at each new size from its own snapshot, as with
    elastane run --contract torchrun. Options come before SCRIPT. Options of
    accelerate launch that change nothing here are accepted, such as --multi_gpu,
    --num_machines 1 and --main_process_port.

      $ elastane launch --workers 1:4 --mixed_precision bf16 train.py --lr 3e-4
      $ elastane launch --config_file accelerate.yaml train.py
    """
    console = open_console(as_json=as_json)
    require("torch", "training needs torch")
    file = read_accelerate_file(options.config_file)
    workers = options.workers or choose_worker_range(options, file)
    opened = open_new_run(
        script,
        tuple(args or ()),
        msgspec.structs.replace(options, workers=workers, contract="torchrun"),
        list_explicit_options(context, left_out=("module",)),
        console,
        environment=build_accelerate_environment(options, file),
    )
    train_to_end(opened, console, as_json=as_json)


launch = accept_launcher_options(ACCELERATE)(expand_options(launch_script, left_out=OF_OTHER_SCRIPTS))
