"""The settings that make the kernels of a device give the same bits every time."""

import os

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACE = ":4096:8"
"""Workspaces of a fixed size. Without them cuBLAS chooses kernels by the stream that they run on (cuBLAS,
"Results reproducibility")."""


def pin_libraries() -> None:
    """Set environment variables that libraries read at first use; keep values that the user has set."""
    os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE)


def pin_kernels(device: torch.device) -> None:
    """Select deterministic kernels on a GPU; the kernels of the CPU are deterministic already.

    Torch raises a RuntimeError for an operation that has no deterministic kernel, and names it.
    """
    if device.type != "cuda":
        return
    torch.use_deterministic_algorithms(True)
    # Filling memory that is about to be overwritten only helps to find bugs in kernels; it costs bandwidth.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def describe_device(device: torch.device) -> str:
    """Describe the device as far as results depend on it; workers of a run need the same description."""
    if device.type != "cuda":
        return str(torch.backends.cpu.get_cpu_capability())
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    libraries = f"CUDA {torch.version.cuda}, cuDNN {cudnn}"
    return f"{torch.cuda.get_device_name(device)}; {libraries}; {describe_numerics()}"


def describe_numerics() -> str:
    """Describe the settings that decide the bits of GPU kernels; the script chooses whether to use TF32."""
    choices = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "matmul": torch.backends.cuda.matmul.fp32_precision,
        "conv": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "workspace": os.environ.get(WORKSPACE, ""),
    }
    return ", ".join(f"{name}={value}" for name, value in choices.items())


def open_cuda_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new stream of a GPU; None: the device is the CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
