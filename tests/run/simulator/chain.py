"""The check that the generations of a run are one chain, whichever coordinators proposed them."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from elastane.run.machines.claims.history import list_generations
from elastane.run.machines.claims.records import HeldSlot
from elastane.run.nouns.membership import Generation, WorkerId
from elastane.run.protocol.messages import RoundOutcome
from tests.run.simulator.checkers import expect


class ChainCheck:
    """Watches the commits of all workers.

    A commit needs the votes of all members, so only the last round of a generation may be committed by one of
    its members alone, and once more in the next generation. Two common rounds are two histories.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, set[int]] = defaultdict(set)
        self._stops: dict[int, dict[WorkerId, bool]] = defaultdict(dict)
        self._unplanned: set[tuple[int, int]] = set()

    def check_commit(self, worker: WorkerId, outcome: RoundOutcome, generation: Generation) -> None:
        """Check a commit of a worker, at the moment when it happens."""
        number = generation.number
        self._rounds[number].add(outcome.round)
        for other, rounds in self._rounds.items():
            common = rounds & self._rounds[number] if other != number else set()
            expect(
                len(common) <= 1,
                f"generations {other} and {number} have both committed rounds {sorted(common)}",
            )
        self._stops[outcome.round][worker] = outcome.stop
        if not generation.planned:
            self._unplanned.add((generation.term, number))

    def check_end(self, held: Sequence[HeldSlot] | None, finished: Collection[WorkerId]) -> None:
        """Check the order of the claims, and that all workers that finished know one history.

        Args:
            held: the slots of the claim list; None: nothing was claimed.
            finished: the workers that the coordinator dismissed.
        """
        for round_, stops in self._stops.items():
            known = {stop for worker, stop in stops.items() if worker in finished}
            expect(len(known) <= 1, f"round {round_} stops the run for some of its workers only: {stops}")
        if held is None:
            return
        claims = [(claim.term, claim.number) for claim in list_generations(held)]
        expect(claims == sorted(claims, key=lambda claim: claim[1]), f"the claims are out of order: {claims}")
        missing = self._unplanned - set(claims)
        expect(not missing, f"generations {sorted(missing)} (term, number) trained without a claim")
