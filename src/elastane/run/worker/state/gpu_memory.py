"""Memory of a GPU that other processes can map: CUDA's virtual memory, through the package cuda-bindings.

A descriptor of such memory keeps it alive, as that of a memfd does, so it stays after a ``kill -9``.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from elastane.run.worker.state.rooms import DeviceMemory, Sections
from elastane.run.worker.state.shared_memory import PAGE, Section

ROOMS = "ELASTANE_ROOMS"
"""With 1 in this variable, workers that share a GPU read each other's sums and values on it."""

logger = logging.getLogger(__name__)


def find_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a device that peers can map; None: it has none, or `ROOMS` does not ask for it."""
    if device.type != "cuda" or os.environ.get(ROOMS) != "1":
        return None
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found]
    except ImportError:
        logger.warning("%s=1 has no effect: the package cuda-bindings is not installed", ROOMS)
        return None
    memory = GpuMemory(driver, device)
    if not memory.is_supported():
        logger.warning("%s=1 has no effect: this GPU has no memory that processes can share", ROOMS)
        return None
    return memory


class GpuMemory(DeviceMemory):
    """Memory of one GPU; workers on other GPUs do not map it.

    Args:
        driver: the functions of CUDA's driver.
        device: the GPU.
    """

    def __init__(self, driver: Any, device: torch.device) -> None:
        self._driver = driver
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self.identity = str(torch.cuda.get_device_properties(self._index).uuid)
        self._kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def is_supported(self) -> bool:
        """Return whether the GPU has such memory."""
        names = _list_needed_attributes(self._driver)
        return all(self._call("cuDeviceGetAttribute", name, self._index) for name in names)

    def allocate(self, sections: Sequence[Section]) -> tuple[Sections, int]:
        size = self._find_size(sections)
        handle = self._call("cuMemCreate", size, self._describe(), 0)
        memory = self._map(handle, size)
        memory.zero_()
        # Other streams and processes may use it from now on.
        torch.cuda.synchronize(self._index)
        descriptor = int(self._call("cuMemExportToShareableHandle", handle, self._kind, 0))
        # The mapping and the descriptor keep the memory.
        self._call("cuMemRelease", handle)
        return _cut(memory, sections), descriptor

    def map(self, descriptor: int, sections: Sequence[Section]) -> Sections:
        handle = self._call("cuMemImportFromShareableHandle", descriptor, self._kind)
        memory = self._map(handle, self._find_size(sections))
        self._call("cuMemRelease", handle)
        return _cut(memory, sections)

    def _find_size(self, sections: Sequence[Section]) -> int:
        flag = self._driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        granularity = int(self._call("cuMemGetAllocationGranularity", self._describe(), flag))
        return -(-sum(map(_round_up, sections)) // granularity) * granularity

    def _describe(self) -> Any:
        described = self._driver.CUmemAllocationProp()
        described.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        described.location = self._locate()
        described.requestedHandleTypes = self._kind
        return described

    def _locate(self) -> Any:
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self._index
        return location

    def _map(self, handle: Any, size: int) -> torch.Tensor:
        """Map memory into this process for good, and return its bytes."""
        # Each thread needs the context of the GPU.
        torch.cuda.set_device(self._index)
        address = self._call("cuMemAddressReserve", size, 0, self._driver.CUdeviceptr(0), 0)
        self._call("cuMemMap", address, size, 0, handle, 0)
        access = self._driver.CUmemAccessDesc()
        access.location = self._locate()
        access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call("cuMemSetAccess", address, size, [access], 1)
        return torch.as_tensor(_MappedBytes(int(address), size), device=f"cuda:{self._index}")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver.

        Raises:
            OSError: the driver returned an error.
        """
        error, *results = getattr(self._driver, name)(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise OSError(f"{name}: {error.name}")
        return results[0] if results else None


def _list_needed_attributes(driver: Any) -> tuple[Any, Any]:
    """Return the attributes of a GPU with virtual memory that has descriptors."""
    prefix, attributes = "CU_DEVICE_ATTRIBUTE_", driver.CUdevice_attribute
    return (
        getattr(attributes, f"{prefix}VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
        getattr(attributes, f"{prefix}HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
    )


class _MappedBytes:
    """Bytes at an address of a GPU, as ``torch.as_tensor`` reads them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _round_up(section: Section) -> int:
    return -(-section.nbytes // PAGE) * PAGE


def _cut(memory: torch.Tensor, sections: Sequence[Section]) -> Sections:
    views, offset = [], 0
    for section in sections:
        views.append(memory[offset : offset + section.nbytes].view(section.dtype))
        offset += _round_up(section)
    return tuple(views)
