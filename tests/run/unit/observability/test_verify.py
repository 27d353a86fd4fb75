"""Proofs from a ledger, and the mistakes that it reveals."""

from collections.abc import Callable

import msgspec
import pytest

from elastane.run.nouns.records import Digest, LedgerLine, Samples
from elastane.run.nouns.spec import PastDivision
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.verify import Verdict, verify_ledger
from elastane.run.protocol.sampling import hash_stream_sample


@pytest.fixture
def judge(rules) -> Callable[[Recorded], Verdict]:
    return lambda run: verify_ledger(run.record.pinned, run.ledger, rules, finished=True)


def list_kinds(verdict: Verdict) -> set[str]:
    return {problem.kind for problem in verdict.problems}


def change_step(step: int, **changes) -> Callable[[LedgerLine], LedgerLine]:
    """Change one line of the ledger."""
    return lambda line: msgspec.structs.replace(line, **changes) if line.step == step else line


def change_samples(step: int, **changes) -> Callable[[LedgerLine], LedgerLine]:
    def change(line: LedgerLine) -> LedgerLine:
        if line.step != step:
            return line
        return msgspec.structs.replace(line, samples=msgspec.structs.replace(line.samples, **changes))

    return change


def test_an_honest_run_is_proved(make_run, judge) -> None:
    verdict = judge(make_run())
    assert verdict.ok
    assert (verdict.steps, verdict.generations, verdict.samples) == (6, 2, 40)
    assert [(e.once, e.never, e.repeated, e.finished) for e in verdict.epochs] == [(20, 0, 0, True)] * 2


def test_an_unfinished_epoch_needs_no_samples(make_run, rules) -> None:
    run = make_run(steps=4)
    verdict = verify_ledger(run.record.pinned, run.ledger, rules, finished=False)
    assert verdict.ok
    last = verdict.epochs[-1]
    assert (last.once, last.never, last.finished) == (8, 12, False)


def test_a_finished_run_has_all_its_steps(make_run, judge) -> None:
    verdict = judge(make_run(steps=4))
    assert [p.text for p in verdict.problems] == ["the run finished, but 4 of its 6 steps are in the ledger"]


def test_a_run_that_its_script_ended_needs_the_steps_up_to_there(make_run, rules) -> None:
    run = make_run(steps=4)
    assert verify_ledger(run.record.pinned, run.ledger, rules, finished=True, ended_at=4).ok
    torn = verify_ledger(run.record.pinned, run.ledger, rules, finished=True, ended_at=5)
    assert [p.text for p in torn.problems] == ["the run finished, but 4 of its 5 steps are in the ledger"]


def test_a_digest_has_the_blocks_of_the_processes_that_made_its_step(make_run, pinned, rules) -> None:
    def change(line):
        digest = line.digest and Digest("e" * 64, "f" * 64, ("a1",), ("b1",))
        return msgspec.structs.replace(line, digest=digest) if line.step <= 4 else line

    run = make_run(change=change)
    divisions = (PastDivision(4, "halves", 1),)
    assert verify_ledger(pinned, run.ledger, rules, finished=True, divisions=divisions).ok
    found = verify_ledger(pinned, run.ledger, rules, finished=True, divisions=(PastDivision(2, "halves", 1),))
    assert {problem.step for problem in found.problems} == {4}


def test_a_gap_in_the_steps_is_named(make_run, judge) -> None:
    run = make_run()
    run = msgspec.structs.replace(run, ledger=run.ledger[:2] + run.ledger[3:])
    verdict = judge(run)
    assert ("steps", 4, "expected step 3, found step 4") in {
        (p.kind, p.step, p.text) for p in verdict.problems
    }
    assert verdict.epochs[0].never == 4


def test_a_step_written_twice_repeats_its_samples(make_run, judge) -> None:
    run = make_run()
    run = msgspec.structs.replace(run, ledger=run.ledger[:2] + run.ledger[1:])
    verdict = judge(run)
    assert verdict.epochs[0].repeated == 8
    assert list_kinds(verdict) == {"steps", "samples"}


def test_generations_never_go_back(make_run, judge) -> None:
    verdict = judge(make_run(change=change_step(5, generation=1)))
    assert [(p.step, p.text) for p in verdict.problems] == [(5, "generation 1 after generation 2")]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ({0: ((0, 2),), 1: ((3, 4),)}, "virtual rank 2 computed 0 times"),
        ({0: ((0, 3),), 1: ((2, 4),)}, "virtual rank 2 computed 2 times"),
        ({0: ((0, 2),), 1: ((2, 5),)}, "worker 1 has [2, 5), outside 0..4"),
    ],
)
def test_virtual_ranks_are_computed_once_each(make_run, judge, workers, said) -> None:
    verdict = judge(make_run(change=change_step(4, workers=workers)))
    assert said in {p.text for p in verdict.problems}
    assert list_kinds(verdict) == {"shares"}


