"""``--convergence fast`` promises the samples and batches of one worker; only its sums are rounded otherwise.

So a run on several machines that loses workers and a machine within steps learns what an undisturbed run
does. Its bits may differ, but not by more than rounding. A partial sum that is lost, or counted twice,
changes the norm of a gradient by percents.
"""

import pytest

from elastane.run.nouns.rundir import RunDir

from .machines import FIRST, Machines

pytestmark = [pytest.mark.processes, pytest.mark.long]
STEPS = 60
FAULT_STEP = 12
ROUNDING = 0.01
"""Relative. Most steps differ by less than 1e-7; bf16 can make more of it."""


@pytest.fixture
def machines(stage, tmp_path):
    with Machines(RunDir(tmp_path / "run"), stage.build_command("elastane.cli.main")) as made:
        yield made


def test_a_fast_run_over_changes_learns_what_an_undisturbed_run_does(machines, play_reference):
    machines.begin(
        *(
            "--seconds=0.1",
            f"--steps={STEPS}",
            "--paced-from=5",
            f"--fault=100:{FAULT_STEP}:after-first-ready",
        ),
        options=("--convergence", "fast", "--transport", "tcp"),
    )
    machines.wait_for_members(FIRST, 2)
    machines.join("b", slots=2)
    machines.wait_for("worker.ready", "worker 101")
    machines.step_until_members("b", 2)
    # A worker dies after it has announced its sums for a block.
    machines.open_gates(FAULT_STEP)
    machines.wait_for("worker.died", "worker 100")
    machines.wait_for("worker.ready", "worker 102")
    machines.step_until_members("b", 2)
    # A machine dies while steps are made.
    machines.open_gates(machines.wait_for_answer().step + 10)
    machines.kill("b")
    machines.wait_for("node.lost", "node b")
    machines.join("c", slots=1)
    machines.wait_for("worker.ready", "worker 200")
    machines.step_until_members("c")
    machines.stop_pacing()
    ended, reference = machines.end(FIRST), play_reference(STEPS)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.run.record.spec.convergence == "fast"
    assert ended.find_events("run.resumed") == []
    assert {len(line.workers) for line in ended.run.ledger} >= {2, 3, 4}
    # Each sample once and in its step, each virtual rank once.
    assert ended.verdict.problems == ()
    for line, expected in zip(ended.run.ledger, reference.run.ledger, strict=True):
        assert line.samples == expected.samples
        assert line.loss == pytest.approx(expected.loss, rel=ROUNDING), f"step {line.step}"
        assert line.grad_norm == pytest.approx(expected.grad_norm, rel=ROUNDING), f"step {line.step}"
    assert ended.messages[0] == reference.messages[0]
