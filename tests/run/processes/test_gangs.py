"""Workers of several processes: every number of workers and of processes gives the same bytes."""

import shutil
from pathlib import Path

import pytest

from elastane.run.nouns.control import AskDrain
from elastane.run.observability.compare import compare_runs

from .attempts import Attempts
from .stage import SCRIPTS, find_members, get_state

pytestmark = pytest.mark.processes
EXAMPLE = Path(__file__).parents[3] / "examples/fsdp/train.py"
OTHER_KERNELS = """
import os
import torch

if os.environ["RANK"] == "1":
    torch.nn.Tanh.forward = lambda _, x: 1 - 2 / ((2 * x).exp() + 1)
"""
MODULES = (
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor.parallel",
)


@pytest.fixture
def play(stage):
    """Return a function that plays the script of gangs."""
    stage.preload(*MODULES)

    def play(*args, processes=2, start=1, **options):
        usual = {"max_workers": max(start, 8 // processes), "digest_every": 2, "script": "gang.py"}
        return stage.play(*args, start=start, processes=processes, **usual | options)

    return play


def assert_equal(ended, expected, *, digests=True):
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.messages == expected.messages, ended.describe()
    assert ended.model_digest == expected.model_digest, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert not ended.find_events("worker.failed"), ended.describe()
    if digests:
        # They describe the shards, so they are equal for equal numbers of processes.
        assert ended.digests == expected.digests, ended.describe()


def test_numbers_of_workers_and_of_processes_give_the_bytes_of_one_process(play):
    alone = play(processes=1)
    assert len(alone.losses) == 6
    assert_equal(play(processes=2, start=2), alone, digests=False)
    assert_equal(play(processes=4, start=1), alone, digests=False)


def test_clipped_steps_are_those_of_one_process(play):
    alone = play("--clip=0.5", processes=1)
    assert_equal(play("--clip=0.5", processes=2, start=2), alone, digests=False)
    assert_equal(play("--clip=0.5", processes=4, start=1), alone, digests=False)


def test_frozen_parameters_are_divided_too(play):
    alone = play("--frozen", processes=1)
    assert_equal(play("--frozen", processes=2, start=2), alone, digests=False)


def test_the_finished_model_has_what_the_script_of_each_process_changed_last(play):
    ended, alone = play("--edit-late", processes=2), play("--edit-late", processes=1)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.model_digest == alone.model_digest


TENSOR = ("--clip=0.5", "--tensor=2", "--sequence")


@pytest.mark.long
def test_workers_with_tensor_parallelism_give_the_bytes_of_one_of_them(play):
    alone = play(*TENSOR, processes=2)
    assert_equal(play(*TENSOR, processes=2, start=2), alone)
    # Rows are divided among the places of the data dimension, which does not change a bit.
    assert_equal(play(*TENSOR, processes=4, start=2), alone, digests=False)


@pytest.mark.long
def test_a_process_with_a_part_of_each_matrix_dies_in_a_step(play):
    ended = play(*TENSOR, f"--fault=1.1:{STEP}:after-measure", start=2, max_workers=4)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_equal(ended, play(*TENSOR))


@pytest.mark.long
@pytest.mark.parametrize("args", [("--tensor=2",), TENSOR, ("--tensor=4", "--clip=0.5")])
def test_tensor_parallelism_has_the_values_of_one_process(play, args):
    undivided = play("--width=256", "--no-dropout", *[a for a in args if "clip" in a], processes=1)
    ended = play(*args, "--no-dropout", processes=4)
    found, expected = (list(map(float.fromhex, some.losses)) for some in (ended, undivided))
    assert found == pytest.approx(expected, rel=1e-5), ended.describe()


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_a_checkpoint_of_divided_matrices_is_read_by_other_divisions(stage, tmp_path, processes):
    """The small Llama of the examples, by pairs that divide each matrix, then on without them."""
    # A run has the name of its folder, and one home has all of these.
    one, other = tmp_path / f"gangs-tensor-{processes}", tmp_path / f"gangs-whole-{processes}"
    one.mkdir()
    other.mkdir()
    with Attempts(stage, one) as first:
        options = ("--processes=4", "--workers=1", "--checkpoint-every=3 steps", "--keep-last=9")
        first.begin(*options, script=str(EXAMPLE.with_name("train_tensor.py")))
        expected = first.wait_for_end()
        assert expected.outcome.code == 0, expected.describe()
        with Attempts(stage, other) as second:
            begins = (f"--from={first.run_dir.root}@3", f"--processes={processes}", "--workers=1:2")
            second.begin(*begins, script=str(EXAMPLE))
            ended = second.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    found, known = (list(map(float.fromhex, some)) for some in (ended.losses, expected.losses[3:]))
    assert found == pytest.approx(known, rel=1e-5), ended.describe()


@pytest.fixture(scope="module")
def references():
    """Runs of one undisturbed worker of two processes, by their arguments."""
    return {}


@pytest.fixture
def assert_undisturbed(play, references):
    """Return a function that asserts that a run has the bytes of an undisturbed one of one worker."""

    def check(ended, *args):
        if args not in references:
            references[args] = play(*args)
        assert_equal(ended, references[args])

    return check


async def join_and_leave(run):
    await run.wait_for_step(2)
    await run.resize(2)
    await run.wait_for_event("worker.ready", "worker 1")
    await run.step_until(lambda answer: find_members(answer) == {0, 1})
    # Worker 1 goes on with the state that it has got from worker 0.
    assert (await run.ask(AskDrain(worker=0))).ok
    await run.step_until(lambda answer: get_state(answer, 0) == "")
    run.stop_pacing()


def test_workers_of_two_processes_join_and_leave(play, assert_undisturbed):
    ended = play("--steps=40", "--paced-from=3", "--edit", disturb=join_and_leave)
    assert ended.get_shares(1).keys() == {0}
    assert ended.get_shares(40).keys() == {1}
    assert_undisturbed(ended, "--steps=40", "--edit")


STEP = 2
IN_A_STEP = [
    ("1", "in-backward"),
    ("1", "before-compute"),
    ("1", "before-begin"),
    ("1", "before-delivery"),
    ("1", "before-reduce"),
    ("1", "after-reduce"),
    ("1", "before-taking"),
    ("1", "after-taking"),
    ("1", "before-measure"),
    ("1", "after-measure"),
    ("1", "before-commit"),
    ("1", "before-apply-here"),
    ("1", "after-apply-here"),
    ("0", "in-backward"),
    ("0", "after-first-ready"),
    ("0", "after-first-sum"),
    ("0", "after-first-summed"),
    ("0", "before-vote"),
    ("0", "after-one-vote"),
]
SHORT = {("1", "in-backward"), ("1", "after-measure")}


@pytest.mark.parametrize(
    ("process", "moment"),
    [case if case in SHORT else pytest.param(*case, marks=pytest.mark.long) for case in IN_A_STEP],
)
def test_the_death_of_a_process_in_a_step_is_the_death_of_its_worker(
    play, assert_undisturbed, process, moment
):
    ended = play("--clip=0.5", f"--fault=1.{process}:{STEP}:{moment}", start=2, max_workers=4)
    deaths = [(event.who, event.why) for event in ended.find_events("worker.died")]
    assert [who for who, _ in deaths] == ["worker 1"], ended.describe()
    assert "killed by SIGKILL" in deaths[0][1]
    assert_undisturbed(ended, "--clip=0.5")


@pytest.mark.long
@pytest.mark.parametrize(("process", "moment"), IN_A_STEP)
def test_a_process_that_hangs_is_replaced_with_its_worker(play, assert_undisturbed, process, moment):
    fault = f"--fault=1.{process}:{STEP}:{moment}:STOP"
    ended = play("--clip=0.5", fault, start=2, max_workers=4)
    assert ended.find_subjects("worker.hung") == ["worker 1"], ended.describe()
    assert_undisturbed(ended, "--clip=0.5")


IN_OTHER_ROUNDS = [
    ("1", "before-evaluating"),
    ("1", "in-evaluation"),
    ("0", "in-evaluation"),
    ("0", "before-vote-on-evaluation"),
    ("0", "after-one-vote-on-evaluation"),
    ("1", "before-settling"),
    ("0", "before-vote-on-the-end"),
    ("0", "after-one-vote-on-the-end"),
]


WAYS = [("KILL", "worker.died"), ("STOP", "worker.hung")]
# The others finish without it, and then a silent worker has two minutes.
UNNOTICED = {("0", "after-one-vote-on-the-end", *WAYS[1])}


@pytest.mark.long
@pytest.mark.parametrize(
    ("process", "moment", "way", "event"),
    [case for one in IN_OTHER_ROUNDS for way in WAYS if (case := (*one, *way)) not in UNNOTICED],
)
def test_a_process_dies_or_hangs_in_an_evaluation_or_in_the_settling(
    play, assert_undisturbed, process, moment, way, event
):
    ended = play("--clip=0.5", f"--fault=1.{process}:0:{moment}:{way}", start=2, max_workers=4)
    assert ended.find_subjects(event) == ["worker 1"], ended.describe()
    assert_undisturbed(ended, "--clip=0.5")


WHILE_A_WORKER_JOINS = [
    ("0.1", "donor-before-packing"),
    ("1.1", "donor-before-packing"),
    ("2.1", "joiner-before-loading-here"),
    ("2.1", "joiner-after-loading-here"),
    ("2.0", "joiner-after-fetch"),
    ("2.0", "joiner-before-loading"),
]


@pytest.mark.long
@pytest.mark.parametrize(("process", "moment"), WHILE_A_WORKER_JOINS)
def test_a_process_dies_while_a_worker_joins(play, assert_undisturbed, process, moment):
    async def disturb(run):
        await run.wait_for_step(2)
        await run.resize(3)
        await run.step_until(lambda answer: len(find_members(answer)) == 3)
        run.stop_pacing()

    args = ("--steps=40", "--clip=0.5")
    ended = play(
        *args, "--paced-from=3", f"--fault={process}:0:{moment}", disturb=disturb, start=2, max_workers=4
    )
    assert_undisturbed(ended, *args)


def test_a_run_resumes_from_the_rows_that_all_processes_have_written(attempts, play, stage):
    stage.preload(*MODULES)
    options = ("--processes=2", "--workers=1:2", "--start=2", "--checkpoint-every=2 steps")
    args = ("--steps=7", "--clip=0.5")
    attempts.begin(*options, script="gang.py", args=(*args, "--paced-from=6"))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=1")
    ended, expected = attempts.wait_for_end(), play(*args)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.model_digest == expected.model_digest, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert ended.run.events[-1].kind == "run.finished"
    (resumed,) = ended.find_events("run.resumed")
    assert resumed.step == 4


def test_a_run_resumes_with_other_numbers_of_processes(attempts, play, stage):
    """1 x 4, then 2 x 2, then 4 x 1, with frozen layers."""
    stage.preload(*MODULES)
    args = ("--steps=9", "--clip=0.5", "--frozen", "--paced-from=6")
    kept = ("--checkpoint-every=2 steps", "--digest-every=2")
    attempts.begin("--processes=4", "--workers=1", "--start=1", *kept, script="gang.py", args=args)
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gate-6")
    attempts.touch("gate-7")
    attempts.resume("--processes=2", "--workers=2", "--start=2")
    attempts.wait_for_event("checkpoint.saved", 3)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--processes=1", "--workers=4", "--start=4")
    ended, expected = attempts.wait_for_end(), play("--steps=9", "--clip=0.5", "--frozen", processes=1)
    assert [event.step for event in ended.find_events("run.resumed")] == [4, 6], ended.describe()
    assert ended.outcome.code == 0, ended.describe()
    assert (ended.losses, ended.model_digest) == (expected.losses, expected.model_digest), ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert ended.run.record.spec.processes == 1
    assert [one.until for one in ended.run.record.divisions] == [4, 6]
    assert "up to step 6 had another number of processes" in ended.verdict.remarks[-1]
    found = compare_runs(ended.run, expected.run)
    assert found.equal, found
    assert "digests of 6 steps were not compared" in found.remarks[0]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before-snapshot", "after-snapshot"])
def test_a_process_dies_while_its_worker_copies_a_checkpoint(attempts, play, stage, moment):
    stage.preload(*MODULES)
    options = ("--processes=2", "--workers=1:3", "--start=2", "--checkpoint-every=2 steps")
    args = ("--steps=7", "--clip=0.5")
    attempts.begin(*options, script="gang.py", args=(*args, f"--fault=1.1:3:{moment}"))
    ended, expected = attempts.wait_for_end(), play(*args)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert (ended.losses, ended.model_digest) == (expected.losses, expected.model_digest)
    # After steps 2, 4, 6 and the last one.
    assert len(ended.find_events("checkpoint.saved")) == 4, ended.describe()


@pytest.mark.long
@pytest.mark.parametrize(("process", "moment"), [("1", "before-restoring"), ("1", "after-restoring")])
def test_a_process_dies_while_a_run_resumes(attempts, play, stage, process, moment):
    stage.preload(*MODULES)
    options = ("--processes=2", "--workers=1:2", "--start=2", "--checkpoint-every=2 steps")
    args = ("--steps=7", "--clip=0.5")
    fault = f"--fault=any.{process}:0:{moment}"
    attempts.begin(*options, script="gang.py", args=(*args, "--paced-from=6", fault))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=2")
    ended, expected = attempts.wait_for_end(), play(*args)
    assert ended.outcome.code == 0, ended.describe()
    assert len(ended.find_events("worker.died")) == 1, ended.describe()
    assert (ended.losses, ended.model_digest) == (expected.losses, expected.model_digest)


@pytest.mark.long
def test_a_worker_of_which_a_process_has_other_kernels_is_refused(play, assert_undisturbed, tmp_path):
    scripts = shutil.copytree(SCRIPTS, tmp_path / "scripts")

    async def disturb(run):
        await run.wait_for_step(2)
        with (scripts / "gang_faults.py").open("a") as file:
            file.write(OTHER_KERNELS)
        await run.resize(2)
        await run.wait_for_event("worker.refused", "worker 1")
        run.stop_pacing()

    ended = play("--steps=40", "--paced-from=3", disturb=disturb, script=scripts / "gang.py")
    why = ended.find_events("worker.refused")[0].why
    assert "computes other bits" in why
    assert ended.get_shares(40).keys() == {0}
    assert_undisturbed(ended, "--steps=40")


MISTAKES = [
    ("--mistake=raise", "ZeroDivisionError: in process 1"),
    ("--mistake=rank", "process 0 and process 1 differ in run.keep"),
    ("--mistake=outputs", "outputs.add is not available with --processes"),
    ("--mistake=in-step", "0.weight was changed inside a step"),
    ("--tensor=2 --mistake=copies", "have computed virtual rank"),
    ("--tensor=2 --forget-places", "is not divided among the 2 processes of the worker"),
    ("--frozen --mistake=frozen", "3.weight was changed between two steps, and it is frozen and divided"),
    ("--mistake=moved", "0.weight has other memory than in run.prepare"),
    ("--plain=stages", "process 0 and process 1 of the worker do not both train"),
    ("--plain=parameter", "3.weight is not divided among the 2 processes of the worker"),
    ("--plain=buffer", "the model has the buffer 6.running_mean, which a step may change"),
    ("--length=50", "2 processes cannot share the 1 microbatches of the last step of an epoch equally"),
]


@pytest.mark.parametrize(
    ("arg", "error"),
    [
        pytest.param(*case, id=case[0], marks=() if number in (0, 1) else pytest.mark.long)
        for number, case in enumerate(MISTAKES)
    ],
)
def test_what_is_not_exact_is_refused_in_words(play, arg, error):
    ended = play(*arg.split())
    assert ended.outcome.code == 1
    assert error in ended.outcome.traceback, ended.describe()


@pytest.mark.long
@pytest.mark.parametrize("script", ["train_context.py", "train_experts.py"])
def test_processes_that_compute_parts_of_microbatches_give_the_same_bytes(stage, script):
    def play(processes, start):
        return stage.play(
            script=EXAMPLE.with_name(script), processes=processes, start=start, max_workers=start
        )

    alone = play(2, 1)
    assert_equal(play(2, 2), alone)
    assert_equal(play(4, 1), alone, digests=False)
    if script == "train_context.py":
        whole = stage.play(script=EXAMPLE, max_workers=1)
        found, expected = (list(map(float.fromhex, some.losses)) for some in (alone, whole))
        assert found == pytest.approx(expected, rel=1e-5), alone.describe()


@pytest.mark.long
def test_a_checkpoint_of_tied_tensors_is_read_by_another_number_of_processes(stage, tmp_path):
    """The small Llama of the examples, by 2 x 2 processes, then on from its checkpoint by others."""
    whole = stage.play(script=EXAMPLE, max_workers=2)
    assert whole.outcome.code == 0, whole.describe()
    one = tmp_path / "gangs-first"
    one.mkdir()
    with Attempts(stage, one) as first:
        options = ("--processes=2", "--workers=2", "--checkpoint-every=3 steps", "--keep-last=9")
        first.begin(*options, "--start=2", script=str(EXAMPLE))
        ended = first.wait_for_end()
        assert ended.outcome.code == 0, ended.describe()
        assert (ended.losses, ended.model_digest) == (whole.losses, whole.model_digest)
        for processes in (1, 4):
            other = tmp_path / f"gangs-{processes}"
            other.mkdir()
            with Attempts(stage, other) as second:
                begins = (f"--from={first.run_dir.root}@3", f"--processes={processes}", "--workers=1:2")
                second.begin(*begins, script=str(EXAMPLE))
                ended = second.wait_for_end()
                assert ended.outcome.code == 0, ended.describe()
                assert (ended.losses, ended.model_digest) == (whole.losses[3:], whole.model_digest)


# -- on a device, for which other memory of the host stands ------------------------------------------------


@pytest.mark.parametrize("args", [("--clip=0.5",), ("--edit",), ("--frozen",)])
@pytest.mark.parametrize(("processes", "start"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.long)])
def test_mirrored_gangs_have_the_bytes_of_one_process_in_place(play, args, processes, start):
    alone = play(*args, processes=1)
    assert_equal(play("--mirrored", *args, processes=processes, start=start), alone, digests=False)


def test_mirrored_gangs_join_and_leave(play, assert_undisturbed):
    ended = play("--mirrored", "--steps=40", "--paced-from=3", "--edit", disturb=join_and_leave)
    assert ended.get_shares(40).keys() == {1}
    assert_undisturbed(ended, "--steps=40", "--edit")


@pytest.mark.parametrize(
    ("process", "moment"),
    [
        ("1", "in-backward"),
        *(
            pytest.param(process, moment, marks=pytest.mark.long)
            for process, moment in (
                ("1", "before-reduce"),
                ("1", "after-taking"),
                ("1", "before-apply-here"),
                ("0", "after-first-ready"),
                ("0", "before-vote"),
            )
        ),
    ],
)
def test_a_process_of_a_mirrored_gang_may_die(play, assert_undisturbed, process, moment):
    fault = f"--fault=1.{process}:{STEP}:{moment}"
    ended = play("--mirrored", "--clip=0.5", fault, start=2, max_workers=4)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert_undisturbed(ended, "--clip=0.5")


def test_a_mirrored_gang_resumes_from_its_rows_as_another_number_of_processes(attempts, play, stage):
    stage.preload(*MODULES)
    args = ("--steps=7", "--clip=0.5", "--frozen", "--paced-from=6")
    options = ("--workers=1:2", "--start=1", "--checkpoint-every=2 steps", "--digest-every=2")
    attempts.begin("--processes=2", *options, script="gang.py", args=("--mirrored", *args))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--processes=1", "--start=1")
    ended, expected = attempts.wait_for_end(), play("--steps=7", "--clip=0.5", "--frozen", processes=1)
    assert ended.outcome.code == 0, ended.describe()
    assert (ended.losses, ended.model_digest) == (expected.losses, expected.model_digest), ended.describe()
    assert ended.verdict.problems == (), ended.describe()