def test_a_sample_loaded_in_place_of_another_breaks_the_checksum(make_run, judge) -> None:
    verdict = judge(make_run(change=change_samples(2, checksum="00" * 8)))
    assert [(p.kind, p.step) for p in verdict.problems] == [("checksum", 2)]


def test_a_wrong_count_is_named(make_run, judge) -> None:
    verdict = judge(make_run(change=change_samples(2, count=7)))
    assert [p.text for p in verdict.problems] == ["7 samples were loaded for the 8 positions [8, 16)"]


def test_positions_outside_the_epoch_are_refused(make_run, judge) -> None:
    verdict = judge(make_run(change=change_samples(3, stop=24)))
    assert "positions [16, 24) are outside an epoch of 20 samples" in {p.text for p in verdict.problems}


def test_a_skipped_epoch_is_noticed(make_run, judge) -> None:
    run = make_run()
    later = tuple(change_samples(line.step, epoch=2)(line) if line.step > 3 else line for line in run.ledger)
    verdict = judge(msgspec.structs.replace(run, ledger=later))
    assert "some epochs before the last are missing; trained on: 0, 2" in {p.text for p in verdict.problems}


def test_a_loss_that_is_not_finite_is_reported_but_is_no_problem(make_run, judge) -> None:
    verdict = judge(make_run(change=change_step(4, loss=None, loss_hex="nan")))
    assert verdict.ok
    assert verdict.not_finite == (4,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": 0.25}, "loss 0.25 is 0x1.0000000000000p-2, loss_hex 0x1.0000000000000p-1"),
        ({"loss": 0.5000000000000001}, "loss_hex 0x1.0000000000000p-1"),
        ({"loss": None}, "loss None is none, loss_hex 0x1.0000000000000p-1"),
        ({"loss_hex": "0x1.0000000000001p-1"}, "loss 0.5 is 0x1.0000000000000p-1"),
        ({"loss_hex": "nan"}, "loss_hex nan"),
        ({"loss_hex": "half"}, "loss_hex 'half' is not a number"),
        ({"loss": 0.0, "loss_hex": "-0x0.0p+0"}, "loss_hex -0x0.0p+0"),
    ],
)
def test_both_forms_of_a_loss_must_be_the_same_number(make_run, judge, changes, said) -> None:
    verdict = judge(make_run(change=change_step(4, **changes)))
    assert [(p.kind, p.step) for p in verdict.problems] == [("loss", 4)]
    assert said in verdict.problems[0].text


@pytest.mark.parametrize("part", ["parameter_blocks", "optimizer_blocks"])
@pytest.mark.parametrize("blocks", [("a1", "a2"), ("a1", "a2", "a3", "a4")])
def test_a_digest_must_have_every_block(make_run, judge, part, blocks) -> None:
    whole = {"parameters": "e" * 64, "optimizer": "f" * 64}
    parts = dict.fromkeys(("parameter_blocks", "optimizer_blocks"), ("b1", "b2", "b3")) | {part: blocks}
    verdict = judge(make_run(change=change_step(4, digest=Digest(**whole, **parts))))
    what = part.partition("_")[0].replace("parameter", "parameters")
    assert [(p.step, p.text) for p in verdict.problems] == [
        (4, f"the digest has {len(blocks)} blocks of {what}; the state has 3")
    ]


@pytest.mark.parametrize("changes", [{"skipped": True, "grad_norm": 1.0}, {"grad_norm": -1.0}])
def test_a_gradient_norm_must_fit_its_step(make_run, judge, changes) -> None:
    assert [(p.kind, p.step) for p in judge(make_run(change=change_step(4, **changes))).problems] == [
        ("norm", 4)
    ]
    assert judge(make_run(change=change_step(4, grad_norm=1.0))).ok


def test_swapped_steps_are_noticed(make_run, judge) -> None:
    run = make_run()
    one, two = run.ledger[0].samples, run.ledger[1].samples
    ledger = tuple(
        msgspec.structs.replace(line, samples={1: two, 2: one}.get(line.step, line.samples))
        for line in run.ledger
    )
    verdict = judge(msgspec.structs.replace(run, ledger=ledger))
    assert "positions [8, 16) of epoch 0, expected [0, 8) of epoch 0" in {p.text for p in verdict.problems}
    assert list_kinds(verdict) == {"samples"}


def test_a_line_of_a_stream_is_a_problem_for_a_dataset_with_a_length(make_run, judge) -> None:
    for changes in ({"ended": True}, {"shards": {0: (0, 8)}}):
        assert list_kinds(judge(make_run(change=change_samples(1, **changes)))) == {"samples"}


