"""Bound data: each site has a dataset of its own, which is read at that site only.

The virtual ranks are divided among the sites, in the order of their names. Those of a site share its
dataset: the j-th of n reads every n-th sample of the shuffled epoch. It begins the next epoch when it has
read its part, so each sample of a site is read once in each of the site's epochs, and sites with little data
begin theirs more often. The position of a virtual rank is the number of its samples since the run began.

Positions are committed with the round. In a round that leaves a site out, those of its virtual ranks do not
move, so that no sample is lost.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from elastane.common.errors import BadInput
from elastane.run.nouns.membership import SITE_NAME, SiteName
from elastane.run.nouns.records import Samples
from elastane.run.nouns.sites import AbsentRule, list_site_ranks
from elastane.run.protocol.actions import BeginRound
from elastane.run.protocol.messages import RoundOutcome
from elastane.run.protocol.sampling import (
    Cursor,
    StreamPosition,
    decode_positions,
    derive_loading_key,
    encode_cursor,
    find_sample_index,
    hash_stream_sample,
)
from elastane.run.worker.data.batch_sources import (
    MASK,
    Batch,
    BatchPlan,
    BatchSource,
    Collate,
    MapDataset,
    collate_default,
    fetch_samples,
    measure_length,
)
from elastane.run.worker.data.dataset_checks import check_positions
from elastane.run.worker.data.determinism import seed_everything, use_one_thread
from elastane.run.worker.data.epoch_order import Order
from elastane.run.worker.data.fingerprint import digest_dataset
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.values import describe_value

SiteData: TypeAlias = Mapping[SiteName, MapDataset | Callable[[], MapDataset]]
"""The dataset of each site, or a function that opens it, which only workers of the site call."""


def check_site_data(data: SiteData, absent: AbsentRule | None, copies: int | None) -> AbsentRule:
    """Return what rounds do without a site.

    Args:
        data: what the script has passed to ``run.rounds``.
        absent: likewise; None: nothing.
        copies: of the optimizer state; None: every worker keeps all of it.

    Raises:
        BadInput: a name cannot be that of a site, or the rule cannot be followed.
    """
    wrong = [name for name in data if not isinstance(name, str) or not re.fullmatch(SITE_NAME, name)]
    if wrong or not data:
        what = f"the site {describe_value(wrong[0])}" if wrong else "no site"
        raise BadInput(
            f"run.rounds was given data of {what}",
            means="a dict of datasets names the site of each one, as elastane join --site does, with small "
            "letters, digits, dots and dashes",
            do='pass such a dict, as in run.rounds({"eu-1": open_payments_of_eu}, ...); or one dataset that '
            "every site may read",
        )
    if absent not in (None, "wait", "skip"):
        raise BadInput(
            f"run.rounds was given an invalid absent: {describe_value(absent)}",
            means="it says what a round does without a site: wait, or leave its virtual ranks out",
            do='pass absent="wait", the default, or absent="skip"',
        )
    if absent == "skip" and copies is not None:
        raise BadInput(
            f'absent="skip" needs --copies all, not {copies}',
            means="a site that is left out might hold the only copy of some state",
            do='start the run with --copies all, or pass absent="wait"',
        )
    return absent or "wait"


def refuse_for_sites(*, loaders: int, order: Order | None, delay: int, absent: AbsentRule) -> None:
    """Refuse arguments of ``run.rounds`` that bound data does not have.

    Raises:
        BadInput: one was given.
    """
    for name, is_given in (("loaders", loaders > 0), ("order", order is not None)):
        if is_given:
            raise BadInput(
                f"run.rounds was given {name}= with data of several sites",
                means="each site reads its data in an order of its own, in the worker itself",
                do=f"leave {name} out",
            )
    if delay and absent == "skip":
        raise BadInput(
            "run.rounds was given delay=1 and absent='skip'",
            means="a site that is absent in the next round could not hand over what it has changed",
            do="leave delay out, or pass absent='wait'",
        )


def refuse_absent(absent: AbsentRule | None) -> None:
    """Refuse a rule for absent sites if the data may move: other sites compute what an absent one would have.

    Raises:
        BadInput: a rule was given.
    """
    if absent is not None:
        raise BadInput(
            f"run.rounds was given absent={absent!r} with one dataset",
            means="every site may read it, so others compute the virtual ranks of an absent site, exactly",
            do='leave absent out; or bind the data to sites: run.rounds({"eu-1": ..., "us-1": ...}, ...)',
        )


class BoundBatchSource(BatchSource):
    """Loads the batches of virtual ranks at this worker's sites.

    Args:
        data: the dataset of each site.
        plan: with the site of each virtual rank.
        sites: of which this worker may read the data.
        collate: builds a batch from a list of samples; None: PyTorch's default.

    Attributes:
        lengths: the samples of each of these sites.
        site_digests: the digests of their datasets.
    """

    def __init__(
        self, data: SiteData, plan: BatchPlan, sites: Iterable[SiteName], collate: Collate | None
    ) -> None:
        super().__init__(plan.seed)
        self._plan, self._collate = plan, collate or collate_default
        self._datasets = {site: _open_dataset(data[site]) for site in sorted(set(sites).intersection(data))}
        self._ranks = {site: sorted(list_site_ranks(plan.rank_sites, (site,))) for site in self._datasets}
        self.lengths = {
            site: _measure(site, data, len(self._ranks[site])) for site, data in self._datasets.items()
        }
        self.site_digests = {site: digest_dataset(data, plan.seed) for site, data in self._datasets.items()}
        self._positions: tuple[StreamPosition, ...] = decode_positions({}, plan.virtual_ranks)
        # The round that begins with these positions; 0: none has begun.
        self._step = 0

    def seal_digests(self, seal: Callable[[str, int], str]) -> None:
        """Let only workers of a site compare the digest of its dataset with a guess.

        Args:
            seal: of a text, by the secret of a virtual rank's site.
        """
        self.site_digests = {
            site: seal(digest, self._ranks[site][0]) for site, digest in self.site_digests.items()
        }

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """The virtual ranks that this worker may compute."""
        return tuple(sorted(rank for ranks in self._ranks.values() for rank in ranks))

    def find_cursor(self, virtual_rank: int) -> str:
        """Return the position of a virtual rank after the current round."""
        samples = self._plan.samples_per_rank
        return encode_cursor(Cursor(position=self._positions[virtual_rank].position + samples))

    def can_check(self, virtual_rank: int) -> bool:
        return self._plan.rank_sites[virtual_rank] in self._datasets

    def expect(self, begin: BeginRound, ranks: Sequence[int]) -> None:
        self._positions = decode_positions(begin.cursors, self._plan.virtual_ranks)
        self._step = begin.step

    def count_samples(self, step: int) -> int:
        return self._plan.global_batch

    def find_epoch(self, step: int) -> int:
        return 0

    def describe_samples(self, outcome: RoundOutcome, before: dict[int, str]) -> Samples:
        ranks = self._plan.virtual_ranks
        begins, ends = (
            [one.position for one in decode_positions(cursors, ranks)]
            for cursors in (before, outcome.cursors)
        )
        shards = {
            rank: (start, stop)
            for rank, (start, stop) in enumerate(zip(begins, ends, strict=True))
            if stop > start
        }
        return Samples(0, sum(begins), sum(ends), outcome.samples, f"{outcome.checksum:016x}", shards)

    def is_finished(self, outcome: RoundOutcome) -> bool:
        return outcome.step >= self._plan.steps

    def has_ended_epoch(self, outcome: RoundOutcome) -> bool:
        return False

    def close(self) -> None:
        pass

    @runs_script
    def _load_batch(self, step: int, virtual_rank: int) -> Batch:
        part, rank = virtual_rank, self._plan.find_rank(virtual_rank)
        site = self._plan.rank_sites[rank]
        if site not in self._datasets:
            return Batch(None, 0, 0)
        place, size = self._plan.list_parts(rank).index(part), self._plan.microbatch
        # A round before this one is made again only in a run that leaves no site out, so all positions moved.
        earlier = max(0, self._step - step) * self._plan.samples_per_rank
        first = self._positions[rank].position - earlier + place * size
        positions = range(first, first + size)
        indices = [self._find_index(site, rank, position) for position in positions]
        with use_one_thread():
            seed_everything(derive_loading_key(self._plan.seed, step, part))
            inputs = self._collate(fetch_samples(self._datasets[site], indices))
        checksum = sum(hash_stream_sample(rank, position) for position in positions) & MASK
        return Batch(inputs, size, checksum)

    def _find_index(self, site: SiteName, rank: int, position: int) -> int:
        """Return the index in the site's dataset of the sample at a position of a virtual rank."""
        ranks, length = self._ranks[site], self.lengths[site]
        epoch, place = divmod(position, len(range(ranks.index(rank), length, len(ranks))))
        return find_sample_index(place * len(ranks) + ranks.index(rank), length, self._plan.seed, epoch)


@runs_script
def _open_dataset(data: MapDataset | Callable[[], MapDataset]) -> MapDataset:
    opened = data() if callable(data) and not hasattr(data, "__getitem__") else data
    check_positions(opened, "run.rounds")
    return opened  # type: ignore[return-value]


def _measure(site: SiteName, dataset: MapDataset, ranks: int) -> int:
    length = measure_length(dataset)
    if length < ranks:
        raise BadInput(
            f"the dataset of site {site} has {length} samples for {ranks} virtual ranks",
            means="each virtual rank of a site reads a part of its dataset",
            do="use fewer ranks, or more samples",
        )
    return length
