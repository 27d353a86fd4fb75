"""Each sample of each epoch counts once, for any dataset, batch and history of the members.

Members compute the virtual ranks that the protocol assigns them in each generation. Some die in the middle of
their share, and the others get the missing virtual ranks. Sometimes the whole run is lost and resumes from an
earlier step, with the ledger cut there. At the end the test verifies the ledger alone.
"""

from dataclasses import dataclass, field
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.nouns.records import LedgerLine, Samples
from elastane.run.observability.coverage import SampleRules
from elastane.run.observability.verify import verify_ledger
from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.messages import Leaf
from elastane.run.protocol.sampling import (
    Cursor,
    count_steps_per_epoch,
    decode_positions,
    encode_cursor,
    find_next_positions,
    find_sample_index,
    find_step_samples,
    hash_sample,
    hash_stream_sample,
)
from elastane.run.protocol.shares import assign_missing, assign_shares
from elastane.run.protocol.tree import expand_spans
from tests.pinned import SMALL_RUN

RULES = SampleRules(find_sample_index, hash_sample, hash_stream_sample)
MASK = (1 << 64) - 1


def make_pinned(length, virtual_ranks, microbatch, steps, seed):
    return msgspec.structs.replace(
        SMALL_RUN,
        virtual_ranks=virtual_ranks,
        global_batch=virtual_ranks * microbatch,
        microbatch=microbatch,
        dataset_length=length,
        steps=steps,
        seed=seed,
    )


@dataclass
class History:
    """The random members of each step, their deaths, and the steps from which the run resumes."""

    chance: Random
    virtual_ranks: int
    resumes: int = 3
    worker: int = 0
    members: list[int] = field(default_factory=list)

    def draw_shares(self):
        """Return the virtual ranks that each living worker computes in the next step; each rank once."""
        self._change_members()
        speeds = tuple(self.chance.uniform(0.5, 2.0) for _ in self.members)
        spans = assign_shares(self.virtual_ranks, speeds)
        shares = {worker: expand_spans((span,)) for worker, span in zip(self.members, spans, strict=True)}
        if len(self.members) > 1 and self.chance.random() < 0.3:
            dead = self.chance.choice(self.members)
            self.members.remove(dead)
            shares.pop(dead)
            assigned = dict(shares)
            alive = dict.fromkeys(self.members, 1.0)
            missing = assign_missing(self.virtual_ranks, assigned, alive)
            shares = {
                worker: assigned[worker] | expand_spans(missing.get(worker, ())) for worker in self.members
            }
        return shares

    def draw_resume_step(self, step):
        """Return the step after which the run continues: the last one, or that of an earlier checkpoint."""
        if not self.resumes or self.chance.random() > 0.2:
            return step
        self.resumes -= 1
        self.members = []
        return self.chance.randint(0, step)

    def _change_members(self):
        most = min(4, self.virtual_ranks)
        wanted = self.chance.randint(1, most)
        while len(self.members) > wanted:
            self.members.remove(self.chance.choice(self.members))
        while len(self.members) < wanted:
            self.members.append(self.worker)
            self.worker += 1
        self.members.sort()


def make_line(step, outcome, samples):
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
def test_every_sample_of_a_map_style_dataset_counts_once(
    length, virtual_ranks, microbatch, epochs, seed, chance
):
    batch = virtual_ranks * microbatch
    steps = epochs * count_steps_per_epoch(length, batch)
    history, ledger, weight = History(chance, virtual_ranks), [], 0.0
    while len(ledger) < steps:
        step = len(ledger) + 1
        step_samples = find_step_samples(step, length, batch)
        leaves = {}
        for worker, ranks in history.draw_shares().items():
            for rank in ranks:
                assert rank not in leaves
                indices = [
                    find_sample_index(p, length, seed, step_samples.epoch)
                    for p in step_samples.list_positions(rank, microbatch)
                ]
                checksum = sum(map(hash_sample, indices)) & MASK
                share = len(indices) / step_samples.count
                leaves[rank] = Leaf(rank, worker, 1.0, share, len(indices), checksum)
        outcome = compute_outcome(step, step, leaves, {})
        weight = outcome.weight
        assert abs(weight - 1) < 1e-9, "the shares of a step's samples add up to one, its last step included"
        assert outcome.filled == -(-step_samples.count // microbatch)
        samples = Samples(
            step_samples.epoch,
            step_samples.start,
            step_samples.stop,
            outcome.samples,
            f"{outcome.checksum:016x}",
        )
        ledger.append(make_line(step, outcome, samples))
        del ledger[history.draw_resume_step(step) :]
    verdict = verify_ledger(
        make_pinned(length, virtual_ranks, microbatch, steps, seed), ledger, RULES, finished=True
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
def test_every_sample_of_a_stream_of_uneven_shards_counts_once(lengths, microbatch, epochs, chance):
    size = len(lengths)
    history, ledger = History(chance, size), []
    kept = [{}]  # the positions of streams after each step, as in checkpoints
    while True:
        before = kept[-1]
        begun = find_next_positions(before, size)
        if begun[0].epoch == epochs and all(position.position == 0 for position in begun):
            break
        leaves = {}
        for worker, ranks in history.draw_shares().items():
            for rank in ranks:
                assert rank not in leaves
                leaves[rank] = draw_leaf(rank, worker, begun[rank], lengths[rank], microbatch)
        outcome = compute_outcome(len(ledger) + 1, len(ledger) + 1, leaves, {}, before)
        assert outcome.samples, "no step is empty"
        after = decode_positions(outcome.cursors, size)
        moved = {v: (a.position, b.position) for v, (a, b) in enumerate(zip(begun, after, strict=True))}
        moved = {v: span for v, span in moved.items() if span[0] != span[1]}
        ended = all(position.ended for position in after)
        checksum = f"{outcome.checksum:016x}"
        samples = Samples(begun[0].epoch, 0, 0, outcome.samples, checksum, shards=moved, ended=ended)
        ledger.append(make_line(len(ledger) + 1, outcome, samples))
        kept.append(outcome.cursors)
        step = history.draw_resume_step(len(ledger))
        del ledger[step:], kept[step + 1 :]
    seen = {epoch: [] for epoch in range(epochs)}
    for line in ledger:
        seen[line.samples.epoch] += [(v, p) for v, span in line.samples.shards.items() for p in range(*span)]
    whole = [(v, p) for v, length in enumerate(lengths) for p in range(length)]
    assert all(sorted(samples) == whole for samples in seen.values())
    verdict = verify_ledger(make_pinned(0, size, microbatch, 0, 0), ledger, RULES, finished=True)
    assert verdict.problems == ()
    expected = (sum(lengths), 0, 0, True)
    assert [(e.once, e.never, e.repeated, e.finished) for e in verdict.epochs] == [expected] * epochs


def draw_leaf(rank, worker, start, length, microbatch):
    """Return the leaf of a shard, which has ended once its last sample is drawn."""
    if start.ended:
        return Leaf(rank, worker)
    stop = min(start.position + microbatch, length)
    cursor = encode_cursor(Cursor(start.epoch, stop, ended=stop == length))
    checksum = sum(hash_stream_sample(rank, position) for position in range(start.position, stop)) & MASK
    count = stop - start.position
    return Leaf(rank, worker, 1.0, float(count), count, checksum, weighted=True, cursor=cursor)
