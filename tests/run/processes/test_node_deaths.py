"""No machine is the head of a run: any may die, stop or leave, also that of the coordinator."""

import os
import signal
import time

import pytest

from elastane.common.exit_codes import ExitCode
from elastane.run.nouns.membership import NUMBERS_AT_ONCE
from elastane.run.nouns.rundir import RunDir
from tests.waiting import wait_until

from .machines import FIRST, Machines
from .stage import SHORT_SILENCE_S, is_alive

pytestmark = pytest.mark.processes


@pytest.fixture
def machines(stage, tmp_path):
    with Machines(RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S)) as made:
        yield made


@pytest.fixture
def slow_machines(stage, tmp_path):
    """Machines whose agents are the parents of their coordinators; the warm process is not."""
    with Machines(
        RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S, warm=False)
    ) as made:
        yield made


def begin_with(machines, *names, seconds=0.15):
    """Begin a run, and let other machines join; many steps are left, however long that took."""
    machines.begin(f"--seconds={seconds}", "--steps=40", "--paced-from=5")
    machines.wait_for_members(FIRST, 2)
    join_each(machines, names)
    machines.stop_pacing()


def begin_with_checkpoints(machines, *names, every="4 steps"):
    """Begin a paced run that has made steps, and usually checkpoints, and let other machines join."""
    machines.begin("--steps=40", "--paced-from=12", options=(f"--checkpoint-every={every}",))
    machines.wait_for_members(FIRST, 2)
    wait_until(lambda: machines.wait_for_answer().step == 11, "steps are behind the run")
    join_each(machines, names)


def join_each(machines, names):
    """Let one machine after the other join, until its worker is a member."""
    for number, name in enumerate(names, start=1):
        machines.join(name)
        machines.wait_for("worker.ready", f"worker {NUMBERS_AT_ONCE * number}")
        machines.step_until_members(name)


def test_a_run_goes_on_without_the_machine_on_which_it_began(machines, assert_equals_reference):
    begin_with(machines, "b")
    machines.kill(FIRST)
    machines.wait_for("coordinator.started", "coordinator", times=2)
    assert machines.find_in_charge() == "b"
    machines.hurry()
    ended = machines.end("b")
    assert_equals_reference(ended)
    assert sorted(ended.find_subjects("worker.died")) == ["worker 0", "worker 1"]
    # The machine in charge at the end writes what `elastane run` would have written.
    assert machines.run_dir.report.exists()
    assert not machines.run_dir.endpoint.exists()


def test_elastane_join_says_why_its_machine_gets_no_workers(machines, assert_equals_reference, tmp_path):
    places = (f"--checkpoint-dir={tmp_path / 'kept'}", f"--claims={tmp_path / 'claimed'}")
    machines.begin("--steps=40", "--paced-from=5", "--unfit=b", options=places)
    machines.wait_for_members(FIRST, 2)
    machines.join("b")
    assert machines.wait("b") == 1
    said = " ".join((tmp_path / "b.log").read_text().split())
    assert "node b gets no further workers: 3 in a row ended before they joined" in said
    assert "ImportError: a library is missing on b" in said
    assert "this machine has left the run, because it gets no workers" in said
    machines.join("c")
    machines.wait_for("worker.ready", f"worker {2 * NUMBERS_AT_ONCE}")
    machines.step_until_members("c")
    machines.stop_pacing()
    ended = machines.end(FIRST)
    assert_equals_reference(ended, unfit="b")
    assert ended.find_subjects("node.left") == ["node b"]
    assert list(tmp_path.rglob("mark-*")) == []


def test_a_worker_that_joined_reports_the_steps_that_only_dead_workers_had_made(machines, play_reference):
    machines.begin("--steps=40", "--paced-from=9", "--withhold-from=5", options=("--digest-every=1",))
    machines.wait_for_members(FIRST, 2)
    wait_until(lambda: machines.wait_for_answer().step == 8, "the first eight steps are made")
    assert machines.count_steps() <= 4
    machines.join("b")
    machines.wait_for("worker.ready", f"worker {NUMBERS_AT_ONCE}")
    machines.step_until_members("b")
    machines.kill(FIRST)
    machines.stop_pacing()
    ended = machines.end("b")
    assert ended.outcome.code == 0, ended.describe()
    expected = play_reference(40)
    assert ended.losses == expected.losses
    assert len(ended.digests) == 40
    assert ended.digests.items() >= expected.digests.items()
    assert ended.messages == expected.messages
    assert ended.model_digest == expected.model_digest
    assert ended.verdict.problems == ()


