"""The options of the engine and of its pools, decoded."""

from collections.abc import Mapping

import msgspec

from elastane.cluster.engines.decoded_options import Readers, decode_engine, decode_pool
from elastane.cluster.nouns.agents import ELASTANE_COMMAND
from elastane.cluster.nouns.engine_options import parse_time_limit_s

ANSWER_S = 2.0
"""How long a program of Slurm may take, unless the options say otherwise. A controller that works answers in
some hundredths of a second; one that hangs would hold the programs for MessageTimeout, by default 10 s."""


class SlurmPool(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs of a pool ask of Slurm; `SLURM` describes the options. Empty or None: left to Slurm.

    Args:
        time_s: is rounded up to minutes.
        gres: empty: processors are the devices.
        cpus_per_device: unless the agent asks for a number of them; None: one without ``gres``, and else what
            Slurm gives.
        memory_bytes_per_device: unless the agent asks for some; what Slurm gives may be all of a machine.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: str = ""
    time_s: float | None = None
    gres: str = ""
    cpus_per_device: int | None = None
    memory_bytes_per_device: int | None = None

    def count_cpus(self, devices: int) -> int | None:
        """Return the processors that come with devices; None: those that Slurm gives."""
        if self.cpus_per_device is not None:
            return devices * self.cpus_per_device
        return None if self.gres else devices


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the engine, which `SLURM` describes.

    Args:
        command: words that start Elastane on a machine of the cluster, at the same path as here.
        setup: runs in the root folder, with the environment of a login.
        container: empty: agents cannot have images.
        mounts: ``SOURCE:PATH`` or ``SOURCE:PATH:ro``.
        output: empty: the file that the request for the agent names, if any.
        programs: the folder of the programs of Slurm; empty: they are found in ``PATH``.
        accounting: whether an agent also counts as started if only the accounting of Slurm (``sacct``)
            remembers its job. Slurm itself forgets a job some minutes after its end (MinJobAge).
    """

    command: tuple[str, ...] = ELASTANE_COMMAND
    setup: str = ""
    container: str = ""
    mounts: tuple[str, ...] = ()
    output: str = ""
    conf: str = ""
    programs: str = ""
    answer_s: float = ANSWER_S
    accounting: bool = False


def decode_slurm_pool(options: Mapping[str, str]) -> SlurmPool:
    return decode_pool("slurm", SlurmPool, options, {"time": ("time_s", parse_time_limit_s)})


def decode_slurm_options(options: Mapping[str, str]) -> SlurmOptions:
    readers: Readers = {
        "containerMounts": ("mounts", _complete_mounts),
        "bin": ("programs", str),
        "accounting": ("accounting", lambda text: text == "yes"),
    }
    return decode_engine("slurm", SlurmOptions, options, readers)


def _complete_mounts(text: str) -> tuple[str, ...]:
    """Return mounts with both of their paths: a directory without a second one has the same path inside."""
    return tuple(mount if ":" in mount else f"{mount}:{mount}" for mount in text.split(","))
