"""A job with data at two sites: its agents are at both, know their site, and train the same bytes."""

import json

import pytest

from elastane.run.attempts.verification import verify_run
from elastane.run.observability.bound_data import read_worker_sites
from tests.waiting import wait_until

from .small_cluster import SOURCES, TRAINING, count_members, read_json, wait_for_state
from .test_jobs_on_agents_elsewhere import engine, read_training, run_elastane

pytestmark = [pytest.mark.processes, pytest.mark.long]
__all__ = ["engine", "read_training", "run_elastane"]
ROUNDS, FIRST_PACED = 40, 4


@pytest.fixture
def home_option() -> str:
    """The machines share no directory, and each learns its site."""
    return "own"


@pytest.fixture
def pool_options() -> dict[str, str]:
    return {}


def test_a_job_at_two_sites_trains_the_bytes_of_one_machine(
    run_elastane, engine, read_training, stage, tmp_path
):
    run_elastane("pool", "set", "local", "--site", "eu", "--devices", "3")
    boston = ("--device", "cpu", "--devices", "1", "--engine", "far", "--site", "us", "--price", "2")
    run_elastane("pool", "set", "overseas", *boston)
    prices = tmp_path / "prices.yaml"
    prices.write_text('egress:\n- {name: eu, prices: {"*": 900}}\n')
    run_elastane("config", "apply", prices)
    args = (f"--steps={ROUNDS}", "--inner-steps=3", "--sites=eu,us")
    job = tmp_path / "job.yaml"
    job.write_text(
        f"command: [python, {TRAINING}, {', '.join(map(json.dumps, args))}, --paced-from={FIRST_PACED}]\n"
        f"env: {{PYTHONPATH: {SOURCES}}}\n"
        "elasticPolicy: {minReplicas: 2, maxReplicas: 3}\n"
        f"training: {{checkpoints: {{url: {tmp_path / 'store'}}}}}\n"
        "data: {sites: [eu, us]}\n"
    )
    run_elastane("submit", job, "--name", "study")
    wait_until(lambda: count_members(run_elastane, "study") >= 2, "it begins", state=engine.list_living)

    def release_round() -> None:
        """Release the next round once all are ready: the first ones may be faster than the last one."""
        run = read_training("study")
        ready = [event for event in run.events if event.kind == "worker.ready"]
        if len(ready) == 3 and run.ledger:
            open_gate(f"gate-{run.ledger[-1].step + 1}")

    def open_gate(name: str) -> None:
        for agent in engine.list_living():
            for root in (tmp_path / "agents" / agent).glob("agent-runs/*/*"):
                (root / name).touch()

    wait_until(
        lambda: count_members(run_elastane, "study") == 3,
        "the third worker joins",
        state=engine.list_living,
        meanwhile=release_round,
    )
    assert read_json(run_elastane, "describe", "study")["grant"]["workers"] == {"local": 2, "overseas": 1}
    wait_until(lambda: read_json(run_elastane, "describe", "study")["egressSpent"], "bytes are paid")
    open_gate("gates")
    wait_for_state(run_elastane, "study", "finished", engine.list_living)
    run, alone = read_training("study"), stage.play(*args, sites=("eu", "us"))
    assert [line.loss_hex for line in run.ledger] == alone.losses
    assert sorted(read_worker_sites(run.events).values(), key=sorted) == [{"eu"}, {"eu"}, {"us"}]
    assert verify_run(run).problems == ()
    usage = {row["pool"]: row for row in read_json(run_elastane, "usage", "--by", "pool")["rows"]}
    there, back = usage["eu>us"], usage["us>eu"]
    assert there["egressCost"] == pytest.approx(there["egressBytes"] / 1e9 * 900)
    assert (back["egressBytes"] > 0, back["egressCost"]) == (True, 0)
    assert read_json(run_elastane, "describe", "study")["egressSpent"] == pytest.approx(there["egressCost"])
