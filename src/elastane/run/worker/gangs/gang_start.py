"""What the processes of a gang share from their start on: sockets, and a store for ``torch.distributed``."""

import socket
from collections.abc import Mapping, Sequence

from elastane.run.scripts.worlds.environment import RankPlace, WorldAddress, build_torch_environment
from elastane.run.worker.gangs.seat import Seat
from elastane.run.worker.world_store import WorldStore, start_store


class GangStart:
    """The beginning of one gang, in the fork server; closed after all processes are forked.

    Args:
        processes: the number of processes, at least 2.
        private: descriptors of the fork server that the process of the store must not keep.

    Raises:
        OSError: there is no port, socket or process left.
    """

    def __init__(self, processes: int, private: Sequence[int]) -> None:
        self._processes = processes
        self.store: WorldStore = start_store(private)
        # The first end belongs to process 0.
        self._pairs = [socket.socketpair() for _ in range(processes - 1)]

    def take_seat(self, number: int) -> Seat:
        """Return the seat of the forked process with this number; close the sockets of the others."""
        if number == 0:
            own = tuple(first.detach() for first, _ in self._pairs)
        else:
            own = (self._pairs[number - 1][1].detach(),)
        self.close()
        return Seat(number, self._processes, own)

    def build_environment(self, number: int, run: str, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the process with this number, as torchrun sets them."""
        place, address = RankPlace(number, self._processes), WorldAddress(run, restarts=0)
        return build_torch_environment(place, address, inherited) | {"MASTER_PORT": str(self.store.port)}

    def close(self) -> None:
        """Close the sockets that this process still has."""
        for pair in self._pairs:
            for one in pair:
                one.close()
