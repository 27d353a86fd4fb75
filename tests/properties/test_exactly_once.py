"""Each sample of each epoch counts once, whatever the dataset, the batch and the history of the members.

Members compute what the protocol deals them, generation after generation; some die with their share half
done, and what they leave is dealt to the others. Now and then everything is gone and the run goes on from the
state after an earlier step, with the ledger put back to it. The ledger alone is judged in the end.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from elastane.api.records import LedgerLine, Samples
from elastane.api.spec import Pinned
from elastane.observability.coverage import SampleRules
from elastane.observability.verify import verify_ledger
from elastane.protocol import cursors
from elastane.protocol.commit import compute_outcome
from elastane.protocol.cursors import Cursor, hash_stream_sample
from elastane.protocol.messages import Leaf
from elastane.protocol.sampling import (
    count_steps_per_epoch,
    find_sample_index,
    find_step_samples,
    hash_sample,
)
from elastane.protocol.shares import assign_missing, assign_shares
from elastane.protocol.tree import expand_spans

RULES = SampleRules(find_sample_index, hash_sample, hash_stream_sample)
MASK = (1 << 64) - 1


def pinned(length, virtual_ranks, microbatch, steps, seed):
    return Pinned(
        script_digest="",
        virtual_ranks=virtual_ranks,
        global_batch=virtual_ranks * microbatch,
        microbatch=microbatch,
        dataset_length=length,
        steps=steps,
        seed=seed,
        threads=1,
        convergence="exact",
        copies=None,
        parameters=1,
        blocks=1,
        layout_digest="",
        optimizer="",
        versions={},
    )


@dataclass
class History:
    """Who is there in a step, who of them dies in it, and how far a run has to go back after it."""

    chance: Random
    virtual_ranks: int
    resumes: int = 3
    worker: int = 0
    members: list[int] = field(default_factory=list)

    def shares(self):
        """Who computes what in the next step; every virtual rank once, the dead's work by the others."""
        self._change()
        speeds = tuple(self.chance.uniform(0.5, 2.0) for _ in self.members)
        spans = assign_shares(self.virtual_ranks, speeds)
        shares = {worker: expand_spans((span,)) for worker, span in zip(self.members, spans, strict=True)}
        if len(self.members) > 1 and self.chance.random() < 0.3:
            dead = self.chance.choice(self.members)
            self.members.remove(dead)
            shares.pop(dead)
            claims = dict(shares)
            alive = dict.fromkeys(self.members, 1.0)
            missing = assign_missing(self.virtual_ranks, claims, alive)
            shares = {
                worker: claims[worker] | expand_spans(missing.get(worker, ())) for worker in self.members
            }
        return shares

    def resumed_from(self, step):
        """The step whose state the run goes on from: the one just made, or that of an earlier checkpoint."""
        if not self.resumes or self.chance.random() > 0.2:
            return step
        self.resumes -= 1
        self.members = []
        return self.chance.randint(0, step)

    def _change(self):
        most = min(4, self.virtual_ranks)
        wanted = self.chance.randint(1, most)
        while len(self.members) > wanted:
            self.members.remove(self.chance.choice(self.members))
        while len(self.members) < wanted:
            self.members.append(self.worker)
            self.worker += 1
        self.members.sort()


def line_of(step, outcome, samples):
    return LedgerLine(
        step=step,
        generation=step,
        workers=outcome.shares,
        samples=samples,
        loss=1.0,
        loss_hex=(1.0).hex(),
        time=0.0,
        seconds={},
    )


