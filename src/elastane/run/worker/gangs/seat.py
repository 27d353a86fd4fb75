"""The seat of a process in its worker, which the fork server gives it."""

import msgspec


class Seat(msgspec.Struct, frozen=True):
    """The number of this process, and its sockets to the others of its worker.

    Args:
        number: of this process; 0: it has the protocol of the worker.
        processes: the number of processes of the worker.
        sockets: of process 0, the descriptors of the sockets to the others, in their order; of another one,
            that to process 0.
    """

    number: int = 0
    processes: int = 1
    sockets: tuple[int, ...] = ()

    @property
    def is_head(self) -> bool:
        """This process has the protocol of a worker of several processes."""
        return self.processes > 1 and self.number == 0

    @property
    def follows(self) -> bool:
        """Another process has the protocol of the worker."""
        return self.number > 0


LONE_SEAT = Seat()
"""The seat of the only process of a worker."""
