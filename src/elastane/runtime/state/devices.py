"""Which GPU a worker has, and what is pinned so that its kernels give the same bits every time.

Nothing here touches CUDA in the fork server: a process that has cannot fork workers.
"""

import os

import torch

from elastane.runtime.state.gpu_locks import find_lock_directory, lock_gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACE = ":4096:8"
"""Buffers of a fixed size: cuBLAS otherwise picks kernels by the stream they run on (cuBLAS, "Results
reproducibility")."""


def assign_gpu(worker: int) -> None:
    """Show this process one GPU of those its agent could see, one that no other worker of this machine has.

    Must come before anything has touched CUDA. The script's ``"cuda"`` is then a GPU of this worker's;
    several workers share one where there are more workers than GPUs. Without a GPU nothing happens.
    """
    count = torch.cuda.device_count()
    if count:
        os.environ[VISIBLE] = lock_gpu(
            list_gpu_names(count, os.environ.get(VISIBLE)), worker, find_lock_directory()
        )


def list_gpu_names(count: int, visible: str | None) -> list[str]:
    """The GPUs that can be seen, as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        count: how many, at least 1.
        visible: the variable as the agent has it: numbers or UUIDs; None: not set.
    """
    names = visible.split(",") if visible else map(str, range(count))
    return [name.strip() for name in names][:count]


def pin_libraries() -> None:
    """What libraries read from the environment when they are first used; a user's own choice stands."""
    os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE)


def pin_kernels(device: torch.device) -> None:
    """Only kernels whose bits do not depend on chance, on a GPU; those of the CPU are like that already.

    An operation that has none raises a RuntimeError in which torch names it.
    """
    if device.type != "cuda":
        return
    torch.use_deterministic_algorithms(True)
    # Filling memory that is about to be written anyway finds bugs in kernels; it costs bandwidth.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def describe_device(device: torch.device) -> str:
    """The device as far as bits depend on it: equal on every worker, or the worker is refused."""
    if device.type != "cuda":
        return str(torch.backends.cpu.get_cpu_capability())
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    libraries = f"CUDA {torch.version.cuda}, cuDNN {cudnn}"
    return f"{torch.cuda.get_device_name(device)}; {libraries}; {describe_numerics()}"


def describe_numerics() -> str:
    """The choices of this process that kernels of a GPU depend on; TF32 is the script's to choose."""
    choices = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "matmul": torch.backends.cuda.matmul.fp32_precision,
        "conv": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "workspace": os.environ.get(WORKSPACE, ""),
    }
    return ", ".join(f"{name}={value}" for name, value in choices.items())
