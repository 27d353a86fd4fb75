"""The sizes of the logs of a world, which show whether its processes print anything."""

from collections.abc import Iterable

from elastane.run.nouns.rundir import RunDir
from elastane.run.scripts.agent.rank_requests import name_rank_log
from elastane.run.scripts.worlds.state import LocalRank


class OutputSizes:
    """Remembers how large each log was.

    Args:
        run_dir: of the run.
        processes: of each worker.
    """

    def __init__(self, run_dir: RunDir, processes: int) -> None:
        self._run_dir, self._processes = run_dir, processes
        self._sizes: dict[LocalRank, int] = {}

    def update(self, ranks: Iterable[LocalRank]) -> bool:
        """Return whether a log of these processes has another size than at the last call."""
        sizes = {rank: self._read_size(rank) for rank in ranks}
        changed = any(size != self._sizes.get(rank) for rank, size in sizes.items())
        self._sizes = sizes
        return changed

    def _read_size(self, rank: LocalRank) -> int:
        log = self._run_dir.log(name_rank_log(rank.worker, rank.local, self._processes))
        try:
            return log.lstat().st_size
        except OSError:
            return 0
