"""Data that is bound to sites, by the records of a run: where it was read, and the rounds without it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from elastane.run.nouns.records import AbsentSites, EventLine, LedgerLine
from elastane.run.nouns.sites import list_site_ranks
from elastane.run.nouns.spec import Pinned
from elastane.run.observability.coverage import LedgerProblem


def read_worker_sites(events: Iterable[EventLine]) -> dict[int, frozenset[str]]:
    """Return the sites of each worker that has joined, as the events name them."""
    return {
        worker: frozenset(str(event.detail.get("sites") or "").split(","))
        for event in events
        if event.kind == "worker.joined"
        for worker in event.workers
    }


def find_site_problems(
    ledger: Iterable[LedgerLine], pinned: Pinned, sites: Mapping[int, Collection[str]]
) -> Iterable[LedgerProblem]:
    """Find samples that were read at another site than theirs, and rounds that are not what sites computed.

    Args:
        sites: of each worker.
    """
    for line in ledger:
        for text in _list_problems(line, pinned, sites):
            yield LedgerProblem("sites", text, line.step)


def _list_problems(line: LedgerLine, pinned: Pinned, sites: Mapping[int, Collection[str]]) -> Iterable[str]:
    ranks = range(pinned.virtual_ranks)
    left_out = list_site_ranks(pinned.rank_sites, line.absent)
    if unknown := sorted(set(line.absent) - set(pinned.rank_sites)):
        yield f"the round left out {', '.join(unknown)}, which has no data in this run"
    if line.absent and (pinned.absent != "skip" or len(left_out) == len(ranks)):
        yield f"the round left out {', '.join(line.absent)}, which this run does not do"
    for worker, spans in line.workers.items():
        for rank in (rank for start, stop in spans for rank in range(start, stop) if rank in ranks):
            if pinned.rank_sites[rank] not in sites.get(worker, ()):
                yield (
                    f"virtual rank {rank} is bound to site {pinned.rank_sites[rank]}, and worker {worker} at "
                    f"{', '.join(sorted(sites.get(worker, ()))) or 'no known site'} computed it"
                )
    for rank in ranks:
        start, stop = line.samples.shards.get(rank, (0, 0))
        expected = 0 if rank in left_out else pinned.samples_per_rank
        if stop - start != expected:
            yield f"virtual rank {rank} has read {stop - start} samples, expected {expected}"


def count_absences(ledger: Sequence[LedgerLine]) -> tuple[str, ...]:
    """Say how many rounds have left out each site."""
    counts = Counter(site for line in ledger for site in line.absent)
    return tuple(
        f"site {site} was left out of {count} of {len(ledger)} rounds"
        for site, count in sorted(counts.items())
    )


def collect_absences(ledger: Iterable[LedgerLine]) -> tuple[AbsentSites, ...]:
    """Return the sites that rounds have left out, one entry for consecutive rounds without the same ones."""
    found: list[AbsentSites] = []
    for line in ledger:
        last = found[-1] if found else None
        if last is not None and (last.last, last.sites) == (line.step - 1, line.absent):
            found[-1] = AbsentSites(last.first, line.step, last.sites)
        elif line.absent:
            found.append(AbsentSites(line.step, line.step, line.absent))
    return tuple(found)