def test_other_machines_take_part_again_when_every_copy_of_the_state_is_lost(
    machines, assert_attempts_equal_reference
):
    begin_with_checkpoints(machines, "b")
    rows = machines.wait_for_answer().processes
    machines.signal([row.pid for row in rows if row.role == "worker"], signal.SIGKILL)
    machines.wait_for("node.joined", "node b", times=2)
    machines.stop_pacing()
    ended = machines.end(FIRST)
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert resumed.why.split(":")[0] == "every copy of the state was lost"
    assert machines.wait("b") == 0


def lose_state(machines):
    """Kill every worker of a run; return the machine on which it is resumed."""
    before = sum(kind == "run.resumed" for kind, _ in machines.count_events().elements())
    rows = machines.wait_for_answer().processes
    machines.signal([row.pid for row in rows if row.role == "worker"], signal.SIGKILL)

    def list_resumed():
        return [who for kind, who in machines.count_events().elements() if kind == "run.resumed"]

    wait_until(lambda: len(list_resumed()) > before, "the run is resumed")
    return list_resumed()[-1].removeprefix("node ")


@pytest.mark.long
def test_joined_machines_resume_a_run_whose_first_machine_is_gone(machines, assert_attempts_equal_reference):
    begin_with_checkpoints(machines, "b", "c")
    machines.kill(FIRST)
    machines.wait_for("coordinator.started", "coordinator", times=2)
    resuming = lose_state(machines)
    other = {"b": "c", "c": "b"}[resuming]
    # The other one takes part again, and takes over when the resuming one dies too.
    machines.wait_for("node.joined", f"node {other}", times=2)
    machines.step_until_members(other)
    machines.kill(resuming)
    wait_until(lambda: machines.find_in_charge() == other, "the other machine is in charge")
    assert lose_state(machines) == other
    machines.stop_pacing()
    ended = machines.end(other)
    assert_attempts_equal_reference(ended)
    assert [event.who for event in ended.find_events("run.resumed")] == [f"node {resuming}", f"node {other}"]
    assert machines.run_dir.report.exists()
    assert not machines.run_dir.endpoint.exists()


def test_a_joined_machine_begins_a_run_again_that_has_no_checkpoint_yet(
    machines, assert_attempts_equal_reference
):
    begin_with_checkpoints(machines, "b", every="1h")
    machines.kill(FIRST)
    machines.wait_for("coordinator.started", "coordinator", times=2)
    assert lose_state(machines) == "b"
    machines.stop_pacing()
    ended = machines.end("b")
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, "from the beginning" in resumed.why) == (0, True)


def test_a_machine_that_missed_the_end_of_an_attempt_takes_part_in_the_next_one_anew(
    machines, assert_attempts_equal_reference
):
    begin_with_checkpoints(machines, "b")
    agent, *processes = machines.list_pids("b")
    machines.signal([agent], signal.SIGSTOP)
    rows = machines.wait_for_answer().processes
    # It is not connected to the next coordinator, which tells that the state is lost.
    machines.signal([row.pid for row in rows if row.state == "term 1"], signal.SIGKILL)
    machines.wait_for("coordinator.started", "coordinator", times=2)
    machines.signal([row.pid for row in rows if row.role == "worker" and not row.node], signal.SIGKILL)
    machines.signal(processes, signal.SIGKILL)
    machines.wait_for("run.resumed", "elastane run")
    machines.signal([agent], signal.SIGCONT)
    machines.wait_for("node.joined", "node b", times=2)
    machines.stop_pacing()
    ended = machines.end(FIRST)
    assert_attempts_equal_reference(ended)
    assert machines.wait("b") == 0
    log = (machines.run_dir.root.parent / "b.log").read_text()
    assert "attempt 1 of the run has ended: the coordinator is of attempt 2" in log