def test_steps_without_pinned_options_cannot_be_proved(make_run, judge) -> None:
    assert not judge(make_run(pinned=None)).ok
    assert judge(make_run(pinned=None, steps=0)).ok


# -- streams ---------------------------------------------------------------------------------------------


def make_stream_line(line: LedgerLine, shards: dict[int, tuple[int, int]], **changes) -> LedgerLine:
    checksum = (
        sum(hash_stream_sample(shard, p) for shard, span in shards.items() for p in range(*span)) % 2**64
    )
    count = sum(stop - start for start, stop in shards.values())
    samples = Samples(0, 0, count, count, f"{checksum:016x}", shards=shards)
    return msgspec.structs.replace(line, samples=msgspec.structs.replace(samples, **changes))


STREAM = ({0: (0, 2), 1: (0, 2)}, {0: (2, 4), 1: (2, 3)}, {0: (4, 5)}, {0: (0, 2), 1: (0, 2)})


@pytest.fixture
def judge_stream(make_run, rules, pinned):
    """Return a function that verifies a stream: an epoch of three steps, then one step; some are changed."""

    def judged(**changed: dict) -> Verdict:
        ledger = []
        for place, line in enumerate(make_run(steps=4).ledger):
            usual = {"shards": STREAM[place], "epoch": place // 3, "ended": place == 2}
            wished = usual | changed.get(f"step{place + 1}", {})
            ledger.append(make_stream_line(line, wished.pop("shards"), **wished))
        choices = msgspec.structs.replace(pinned, dataset_length=0, steps=0)
        return verify_ledger(choices, ledger, rules, finished=True)

    return judged


def test_a_stream_without_gaps_is_proved(judge_stream) -> None:
    verdict = judge_stream()
    assert verdict.problems == ()
    assert [(e.samples, e.once, e.never, e.repeated, e.finished) for e in verdict.epochs] == [
        (8, 8, 0, 0, True),
        (4, 4, 0, 0, False),
    ]


@pytest.mark.parametrize(
    ("changed", "said", "counts"),
    [
        ({"shards": {0: (3, 5), 1: (2, 3)}}, "shard 0 was at 2 and was drawn from 3 on", (6, 1, 1)),
        ({"shards": {0: (1, 4), 1: (2, 3)}}, "shard 0 was at 2 and was drawn from 1 on", (7, 0, 1)),
        ({"shards": {9: (0, 1)}}, "shard 9, positions [0, 1): there are no such samples", None),
        ({"count": 4}, "4 samples were loaded, but the shards advanced by 3", None),
        ({"checksum": "00" * 8}, "the loaded samples sum to 0000000000000000, the assigned ones to", None),
        ({"ended": True}, "epoch 0 continues after its end", None),
    ],
)
def test_a_broken_stream_is_named(judge_stream, changed, said, counts) -> None:
    verdict = judge_stream(step2=changed)
    assert any(said in problem.text for problem in verdict.problems), verdict.problems
    if counts is not None:
        first = verdict.epochs[0]
        assert (first.once, first.never, first.repeated) == counts


def test_an_epoch_of_a_stream_ends_before_the_next_begins(judge_stream) -> None:
    verdict = judge_stream(step3={"ended": False})
    assert "epochs 0 did not end before the next began" in {problem.text for problem in verdict.problems}


@pytest.mark.parametrize(
    ("last", "ok", "said"),
    [
        ({"shards": {0: (4, 5)}, "content": "07"}, True, ""),
        ({"shards": {0: (4, 5)}, "content": "08"}, True, "contents differ"),
        ({"shards": {0: (4, 7)}, "content": "07"}, False, "epoch 1 ended after 10 samples, epoch 0 after 8"),
    ],
    ids=["alike", "other samples", "longer"],
)
def test_the_finished_epochs_of_a_stream_are_compared(make_run, rules, pinned, last, ok, said) -> None:
    steps = [{"shards": STREAM[0], "content": "03"}, {"shards": STREAM[1], "content": "04"}]
    epoch = [*steps, {"shards": STREAM[2], "content": "07", "ended": True}]
    wished = [*epoch, *({"epoch": 1} | step for step in (*steps, {"ended": True} | last))]
    ledger = [
        make_stream_line(line, **changes)
        for line, changes in zip(make_run(steps=6).ledger, wished, strict=True)
    ]
    verdict = verify_ledger(
        msgspec.structs.replace(pinned, dataset_length=0, steps=0), ledger, rules, finished=True
    )
    assert verdict.ok == ok
    found = " ".join((*verdict.remarks, *(problem.text for problem in verdict.problems)))
    assert said in found if said else not found


def test_one_epoch_of_a_stream_does_not_show_that_it_has_every_sample(judge_stream) -> None:
    (remark,) = judge_stream().remarks
    assert "only one epoch has ended" in remark