@given(
    length=st.integers(1, 120),
    virtual_ranks=st.integers(1, 9),
    microbatch=st.integers(1, 5),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**63),
    chance=st.integers(0, 2**32).map(Random),
)
def test_a_map_style_dataset(length, virtual_ranks, microbatch, epochs, seed, chance):  # noqa: PLR0917
    batch = virtual_ranks * microbatch
    steps = epochs * count_steps_per_epoch(length, batch)
    history, ledger, weight = History(chance, virtual_ranks), [], 0.0
    while len(ledger) < steps:
        step = len(ledger) + 1
        dealt = find_step_samples(step, length, batch)
        leaves = {}
        for worker, ranks in history.shares().items():
            for rank in ranks:
                assert rank not in leaves
                indices = [
                    find_sample_index(p, length, seed, dealt.epoch)
                    for p in dealt.list_positions(rank, microbatch)
                ]
                checksum = sum(map(hash_sample, indices)) & MASK
                share = len(indices) / dealt.count
                leaves[rank] = Leaf(rank, worker, 1.0, share, len(indices), checksum)
        outcome = compute_outcome(step, step, leaves, {})
        weight = outcome.weight
        assert abs(weight - 1) < 1e-9, "the shares of a step's samples add up to one, its last step included"
        assert outcome.filled == -(-dealt.count // microbatch)
        samples = Samples(dealt.epoch, dealt.start, dealt.stop, outcome.samples, f"{outcome.checksum:016x}")
        ledger.append(line_of(step, outcome, samples))
        del ledger[history.resumed_from(step) :]
    verdict = verify_ledger(
        pinned(length, virtual_ranks, microbatch, steps, seed), ledger, RULES, finished=True
    )
    assert verdict.problems == ()
    assert [(e.once, e.never, e.repeated, e.finished) for e in verdict.epochs] == [
        (length, 0, 0, True)
    ] * epochs


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any),
    microbatch=st.integers(1, 4),
    epochs=st.integers(1, 3),
    chance=st.integers(0, 2**32).map(Random),
)
def test_a_stream_of_uneven_shards(lengths, microbatch, epochs, chance):
    size = len(lengths)
    history, ledger = History(chance, size), []
    kept = [{}]  # where streams stand after each step, as checkpoints have it
    while True:
        before = kept[-1]
        begun = cursors.find_next_positions(before, size)
        if begun[0].epoch == epochs and all(place.position == 0 for place in begun):
            break
        leaves = {}
        for worker, ranks in history.shares().items():
            for rank in ranks:
                assert rank not in leaves
                leaves[rank] = drawn(rank, worker, begun[rank], lengths[rank], microbatch)
        outcome = compute_outcome(len(ledger) + 1, len(ledger) + 1, leaves, {}, before)
        assert outcome.samples, "no step is empty"
        after = cursors.decode_positions(outcome.cursors, size)
        moved = {v: (a.position, b.position) for v, (a, b) in enumerate(zip(begun, after, strict=True))}
        moved = {v: span for v, span in moved.items() if span[0] != span[1]}
        ended = all(place.ended for place in after)
        checksum = f"{outcome.checksum:016x}"
        samples = Samples(begun[0].epoch, 0, 0, outcome.samples, checksum, shards=moved, ended=ended)
        ledger.append(line_of(len(ledger) + 1, outcome, samples))
        kept.append(outcome.cursors)
        step = history.resumed_from(len(ledger))
        del ledger[step:], kept[step + 1 :]
    seen = {epoch: [] for epoch in range(epochs)}
    for line in ledger:
        seen[line.samples.epoch] += [(v, p) for v, span in line.samples.shards.items() for p in range(*span)]
    whole = [(v, p) for v, length in enumerate(lengths) for p in range(length)]
    assert all(sorted(samples) == whole for samples in seen.values())
    verdict = verify_ledger(pinned(0, size, microbatch, 0, 0), ledger, RULES, finished=True)
    assert verdict.problems == ()
    expected = (sum(lengths), 0, 0, True)
    assert [(e.once, e.never, e.repeated, e.finished) for e in verdict.epochs] == [expected] * epochs


def drawn(rank, worker, place, length, microbatch):
    """A shard's leaf: it knows that it has ended once it has looked beyond its last sample."""
    if place.ended:
        return Leaf(rank, worker)
    stop = min(place.position + microbatch, length)
    cursor = cursors.encode_cursor(Cursor(place.epoch, stop, ended=stop == length))
    checksum = sum(hash_stream_sample(rank, position) for position in range(place.position, stop)) & MASK
    count = stop - place.position
    return Leaf(rank, worker, 1.0, float(count), count, checksum, weighted=True, cursor=cursor)