@pytest.mark.long
def test_a_machine_in_charge_that_stopped_gives_way_and_returns(machines, assert_equals_reference):
    begin_with(machines, "b", "c", seconds=0.25)
    stopped = machines.list_pids(FIRST)
    machines.signal(stopped, signal.SIGSTOP)
    machines.wait_for("node.lost", "the first node")
    in_charge = machines.find_in_charge()
    machines.signal(stopped, signal.SIGCONT)
    # Its coordinator learns that it is not in charge, its old workers end, and it takes part with new ones.
    machines.wait_for("node.joined", "the first node")
    machines.wait_for_members(FIRST, 2)
    assert machines.find_in_charge() == in_charge != FIRST
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert "has claimed term" in machines.run_dir.log("coordinator").read_text()


@pytest.mark.long
def test_a_coordinator_that_hangs_is_replaced_on_its_own_machine(slow_machines, assert_equals_reference):
    machines = slow_machines
    begin_with(machines, "b")
    answer = machines.wait_for_answer()
    pid = next(row.pid for row in answer.processes if row.state == "term 1")
    os.kill(pid, signal.SIGSTOP)
    machines.wait_for("coordinator.started", "coordinator", times=2)
    assert machines.find_in_charge() == FIRST
    wait_until(lambda: not is_alive(pid), "the stopped coordinator has ended")
    machines.hurry()
    assert_equals_reference(machines.end(FIRST))


@pytest.mark.long
def test_the_end_of_the_terminal_lets_the_first_machine_leave(machines, assert_equals_reference):
    begin_with(machines, "b")
    (agent, *_) = machines.list_pids(FIRST)
    os.kill(agent, signal.SIGHUP)
    assert machines.wait(FIRST) == 0
    machines.wait_for("coordinator.started", "coordinator", times=2)
    machines.hurry()
    ended = machines.end("b")
    assert_equals_reference(ended)
    # It has handed over: no machine had to notice that it is silent.
    assert ended.find_events("coordinator.died") == []
    assert ended.find_events("worker.died") == []
    assert sorted(ended.find_subjects("worker.left")[:2]) == ["worker 0", "worker 1"]


def interrupt(machines, node):
    """Press Ctrl-C in ``elastane join``."""
    machines.signal(machines.list_pids(node)[:1], signal.SIGINT)
    log = machines.run_dir.root.parent / f"{node}.log"
    wait_until(
        lambda: "press Ctrl-C again to end at once" in log.read_text(), "the command says what follows"
    )


def assert_left_without_loss(machines, assert_equals_reference):
    assert machines.wait("b") == 0
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.find_subjects("node.left") == ["node b"]
    assert ended.find_events("worker.died") == ended.find_events("node.lost") == []


def test_ctrl_c_in_elastane_join_drains_the_machine(machines, assert_equals_reference):
    begin_with(machines, "b")
    interrupt(machines, "b")
    assert_left_without_loss(machines, assert_equals_reference)


def test_notices_to_all_processes_of_elastane_join_drain_the_machine(machines, assert_equals_reference):
    """A launcher sends them at its end to each process of its job, and repeats them."""
    begin_with(machines, "b")
    pids = machines.list_pids("b")
    for _ in range(2):
        machines.signal(pids, signal.SIGTERM)
    assert_left_without_loss(machines, assert_equals_reference)


def test_a_second_ctrl_c_in_elastane_join_ends_the_machine_at_once(machines, assert_equals_reference):
    machines.begin("--steps=40", "--paced-from=5")
    machines.wait_for_members(FIRST, 2)
    join_each(machines, ["b"])
    # Its worker could leave at a commit only, and there is none.
    interrupt(machines, "b")
    interrupt(machines, "b")
    assert machines.wait("b") == ExitCode.STOPPED_BY_USER
    machines.stop_pacing()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == [f"worker {NUMBERS_AT_ONCE}"]


@pytest.mark.long
def test_a_machine_in_charge_that_its_user_kills_leaves_the_run_to_the_others(
    machines, assert_equals_reference
):
    begin_with(machines, "b", "c")
    machines.kill(FIRST)
    machines.wait_for("coordinator.started", "coordinator", times=2)
    killed = machines.find_in_charge()
    (agent, *_) = machines.list_pids(killed)
    for _ in range(2):
        os.kill(agent, signal.SIGINT)
        time.sleep(0.2)  # not a wait: two signals at once would count as one
    machines.wait(killed)
    machines.hurry()
    ended = machines.end("c" if killed == "b" else "b")
    assert_equals_reference(ended)
    assert machines.run_dir.report.exists()
