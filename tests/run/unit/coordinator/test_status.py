"""The status of a run has what its agents have seen, and what its workers report."""

import pytest

from elastane.run.nouns.control import AskStatus, CheckpointPart, ProcessInfo


def find_worker(stage, worker):
    return next(row for row in stage.ask(AskStatus()).processes if row.worker == worker)


def test_a_worker_does_what_its_agent_has_seen(training) -> None:
    seen = ProcessInfo(role="worker", pid=100, worker=0, activity={"compute": 80, "wait": 20}, silent_s=3.5)
    stage = training()
    stage.report_agent(workers=(seen,))
    stage.report_worker(0, compute_s=0.25)
    row = find_worker(stage, 0)
    assert (row.state, row.activity, row.silent_s, row.compute_s) == (
        "member",
        {"compute": 80, "wait": 20},
        3.5,
        0.25,
    )


@pytest.mark.parametrize(
    ("state", "saving"),
    [("copied", True), ("writing", True), ("failing", True), ("written", False), ("abandoned", False)],
)
def test_a_worker_saves_until_its_part_is_written(training, state, saving) -> None:
    part = CheckpointPart(name="step-5", step=5, writers=(0,), state=state)
    stage = training()
    stage.report_worker(0, checkpoints=(part,))
    assert find_worker(stage, 0).saving is saving
