"""The options of the engine and of its pools, decoded."""

from collections.abc import Mapping

import msgspec

from elastane.cluster.engines.decoded_options import decode_engine, decode_pool, parse_labels
from elastane.cluster.nouns.agents import ELASTANE_COMMAND

ANSWER_S = 5.0
"""How long Ray may take to answer, unless the options say otherwise."""
CPU, MEMORY = "CPU", "memory"


class RayPool(msgspec.Struct, frozen=True, kw_only=True):
    """What agents of a pool ask of Ray; `RAY` describes the options. Empty: any.

    Args:
        memory_bytes_per_device: 0: Ray does not count it.
    """

    resource: str = "GPU"
    cpus_per_device: int = 1
    memory_bytes_per_device: int = 0
    accelerator: str = ""
    labels: Mapping[str, str] = {}

    @property
    def needs(self) -> Mapping[str, float]:
        """Resources of which an agent takes a trace only, so that it runs on a node that has them."""
        return {f"accelerator_type:{self.accelerator}": 0.001} if self.accelerator else {}

    def list_holdings(self, devices: int, cpus: int = 0, memory_bytes: int = 0) -> dict[str, float]:
        """Return the resources of Ray that an agent holds.

        Args:
            cpus: how many processors it asks for itself; 0: those of its devices.
            memory_bytes: how much memory it asks for itself; 0: that of its devices.
        """
        found = {CPU: float(cpus or devices * self.cpus_per_device)}
        if self.resource != CPU:
            found[self.resource] = float(devices)
        if memory := memory_bytes or devices * self.memory_bytes_per_device:
            found[MEMORY] = float(memory)
        return found


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the engine, which `RAY` describes; ``command`` has the same path here and on nodes."""

    address: str = "auto"
    python: str = ELASTANE_COMMAND[0]
    command: tuple[str, ...] = ELASTANE_COMMAND
    setup: str = ""
    answer_s: float = ANSWER_S


def decode_ray_pool(options: Mapping[str, str]) -> RayPool:
    return decode_pool("ray", RayPool, options, {"labels": ("labels", parse_labels)})


def decode_ray_options(options: Mapping[str, str]) -> RayOptions:
    return decode_engine("ray", RayOptions, options, {})
