"""A run on several machines keeps its claims in the store of a controller, which may be away."""

import time
from pathlib import Path

import pytest

from elastane.common.connections.controller_context import Context, save_context
from elastane.run.machines.claims.records import GenerationClaim, OutcomeClaim, TermClaim
from elastane.run.machines.claims.urls import find_claims, open_claim_list
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.silence_limits import SilenceLimits
from elastane.run.observability.run_files import read_record
from tests.cluster.processes.real_controller import RealController
from tests.waiting import wait_until

from .machines import FIRST, Machines
from .stage import SHORT_SILENCE_S

pytestmark = [
    pytest.mark.processes,
    # httpx closes the sockets of this process when they are collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def controller(tmp_path, monkeypatch):
    # The home of the machines, too.
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    with RealController(tmp_path) as made:
        save_context(Context(url=made.url, token=made.token, team="vision"))
        yield made


@pytest.fixture
def machines(stage, tmp_path, controller):
    with Machines(RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S)) as made:
        yield made


def make_steps(machines, count):
    """Let a paced run make so many steps."""
    for _ in range(count):
        step = machines.wait_for_answer().step + 1
        (machines.run_dir.root / f"gate-{step}").touch()
        wait_until(lambda step=step: machines.wait_for_answer().step >= step, f"step {step}")


def find_holding(directory, text):
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.long
def test_training_goes_on_without_the_controller_and_a_takeover_waits_for_it(
    machines, controller, assert_equals_reference
):
    options = ("--claims", controller.url)
    machines.begin("--seconds=0.05", "--steps=40", "--paced-from=5", options=options)
    machines.wait_for_members(FIRST, 2)
    machines.join("b")
    machines.wait_for("worker.ready", "worker 100")
    machines.step_until_members("b")

    pids = [*machines.list_pids(FIRST), *machines.list_pids("b")]
    assert not any(controller.token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    controller.stop()
    make_steps(machines, 3)
    machines.kill(FIRST)
    # On a busy machine a coordinator may have replaced a silent one before.
    terms = machines.count_events()["coordinator.started", "coordinator"]
    limits = SilenceLimits(SHORT_SILENCE_S)
    longest_s = limits.limit_s + limits.turn_s + limits.minority_s
    time.sleep(longest_s)  # not a wait: a takeover would take place meanwhile
    assert machines.count_events()["coordinator.started", "coordinator"] == terms
    controller.start()
    machines.wait_for("coordinator.started", "coordinator", times=terms + 1)
    assert machines.find_in_charge() == "b"
    machines.stop_pacing()

    ended = machines.end("b")
    assert_equals_reference(ended)
    spec = read_record(machines.run_dir).spec
    assert spec.claims == f"{controller.url}/vision"
    held = open_claim_list(find_claims(machines.run_dir, spec)).read()
    kinds = [type(one.record) for one in held]
    assert kinds.count(TermClaim) >= len(ended.find_events("coordinator.started")) >= 2
    assert GenerationClaim in kinds
    assert kinds[-1] is OutcomeClaim
    assert list((machines.run_dir.root / "claims").iterdir()) == []
    assert find_holding(machines.run_dir.root, controller.token) == []
    logs = machines.run_dir.root.parent.glob("*.log")
    assert not any(controller.token in log.read_text() for log in logs)


def test_a_machine_without_a_token_is_refused_in_words(machines, controller, tmp_path):
    machines.begin("--steps=40", "--paced-from=5", options=("--claims", f"{controller.url}/vision"))
    machines.wait_for_members(FIRST, 2)
    save_context(Context(url="https://elsewhere:7425", token=controller.token))
    machines.join("b")
    assert machines.wait("b") != 0
    said = " ".join((tmp_path / "b.log").read_text().split())
    assert f"there is no token for {controller.url}" in said
    assert f"elastane login {controller.url}" in said
    save_context(Context(url=controller.url, token=controller.token))
    machines.stop_pacing()
    assert machines.end(FIRST).outcome.code == 0
