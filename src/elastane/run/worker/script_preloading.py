"""Import of a script's modules before any process is forked, without modules that cannot survive a fork."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from elastane.run.worker.script_imports import ScriptImport

ALWAYS = (
    ScriptImport("torch"),
    ScriptImport("torch.distributed"),
    ScriptImport("torch.nn.parallel"),
    ScriptImport("torch.utils.data"),
    # The first optimizer of a process imports it.
    ScriptImport("torch._dynamo"),
)
"""What nearly every training script imports, directly or through modules of its own."""


def preload_imports(imports: Iterable[ScriptImport], left_out: frozenset[str]) -> str:
    """Import modules until one spoils this process for forks; return its package.

    A fork has only the thread that forks, and a forked process cannot use CUDA after its parent has.

    Args:
        imports: those to make, in order.
        left_out: packages to skip.

    Returns:
        The package that has started a thread or initialised CUDA; empty: none has. The caller must begin
        again in a new process, without it.
    """
    for wanted in imports:
        if wanted.package in left_out:
            continue
        _import_quietly(wanted)
        if count_threads() > 1 or is_cuda_initialised():
            return wanted.package
    return ""


def _import_quietly(one: ScriptImport) -> None:
    try:
        module = importlib.import_module(one.module)
        for name in one.names:
            # A package may load its parts only when they are read.
            if not hasattr(module, name):
                importlib.import_module(f"{one.module}.{name}")
    # The script makes the same import, and reports its own error.
    except BaseException as error:  # noqa: BLE001
        sys.stderr.write(f"not imported ahead: {one.module}: {type(error).__name__}: {error}\n")


def count_threads() -> int:
    """Return the number of threads of this process, whichever library has started them."""
    return len(list(Path("/proc/self/task").iterdir()))


def is_cuda_initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
