"""A ledger has every digest that is due, and ends with the last step of its run."""

import msgspec
import pytest

from elastane.run.attempts.verification import verify_samples
from elastane.run.nouns.records import SCRIPT, EventLine, Samples
from elastane.run.nouns.spec import Resumed
from elastane.run.protocol.sampling import hash_stream_sample


@pytest.fixture
def make_digesting_run(make_run):
    """Return a builder of runs with a digest every N steps, of which some are missing."""

    def build(every, *, lost=(), resumed=None, **wishes):
        run = make_run(
            change=lambda line: msgspec.structs.replace(line, digest=None) if line.step in lost else line,
            **wishes,
        )
        spec = msgspec.structs.replace(run.record.spec, digest_every=every)
        return msgspec.structs.replace(
            run, record=msgspec.structs.replace(run.record, spec=spec, resumed=resumed)
        )

    return build


def make_ending(kind, who="coordinator", step=None, **detail):
    return (EventLine(time=1.0, kind=kind, who=who, step=step, detail=detail),)


TOLD = make_ending("digest", step=4, parameters_sha256="e" * 64, optimizer_sha256="f" * 64)


def list_missing(run):
    return [problem.step for problem in verify_samples(run).problems if problem.kind == "digest"]


@pytest.mark.parametrize(
    ("every", "lost", "named"), [(2, (), []), (2, (4,), [4]), (2, (2, 6), [2, 6]), (0, (2,), [])]
)
def test_a_missing_digest_is_named(make_digesting_run, every, lost, named) -> None:
    assert list_missing(make_digesting_run(every, lost=lost)) == named


def test_the_last_step_always_has_a_digest(make_digesting_run) -> None:
    assert list_missing(make_digesting_run(50, lost=(2, 4), events=make_ending("run.finished"))) == []
    assert list_missing(make_digesting_run(50, lost=(2, 4, 6), events=make_ending("run.finished"))) == [6]
    assert list_missing(
        make_digesting_run(50, lost=(4,), steps=4, events=make_ending("run.stopped", "user", 4))
    ) == [4]


@pytest.mark.parametrize(
    "events",
    [
        (),
        make_ending("run.failed"),
        make_ending("run.stopped", "agent"),
        (*TOLD, *make_ending("run.finished", SCRIPT, 4)),
        (*make_ending("run.stopped", "user", 4), EventLine(time=2.0, kind="run.resumed")),
    ],
)
def test_a_run_that_did_not_finish_needs_no_digest_of_its_last_step(make_digesting_run, events) -> None:
    assert list_missing(make_digesting_run(50, lost=(4,), steps=4, events=events)) == []
    assert list_missing(make_digesting_run(2, lost=(4,), steps=4, events=events)) == [4]


def test_the_last_digest_of_a_run_that_its_script_ended_is_in_an_event(make_digesting_run) -> None:
    ended = make_ending("run.finished", SCRIPT, 4)
    assert list_missing(make_digesting_run(50, lost=(4,), steps=4, events=ended)) == [4]
    assert list_missing(make_digesting_run(50, steps=4, events=ended)) == [], "the line has it"


def test_an_attempt_without_steps_needs_no_digest(make_digesting_run) -> None:
    resumed = Resumed("step-00000006", 6, 1, 3, 2)
    assert (
        list_missing(make_digesting_run(50, lost=(6,), resumed=resumed, events=make_ending("run.finished")))
        == []
    )


def test_the_event_of_a_script_that_ended_the_run_must_agree_with_the_ledger(make_digesting_run) -> None:
    ended = make_ending("run.finished", SCRIPT, 6)
    told = make_ending("digest", step=6, parameters_sha256="e" * 64, optimizer_sha256="f" * 64)
    wrong = make_ending("digest", step=6, parameters_sha256="e" * 64, optimizer_sha256="0" * 64)
    assert list_missing(make_digesting_run(2, events=told + ended)) == []
    assert list_missing(make_digesting_run(2, events=wrong + ended)) == [6]


def test_the_ledger_of_a_stopped_run_ends_with_its_last_step(make_digesting_run) -> None:
    assert verify_samples(make_digesting_run(2, steps=4, events=make_ending("run.stopped", "user", 4))).ok
    verdict = verify_samples(make_digesting_run(2, steps=4, events=make_ending("run.stopped", "user", 5)))
    assert [p.text for p in verdict.problems] == [
        "the run stopped after step 5, but its ledger ends with step 4"
    ]


SHARDS = ({0: (0, 2), 1: (0, 2)}, {0: (2, 4), 1: (2, 3)}, {0: (4, 5)}, {0: (0, 2), 1: (0, 2)})
POSITIONS = ((0, 4), (4, 7), (7, 8), (0, 4))


@pytest.fixture
def make_stream(make_run, pinned):
    """Return a builder of a stream's run: an epoch of three steps, and a step with changed positions."""

    def build(*, events=(), **changed):
        run, ledger = make_run(steps=4, events=events), []
        for place, line in enumerate(run.ledger):
            shards, (start, stop) = SHARDS[place], changed.get(f"step{place + 1}", POSITIONS[place])
            total = (
                sum(hash_stream_sample(shard, p) for shard, span in shards.items() for p in range(*span))
                % 2**64
            )
            count = sum(end - begin for begin, end in shards.values())
            samples = Samples(
                place // 3, start, stop, count, f"{total:016x}", shards=shards, ended=place == 2
            )
            ledger.append(msgspec.structs.replace(line, samples=samples))
        record = msgspec.structs.replace(
            run.record, pinned=msgspec.structs.replace(pinned, dataset_length=0, steps=0)
        )
        return msgspec.structs.replace(run, record=record, ledger=tuple(ledger))

    return build


@pytest.mark.parametrize("positions", [(0, 3), (5, 8), (0, 0)])
def test_the_positions_of_a_stream_must_be_those_of_its_shards(make_stream, positions) -> None:
    assert verify_samples(make_stream()).ok
    verdict = verify_samples(make_stream(step2=positions))
    start, stop = positions
    assert [(p.step, p.text) for p in verdict.problems] == [
        (2, f"positions [{start}, {stop}), but its shards give [4, 7)")
    ]


def test_a_run_that_ends_with_its_stream_ends_with_an_epoch(make_stream) -> None:
    assert verify_samples(make_stream(events=make_ending("run.finished", SCRIPT, 4))).ok
    verdict = verify_samples(make_stream(events=make_ending("run.finished", step=5)))
    assert [p.text for p in verdict.problems] == [
        "the run finished after step 5, but its ledger ends with step 4",
        "the run finished with its stream, but the last step does not end an epoch",
    ]
