"""The machines that Slurm shows, and how many of their devices agents may use. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from elastane.cluster.engines.slurm.job_queue import SEPARATOR, QueuedJob
from elastane.cluster.engines.slurm.options import SlurmPool
from elastane.cluster.nouns.agents import SeenNode

COLUMNS = {
    "NodeList": 128,
    "Partition": 64,
    "StateComplete": 160,
    "CPUsState": 32,
    "Gres": 512,
    "GresUsed": 512,
    "Features": 1024,
}
"""Fields of ``sinfo`` and their widths: without a width it cuts them after 20 characters."""
FORMAT = ",".join(f"{name}:{width}{SEPARATOR}" for name, width in COLUMNS.items())

USABLE = frozenset({"idle", "mixed", "allocated"})
UNUSABLE = frozenset(
    {
        "blocked",
        "drain",
        "drained",
        "draining",
        "fail",
        "failing",
        "invalid",
        "invalid_reg",
        "maint",
        "maintenance",
        "not_responding",
        "no_respond",
        "powering_down",
        "reboot_issued",
        "reboot_requested",
        "reserved",
    }
)
"""Flags of a machine on which no job begins."""
RESERVED = frozenset({"maint", "maintenance", "reserved"})
"""Those of the machines of a reservation, which are usable in it."""
DEFAULT_MARK = "*"
"""Follows the name of the default partition."""

_STATE = re.compile(r"[a-z_]+(?:\+[a-z_]+)*")
_CPUS = re.compile(r"([0-9]{1,9})/([0-9]{1,9})/([0-9]{1,9})/([0-9]{1,9})")
_DETAILS = re.compile(r"\([^()]*\)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_COUNT = re.compile(r"[0-9]{1,9}")
_RESERVED_NODES = re.compile(r"\bNodes=([A-Za-z0-9_.,\[\]-]{1,65536})(?=\s|\Z)")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in one partition.

    Args:
        is_default: whether the partition is the default one.
        flags: words about its state.
        idle_cpus: processors that jobs could get; others are busy, down or kept for the system.
        gres, busy_gres: generic resources of the machine, and those that jobs hold, as Slurm writes them.
        features: that a constraint can name.
    """

    name: str
    is_default: bool
    flags: frozenset[str]
    busy_cpus: int
    idle_cpus: int
    gres: str
    busy_gres: str
    features: frozenset[str]


def parse_machines(output: str) -> tuple[Machine, ...]:
    """Return the machines of an output of ``sinfo --Node`` with `FORMAT`; an unreadable row is left out."""
    return tuple(machine for row in output.split("\n") if (machine := _parse_machine(row)) is not None)


def _parse_machine(row: str) -> Machine | None:
    fields = [field.strip() for field in row.split(SEPARATOR)]
    if len(fields) != len(COLUMNS) + 1:
        return None
    name, partition, state, cpus, gres, busy_gres, features, _ = fields
    counts = _CPUS.fullmatch(cpus)
    if counts is None or not _NAME.fullmatch(name) or not _STATE.fullmatch(state):
        return None
    return Machine(
        name=name,
        is_default=partition.endswith(DEFAULT_MARK),
        flags=frozenset(state.split("+")),
        busy_cpus=int(counts[1]),
        idle_cpus=int(counts[2]),
        gres=gres,
        busy_gres=busy_gres,
        features=frozenset(features.split(",")),
    )


def parse_reserved_nodes(output: str) -> str:
    """Return the machines of ``scontrol show reservation``, as Slurm writes a list; empty: there are none."""
    match = _RESERVED_NODES.search(output)
    return match[1] if match is not None else ""


def list_pool_nodes(
    name: str, pool: SlurmPool, machines: Iterable[Machine], own: Iterable[QueuedJob]
) -> tuple[SeenNode, ...]:
    """Return the machines of a pool with the devices that the cluster may use; those without are left out.

    Memory does not count: Slurm may be set up to give all of it to one job.

    Args:
        machines: of its partition, or all if it names none; a machine may occur in several partitions.
        own: jobs of the cluster's agents.
    """
    held: dict[str, list[QueuedJob]] = defaultdict(list)
    for job in own:
        if job.stage in ("running", "leaving"):
            held[job.node].append(job)
    found = {
        machine.name: count_devices_for_agents(machine, pool, held[machine.name])
        for machine in machines
        if _is_in_pool(machine, pool)
    }
    return tuple(
        SeenNode(name=node, pool=name, devices=devices) for node, devices in sorted(found.items()) if devices
    )


def _is_in_pool(machine: Machine, pool: SlurmPool) -> bool:
    barred = UNUSABLE - RESERVED if pool.reservation else UNUSABLE
    return (
        bool(machine.flags & USABLE)
        and not machine.flags & barred
        and (bool(pool.partition) or machine.is_default)
        and machine.name not in pool.exclude.split(",")
        and meets_constraint(machine.features, pool.constraint)
    )


def meets_constraint(features: frozenset[str], constraint: str) -> bool:
    """Return whether a machine with these features meets a constraint of a pool."""
    if not constraint:
        return True
    if "|" in constraint:
        return not features.isdisjoint(constraint.split("|"))
    return features.issuperset(constraint.split("&"))


def count_devices_for_agents(machine: Machine, pool: SlurmPool, own: Sequence[QueuedJob]) -> int:
    """Return the devices of a machine less those that jobs of others hold.

    Args:
        own: jobs of the cluster's agents on this machine.
    """
    limits = []
    if cpus := pool.count_cpus(1):
        others = max(0, machine.busy_cpus - sum(job.cpus for job in own))
        limits.append((machine.busy_cpus + machine.idle_cpus - others) // cpus)
    if pool.gres:
        held = count_gres(machine.busy_gres, pool.gres) - sum(
            count_gres(job.devices, pool.gres, untyped=True) for job in own
        )
        limits.append(count_gres(machine.gres, pool.gres) - max(0, held))
    return max(0, min(limits))


def count_gres(text: str, wanted: str, *, untyped: bool = False) -> int:
    """Return how many units of a generic resource a text of Slurm names: ``gpu:a100:4(S:0-1),nic:2``.

    A name such as ``gpu:a100`` may have a type. With ``untyped``, units without a type count for each type: a
    job need not name the type that it gets.
    """
    name, _, kind = wanted.partition(":")
    counts: Counter[str] = Counter()
    for part in _DETAILS.sub("", text).split(","):
        words = part.strip().removeprefix("gres/").removeprefix("gres:").replace("=", ":").split(":")
        if words[0] == name:
            units = words.pop() if len(words) > 1 and _COUNT.fullmatch(words[-1]) else "1"
            counts[words[1] if len(words) > 1 else ""] += int(units)
    if not kind:
        return counts.total()
    return counts[kind] + (counts[""] if untyped else 0)
