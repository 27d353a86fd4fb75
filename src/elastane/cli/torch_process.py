"""Child processes that use torch, which the command line itself never imports."""

import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from elastane.common.errors import BadInput, ElastaneError, RunFailed
from elastane.common.extras import require
from elastane.run.nouns.torch_answers import ExportRefusal

T = TypeVar("T", bound=msgspec.Struct)


def run_module(module: str, options: Sequence[str], kind: type[T]) -> T:
    """Run a module as a program, and return the value that it prints as JSON on its last line.

    Raises:
        MissingExtra: torch is not installed.
        ElastaneError: the program refused; the error has its reason.
        RunFailed: the process failed; its own output is on stderr.
    """
    require("torch", "this command needs torch")
    # -P keeps the working directory out of the module path, where a user may have a logging.py.
    command = [sys.executable, "-P", "-m", module, *options]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    lines = process.stdout.splitlines()
    try:
        answer: T | ExportRefusal = msgspec.json.decode(
            lines[-1] if lines else b"", type=kind | ExportRefusal
        )
    except msgspec.DecodeError:
        raise RunFailed(
            f"{module} ended with exit code {process.returncode} and without a result",
            means="nothing was done; its own output is above",
            do=f"check that torch works: {sys.executable} -c 'import torch, safetensors'",
        ) from None
    if isinstance(answer, ExportRefusal):
        error = BadInput if answer.exit_code == BadInput.exit_code else ElastaneError
        raise error(answer.what, means=answer.means, do=answer.do)
    return answer
