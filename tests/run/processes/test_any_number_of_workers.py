"""The trained bytes do not depend on the number of workers, nor on how workers keep and move state."""

import os
import subprocess
import sys

import pytest

from elastane.run.protocol.layout import cut_blocks
from elastane.run.protocol.ownership import stripe_blocks
from elastane.run.protocol.spot_checks import FIRST_STEPS
from elastane.run.protocol.tree import cover
from tests.waiting import WAIT_S

from .stage import SCRIPTS, VIRTUAL_RANKS
from .ways import pair_with_ways

pytestmark = pytest.mark.processes

SECTIONS = (12 * 256 + 2 * 256 + 256 * 500 + 500, 500 * 4 + 4, 2 * 256, 1)
"""The elements of the sections of the model of ``training.py``: two groups, buffers in fp32, one in int64."""
ELEMENT_BYTES = (4, 4, 4, 8)
EVALUATED_STEP = 7


@pytest.mark.parametrize(("workers", "way"), pair_with_ways([1, 2, 3, 8, 4, 6]))
def test_the_bytes_are_the_same_for_any_number_of_workers(stage, assert_equals_reference, workers, way):
    ended = stage.play(start=workers, **way)
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == set(range(workers))
    assert ended.messages[0] == "evaluated 27.0 52.0"
    # Each worker computes three microbatches before the run begins, and spot checks some once more.
    checks = sum(line.agreed for line in ended.run.ledger)
    assert checks == (0 if workers == 1 else min(FIRST_STEPS, 8 // workers))
    # An agent that hears of the end after that of its workers starts others, which may begin to rehearse.
    computed = sum(sum(ended.assignments[worker].values()) for worker in range(workers))
    assert computed == 30 * 8 + 3 * workers + checks, f"{ended.assignments}\n{ended.describe()}"


@pytest.mark.parametrize("workers", [2, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 6, 8))])
@pytest.mark.parametrize("transport", ["shared", pytest.param("tcp", marks=pytest.mark.long)])
def test_workers_read_as_many_bytes_of_sums_as_in_a_ring_for_each_part_of_the_tree(
    stage, assert_equals_reference, workers, transport
):
    """A ring moves 2 (W - 1) / W times the gradient; the tree moves as much, if each worker has one part."""
    ended = stage.play("--record-read-sums", "--steps=10", start=workers, transport=transport)
    assert_equals_reference(ended)
    blocks = cut_blocks(SECTIONS)
    sizes = [(block.stop - block.start) * ELEMENT_BYTES[block.section] for block in blocks]
    owners = stripe_blocks(len(blocks), range(workers))
    for step in range(1, 11):
        shares = ended.get_shares(step)
        assert len(shares) == workers
        parts = {worker: len(cover(share, VIRTUAL_RANKS)) for worker, share in shares.items()}
        all_parts = sum(parts.values())
        read = {worker: read_bytes(ended, worker)[step] for worker in shares}
        assert read == {
            worker: sum(
                size * (all_parts - parts[worker] if owner == worker else 1)
                for size, owner in zip(sizes, owners, strict=True)
            )
            for worker in shares
        }
        factor = (all_parts / workers + 1) * (workers - 1) / workers
        assert sum(read.values()) / workers == pytest.approx(factor * sum(sizes), rel=0.02)


def read_bytes(ended, worker):
    """Return the bytes of sums that a worker read from others, by step; the evaluation takes a round too."""
    lines = (ended.run.run_dir.root / f"read-{worker}").read_text().splitlines()
    rounds = dict(tuple(map(int, line.split())) for line in lines)
    return {round_ - (round_ > EVALUATED_STEP): size for round_, size in rounds.items() if size}


def test_plain_python_trains_to_the_same_bytes(play_reference):
    """The script trains in its own process, without the command line and the warm process."""
    command = [sys.executable, str(SCRIPTS / "training.py")]
    printed = subprocess.run(
        command, env=os.environ, check=True, capture_output=True, text=True, timeout=WAIT_S
    )
    assert printed.stdout.splitlines() == play_reference(30).messages


def test_fast_convergence_learns_too_and_its_ledger_is_sound(stage, play_reference):
    ended = stage.play(start=3, convergence="fast")
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == ()
    assert ended.run.ledger[-1].loss == pytest.approx(play_reference(30).run.ledger[-1].loss, abs=0.1)
