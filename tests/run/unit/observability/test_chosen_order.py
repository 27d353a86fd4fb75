"""The ledger of a run in an order of the script proves that each whole epoch had every sample once."""

import msgspec
import pytest

from elastane.run.nouns.records import LedgerLine, Samples
from elastane.run.observability.coverage import check_coverage

LENGTH, BATCH = 10, 4
ORDERS = [[3, 1, 4, 0, 5, 9, 2, 6, 8, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]


@pytest.fixture
def ordered(pinned):
    return msgspec.structs.replace(pinned, dataset_length=LENGTH, global_batch=BATCH, order_digest="abc")


def write_ledger(rules, orders):
    ledger, step = [], 0
    for epoch, order in enumerate(orders):
        for start in range(0, LENGTH, BATCH):
            stop, step = min(start + BATCH, LENGTH), step + 1
            checksum = sum(rules.hash(index) for index in order[start:stop]) % 2**64
            samples = Samples(epoch, start, stop, stop - start, f"{checksum:016x}")
            line = LedgerLine(
                step=step,
                generation=1,
                workers={},
                samples=samples,
                loss=0.0,
                loss_hex="0x0p+0",
                time=0.0,
                seconds={},
            )
            ledger.append(line)
    return ledger


def test_whole_epochs_are_proved(ordered, rules):
    epochs, problems = check_coverage(write_ledger(rules, ORDERS), ordered, rules)
    assert problems == []
    assert [(epoch.once, epoch.never, epoch.finished) for epoch in epochs] == [(LENGTH, 0, True)] * 2


def test_a_sample_loaded_twice_is_found(ordered, rules):
    orders = [ORDERS[0], [9, 8, 7, 6, 5, 4, 3, 2, 1, 1]]
    _, problems = check_coverage(write_ledger(rules, orders), ordered, rules)
    assert [problem.kind for problem in problems] == ["checksum"]
    assert "epoch 1" in problems[0].text


def test_positions_are_checked_in_an_unfinished_epoch(ordered, rules):
    ledger = write_ledger(rules, ORDERS)
    _, problems = check_coverage([ledger[0], msgspec.structs.replace(ledger[2], step=2)], ordered, rules)
    assert any(problem.kind == "samples" for problem in problems)


@pytest.mark.parametrize("text", ["", "zz", "-1"])
def test_a_checksum_that_is_no_number_is_found(ordered, rules, text):
    ledger = write_ledger(rules, ORDERS[:1])
    samples = msgspec.structs.replace(ledger[0].samples, checksum=text)
    _, problems = check_coverage(
        [msgspec.structs.replace(ledger[0], samples=samples), *ledger[1:]], ordered, rules
    )
    assert [problem.kind for problem in problems] == ["checksum"]


def test_samples_that_an_epoch_leaves_out_are_no_problem(pinned, rules):
    dropping = msgspec.structs.replace(
        pinned, dataset_length=LENGTH, global_batch=BATCH, dropped=2, order_digest=""
    )
    orders = [[rules.index(n, LENGTH, pinned.seed, epoch) for n in range(LENGTH)] for epoch in range(2)]
    whole = write_ledger(rules, orders)
    kept = [line for line in whole if line.samples.stop <= LENGTH - 2]
    ledger = [msgspec.structs.replace(line, step=step) for step, line in enumerate(kept, 1)]
    epochs, problems = check_coverage(ledger, dropping, rules)
    assert problems == []
    assert [(epoch.once, epoch.never, epoch.finished) for epoch in epochs] == [(LENGTH - 2, 2, True)] * 2
    _, problems = check_coverage(whole, dropping, rules)
    assert any("outside an epoch of 8 samples" in problem.text for problem in problems)
    _, problems = check_coverage(ledger, msgspec.structs.replace(dropping, dropped=0), rules)
    assert problems
