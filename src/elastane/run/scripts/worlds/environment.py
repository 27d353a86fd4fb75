"""The environment variables of one process under the contract of torchrun."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastane.run.scripts.worlds.state import LocalRank, World

ROLE = "default"
"""The name of the only role, as torchrun names it."""
LOOPBACK = "127.0.0.1"
DEFAULTS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    # All processes of a run are on this machine, and Gloo need not look for another interface.
    "GLOO_SOCKET_IFNAME": "lo",
}
"""Variables that the user may have set to something else."""
GRACE = "ELASTANE_GRACE_S"
RUN_DIRECTORY = "ELASTANE_RUN_DIR"
"""Where `elastane.integrations.horovod` hands commits over."""


@dataclass(frozen=True, slots=True)
class WorldAddress:
    """What all processes of a world share.

    Args:
        restarts: the number of worlds before this one.
    """

    run: str
    restarts: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a process in its world.

    Args:
        local: its number in its group.
        processes: of each group.
        group: the number of its group.
        groups: of the world.
    """

    local: int
    processes: int
    group: int = 0
    groups: int = 1


def build_rank_environment(
    world: World, rank: LocalRank, address: WorldAddress, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one process of a world, with those that torchrun sets except the port.

    The fork server adds the port, because it opens it.

    Args:
        world: the newest one.
        rank: the process.
        address: of the world.
        inherited: the variables that it has in any case; a default replaces none of them.
    """
    place = RankPlace(rank.local, world.rules.processes, world.workers.index(rank.worker), len(world.workers))
    return build_torch_environment(place, address, inherited, max_restarts=world.rules.max_restarts) | {
        GRACE: f"{world.rules.grace_s:g}"
    }


def build_torch_environment(
    place: RankPlace, address: WorldAddress, inherited: Mapping[str, str], *, max_restarts: int = 0
) -> dict[str, str]:
    """Return the variables that torchrun sets for a process, except the port of the store.

    Args:
        place: of the process.
        address: of its world.
        inherited: the variables that it has in any case; a default replaces none of them.
        max_restarts: how often its world may be replaced after a failure.
    """
    number, size = str(place.group * place.processes + place.local), str(place.groups * place.processes)
    return {name: value for name, value in DEFAULTS.items() if name not in inherited} | {
        "RANK": number,
        "ROLE_RANK": number,
        "LOCAL_RANK": str(place.local),
        "GROUP_RANK": str(place.group),
        "WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(place.processes),
        "GROUP_WORLD_SIZE": str(place.groups),
        "ROLE_NAME": ROLE,
        "MASTER_ADDR": LOOPBACK,
        "TORCHELASTIC_RESTART_COUNT": str(address.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": address.run,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
