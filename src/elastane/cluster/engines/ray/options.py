"""The options of the engine and of its pools, decoded."""

import shlex
from collections.abc import Mapping

import msgspec

from elastane.cluster.nouns.agents import ELASTANE_COMMAND
from elastane.cluster.nouns.engine_options import check_options
from elastane.cluster.nouns.ray_options import RAY
from elastane.common.durations import parse_duration_s

ANSWER_S = 5.0
"""How long Ray may take to answer, unless the options say otherwise."""
CPU, MEMORY = "CPU", "memory"
UNITS_BYTES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class RayPool(msgspec.Struct, frozen=True, kw_only=True):
    """What agents of a pool ask of Ray.

    Args:
        resource: of which a device is one, or processors.
        cpus_per_device: how many processors of Ray come with a device.
        memory_bytes_per_device: how much memory of Ray comes with a device; 0: Ray does not count it.
        accelerator: type that each node has; empty: any.
        labels: that each node has.
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
    """The options of the engine.

    Args:
        address: of the Ray cluster; ``auto``: the one that Ray finds on this machine.
        python: path of the Python of the Ray cluster.
        command: words that start Elastane on a node, at the same path as here.
        setup: lines of shell before the command.
        answer_s: how long Ray may take to answer, in seconds.
    """

    address: str = "auto"
    python: str = ELASTANE_COMMAND[0]
    command: tuple[str, ...] = ELASTANE_COMMAND
    setup: str = ""
    answer_s: float = ANSWER_S


def decode_ray_pool(options: Mapping[str, str]) -> RayPool:
    """Return the options of a pool."""
    check_options("options", "a pool in an engine of kind ray", options, RAY.pool)
    memory = options.get("memoryPerDevice", "")
    labels = (label.partition("=") for label in options.get("labels", "").split(",") if label)
    return RayPool(
        resource=options.get("resource", RayPool().resource),
        cpus_per_device=int(options.get("cpusPerDevice", "1")),
        memory_bytes_per_device=int(memory[:-1]) * UNITS_BYTES[memory[-1]] if memory else 0,
        accelerator=options.get("accelerator", ""),
        labels={name: value for name, _, value in labels},
    )


def decode_ray_options(options: Mapping[str, str]) -> RayOptions:
    """Return the options of the engine."""
    check_options("options", "an engine of kind ray", options, RAY.engine)
    default = RayOptions()
    return RayOptions(
        address=options.get("address", default.address),
        python=options.get("python", default.python),
        command=tuple(shlex.split(options["command"])) if "command" in options else default.command,
        setup=options.get("setup", ""),
        answer_s=parse_duration_s(options["answer"]) if "answer" in options else ANSWER_S,
    )
