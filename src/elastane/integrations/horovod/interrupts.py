"""The two exceptions that interrupt an elastic training function, by their names in Horovod."""


class HorovodInternalError(RuntimeError):
    """An exchange failed, because another process has ended."""


class HostsUpdatedInterrupt(RuntimeError):
    """The number of processes is about to change; all processes have made the same commit.

    Args:
        skip_sync: kept for scripts that read it; the new processes always synchronise.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        self.skip_sync = skip_sync
        super().__init__("the number of processes changes")
