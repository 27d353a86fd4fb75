"""Counts the healthy members that the coordinator kills, against the number that broken links justify."""

from collections.abc import Iterable, Mapping
from itertools import combinations

from elastane.run.nouns.membership import WorkerId
from tests.run.simulator.checkers import expect
from tests.run.simulator.process import WorkerProcess

Links = frozenset[frozenset[WorkerId]]


class KillCheck:
    """Checks that the coordinator kills no more members than needed, so that no broken link is left.

    A worker that has not been a member yet must never cost a member, so links to it justify no kill.

    Args:
        workers: every worker of the history, dead ones included.
        prompt: all workers report a fault within a fraction of a second, so the coordinator can know all
            broken links when it decides. Otherwise each kill must still explain a broken link of its own.
    """

    def __init__(self, workers: Mapping[WorkerId, WorkerProcess], *, prompt: bool) -> None:
        self._workers = workers
        self._prompt = prompt
        self._killed: list[WorkerId] = []
        self._faults: list[Links] = []

    def record_broken(self, links: Iterable[frozenset[WorkerId]]) -> None:
        """Record the links between living workers that one fault breaks."""
        links = frozenset(link for link in links if all(self._is_healthy(worker) for worker in link))
        if links:
            self._faults.append(links)

    def check(self, worker: WorkerId) -> None:
        """Check an order to kill a worker, before it is carried out."""
        if self._leaves(worker) or not self._is_healthy(worker) or not self._has_joined(worker):
            return
        self._killed.append(worker)
        count = count_needed if self._prompt else count_most
        needed = sum(count(frozenset(filter(self._is_of_members, links))) for links in self._faults)
        expect(
            len(self._killed) <= needed,
            f"the coordinator kills healthy members {self._killed}; {needed} kills leave no broken link",
        )

    def _leaves(self, worker: WorkerId) -> bool:
        """Return whether a worker has left training, or its own generation names it among the leavers."""
        process = self._workers[worker]
        generation = process.member.generation
        return process.state == "leaving" or (generation is not None and worker not in generation)

    def _is_healthy(self, worker: WorkerId) -> bool:
        return self._workers[worker].alive and not self._workers[worker].paused

    def _has_joined(self, worker: WorkerId) -> bool:
        return self._workers[worker].member.works_in > 0

    def _is_of_members(self, link: frozenset[WorkerId]) -> bool:
        return all(self._has_joined(worker) for worker in link)


def count_needed(links: Links) -> int:
    """Return the size of the smallest set of workers without which no broken link is left."""
    workers = sorted(frozenset().union(*links))
    for size in range(len(workers)):
        if any(
            all(link & removed for link in links) for removed in map(frozenset, combinations(workers, size))
        ):
            return size
    return len(workers)


def count_most(links: Links) -> int:
    """Return the size of the largest set of workers that, removed one by one, explain a link each."""
    groups: list[frozenset[WorkerId]] = []
    for link in links:
        touched = [group for group in groups if group & link]
        groups = [group for group in groups if not group & link]
        groups.append(link.union(*touched))
    return sum(len(group) - 1 for group in groups)
