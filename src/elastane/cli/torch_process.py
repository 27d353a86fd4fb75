"""Asking a process that has torch: the command line itself never loads it."""

import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from elastane.api.errors import BadInput, ElastaneError, RunFailed
from elastane.api.export import ExportRefusal
from elastane.api.extras import require

T = TypeVar("T", bound=msgspec.Struct)


def run_module(module: str, options: Sequence[str], kind: type[T]) -> T:
    """What a module says in the last line of its output.

    Args:
        module: of elastane, run as a program.
        options: for it.
        kind: what it says unless it refuses.

    Raises:
        MissingExtra: torch is not installed.
        ElastaneError: it refuses, in these words.
        RunFailed: the process broke; what it printed is on stderr.
    """
    require("torch", "this needs torch")
    # -P keeps the working directory out of its module path: a user's logging.py is not ours.
    command = [sys.executable, "-P", "-m", module, *options]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own module
    lines = process.stdout.splitlines()
    try:
        said: T | ExportRefusal = msgspec.json.decode(lines[-1] if lines else b"", type=kind | ExportRefusal)
    except msgspec.DecodeError:
        raise RunFailed(
            f"{module} ended with exit code {process.returncode} and without a word",
            means="nothing was done; what it printed is above",
            do=f"check that torch works: {sys.executable} -c 'import torch, safetensors'",
        ) from None
    if isinstance(said, ExportRefusal):
        error = BadInput if said.exit_code == BadInput.exit_code else ElastaneError
        raise error(said.what, means=said.means, do=said.do)
    return said
