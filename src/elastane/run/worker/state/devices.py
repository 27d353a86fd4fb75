"""The settings that make the kernels of a device give the same bits every time."""

import logging
import os
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACE, FIXED_WORKSPACE_BYTES = ":4096:8", 8 * 4096 << 10
"""Workspaces of a fixed size. Without them cuBLAS chooses kernels by the stream that they run on (cuBLAS,
"Results reproducibility")."""

logger = logging.getLogger(__name__)


def pin_libraries() -> None:
    """Set environment variables that libraries read at first use; keep values that the user has set."""
    if os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE) == FIXED_WORKSPACE and has_workspace_setting():
        # The same size. Torch then need not parse the variable, which costs 81 us in each product with 2.11.
        # The variable stays: deterministic algorithms require it.
        torch.backends.cuda.cublas_workspace_size(FIXED_WORKSPACE_BYTES)


def has_workspace_setting() -> bool:
    """Return whether torch has a setting for the workspace of cuBLAS, as from 2.13 on, and CUDA."""
    return torch.backends.cuda.is_built() and hasattr(torch.backends.cuda, "cublas_workspace_size")


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
    cudnn = torch.backends.cudnn.version()
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
    if has_workspace_setting():
        choices["workspace bytes"] = torch.backends.cuda.cublas_workspace_size()
    return ", ".join(f"{name}={value}" for name, value in choices.items())


def open_cuda_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new stream of a GPU; None: the device is the CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def get_cuda_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the stream of a GPU on which this thread computes; None: the device is the CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


class SideStream:
    """The stream on which the reactor thread uses tensors of the model's device.

    On the stream of the training thread a peer's copy would wait for a whole backward pass.

    Args:
        device: of the model; on the CPU there are no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = open_cuda_stream(device)
        self._writes: torch.cuda.Event | None = None

    @property
    def is_gpu(self) -> bool:
        """There is a stream, because the device is a GPU."""
        return self._stream is not None

    def wait_for(self, stream: torch.cuda.Stream | None) -> None:
        """Let later uses wait for all that a stream has queued so far; None: there are no streams."""
        if self._stream is not None and stream is not None:
            self._stream.wait_stream(stream)

    def record(self) -> torch.cuda.Event | None:
        """Return the event of the end of all uses so far; None: they have ended."""
        if self._stream is None:
            return None
        # Blocking: the thread that waits sleeps instead of spinning.
        ended = torch.cuda.Event(blocking=True)
        ended.record(self._stream)
        return ended

    def mark_writes(self, stream: torch.cuda.Stream | None = None) -> None:
        """Let later uses wait for all that the training thread, which calls this, has queued so far.

        Args:
            stream: the stream of its work; None: the present one.
        """
        stream = stream or get_cuda_stream(self._device)
        if stream is not None:
            self._writes = stream.record_event()

    def use(self) -> AbstractContextManager[object]:
        """Return the context of one use."""
        if self._stream is None:
            return nullcontext()
        if self._writes is not None:
            self._stream.wait_event(self._writes)
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Let what the training thread, which calls this, queues next wait for all uses and writes so far."""
        stream = get_cuda_stream(self._device)
        if self._stream is None or stream is None:
            return
        stream.wait_stream(self._stream)
        if self._writes is not None:
            stream.wait_event(self._writes)


class LateNumber:
    """A number on a device that the host reads without waiting for kernels that were queued after it.

    Args:
        number: a tensor of one element.

    Attributes:
        has_arrived: the host has it already.
    """

    def __init__(self, number: torch.Tensor) -> None:
        self._number = number.detach().to("cpu", non_blocking=True)
        stream = get_cuda_stream(number.device)
        self.has_arrived = stream is None
        self._arrival: torch.cuda.Event | None = None
        if stream is not None:
            # Blocking: the thread that waits sleeps instead of spinning.
            self._arrival = torch.cuda.Event(blocking=True)
            self._arrival.record(stream)

    def read(self) -> float:
        """Return the number; waits until it has arrived."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return float(self._number)


def register_host_memory(owner: object, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Register shared memory with CUDA, so that copies between it and the GPU need no staging.

    If CUDA refuses it, copies are slower and just as correct.

    Args:
        owner: keeps the memory; the registration ends with it.
        tensors: views of the memory.
        device: of the copies.
    """
    runtime = torch.cuda.cudart()
    for tensor in tensors:
        address = tensor.data_ptr()
        status = runtime.cudaHostRegister(address, tensor.nbytes, 0)
        if status == runtime.cudaError.success:
            # Otherwise memory that is mapped at this address later could not be registered.
            weakref.finalize(owner, runtime.cudaHostUnregister, address).atexit = False
            continue
        logger.warning("CUDA cannot register %d bytes of host memory: %s", tensor.nbytes, status)
        with suppress(RuntimeError):
            # The error stays until the launch of a kernel reports it.
            torch.zeros(1, device=device)
