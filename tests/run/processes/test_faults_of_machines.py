"""Machines with networks of their own die, stop, are cut off, leave and return: the bytes stay the same.

The first machine is one of three here, not the hub between them, so its link can be cut too.
"""

import signal
import subprocess
import time
from itertools import cycle, islice, pairwise

import pytest

from elastane.run.machines.claims.history import list_generations
from elastane.run.machines.claims.urls import find_claims, open_claim_list
from elastane.run.nouns.rundir import CLAIMS, RunDir
from tests.waiting import wait_until

from .machines import FIRST, Machines
from .networks import Networks, NoNetworks
from .skipping import skip_except_in_ci
from .stage import SHORT_SILENCE_S

pytestmark = [pytest.mark.processes, pytest.mark.long]
NUMBERS = {FIRST: 1, "b": 2, "c": 3}
"""The network of each machine of the shorter tests."""
ENDS = ("killed", "stopped", "cut off", "stopped for a while", "cut off for a while")
"""Ways in which a run loses a machine; it returns from those for a while. One that is cut off dies too."""


@pytest.fixture
def networks(request):
    try:
        with Networks(*getattr(request, "param", (3,))) as made:
            yield made
    except NoNetworks as error:
        skip_except_in_ci(str(error))


@pytest.fixture
def machines(stage, networks, tmp_path):
    with Machines(RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S), networks) as made:
        yield made


def begin_on_three_machines(machines, *options, workers=(1, 1, 1), steps=300):
    """Begin a run with these numbers of workers; its steps are slow until `Machines.hurry`."""
    machines.begin("--seconds=0.1", f"--steps={steps}", start=workers[0], network=1, options=options)
    machines.wait_for_members(FIRST, workers[0])
    for name, slots in zip(("b", "c"), workers[1:], strict=True):
        machines.join(name, NUMBERS[name], slots)
        machines.wait_for_members(name, slots)


def name_node(name):
    """Return the subject of events of a machine."""
    return f"node {name}" if name else "the first node"


def list_workers(machines, *names):
    """Return the subjects of events of the workers on some machines."""
    rows = machines.wait_for_answer().processes
    return [f"worker {row.worker}" for row in rows if row.role == "worker" and row.node in names]


def lose(machines, networks, name, number, how):
    """Let a run lose a machine, and return its workers; what does not return is dead in the end."""
    workers = list_workers(machines, name)
    subject = name_node(name)
    lost = machines.count_events()["node.lost", subject]
    if how.startswith("cut off"):
        networks.cut(number)
    if how.startswith("stopped"):
        networks.signal(number, signal.SIGSTOP)
    if how in ("killed", "cut off"):
        networks.signal(number, signal.SIGKILL)
    machines.wait_for("node.lost", subject, times=lost + 1)
    if how == "stopped":
        networks.signal(number, signal.SIGKILL)
    return workers


def take_back(machines, networks, name, number, how):
    """Let a lost machine take part again, with new workers."""
    joined = machines.count_events()["node.joined", name_node(name)]
    if how.startswith("cut off"):
        networks.heal(number)
    else:
        networks.signal(number, signal.SIGCONT)
    machines.wait_for("node.joined", name_node(name), times=joined + 1)


def assert_only_lost(ended, names, workers):
    """Assert that a run lost these machines, each so often, and no other workers than these."""
    assert sorted(ended.find_subjects("node.lost")) == sorted(map(name_node, names)), ended.describe()
    assert set(ended.find_subjects("worker.died")) == set(workers), ended.describe()
    assert_one_chain(ended)


def assert_one_chain(ended):
    """Assert that claimed generations follow each other, and that only their members made their steps.

    The first step of a generation may have been computed before a loss, if the others had all of its sums.
    """
    claims = find_claims(ended.run.run_dir, ended.run.record.spec)
    chain = list_generations(open_claim_list(claims).read())
    claimed = {one.number: one.members for one in chain}
    assert [one.number for one in chain] == sorted(claimed), ended.describe()
    strangers = [
        line
        for before, line in pairwise(ended.run.ledger)
        if before.generation == line.generation in claimed
        and not set(line.workers) <= set(claimed[line.generation])
    ]
    assert strangers == [], f"{chain}\n{ended.describe()}"


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("name", [FIRST, "b"], ids=["in charge", "another"])
def test_a_run_outlives_a_machine(name, how, machines, networks, assert_equals_reference):
    begin_on_three_machines(machines)
    workers = lose(machines, networks, name, NUMBERS[name], how)
    if how.endswith("for a while"):
        take_back(machines, networks, name, NUMBERS[name], how)
        machines.wait_for_members(name)
    assert (machines.find_in_charge() == FIRST) == (name != FIRST)
    machines.hurry()
    ended = machines.end("c")
    assert_equals_reference(ended)
    assert_only_lost(ended, [name], workers)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_machine_goes_on_without_one_with_more_workers(how, machines, networks, assert_equals_reference):
    machines.begin("--seconds=0.1", "--steps=200", start=1, network=1)
    machines.wait_for_members(FIRST)
    machines.join("b", NUMBERS["b"], 3)
    machines.wait_for_members("b", 3)
    workers = lose(machines, networks, "b", NUMBERS["b"], how)
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert_only_lost(ended, ["b"], workers)


@pytest.mark.parametrize("name", [FIRST, "b"], ids=["in charge", "another"])
def test_a_machine_leaves(name, machines, networks, stage, assert_equals_reference):
    begin_on_three_machines(machines)
    drain = (*stage.build_command("elastane.cli.main"), "drain", str(machines.run_dir.root))
    subprocess.run(networks.wrap_command(0, [*drain, name or "first"]), check=True, capture_output=True)
    assert machines.wait(name) == 0
    machines.hurry()
    ended = machines.end("c")
    assert_equals_reference(ended)
    assert ended.find_subjects("node.left") == [name_node(name)]
    assert_only_lost(ended, [], [])
    # A machine in charge has handed over: no other one had to notice that it is silent.
    assert ended.find_events("coordinator.died") == []


@pytest.mark.parametrize("at_last", [1, 3], ids=["coordinator with more", "coordinator with fewer"])
def test_the_part_with_more_workers_goes_on(at_last, machines, networks, assert_equals_reference):
    """The network falls into two parts: the coordinator's machine and another one, and the third."""
    begin_on_three_machines(machines, workers=(1, 1, at_last))
    gone = ("c",) if at_last == 1 else (FIRST, "b")
    workers = list_workers(machines, *gone)
    networks.part((1, 2), (3,))
    for name in gone:
        machines.wait_for("node.lost", name_node(name))
    networks.unite((1, 2), (3,))
    for name in gone:
        machines.wait_for("node.joined", name_node(name), times=2 if name else 1)
        machines.wait_for_members(name)
    in_charge = machines.find_in_charge()
    machines.hurry()
    ended = machines.end(in_charge)
    assert_equals_reference(ended)
    assert in_charge == (FIRST if at_last == 1 else "c")
    assert_only_lost(ended, gone, workers)


@pytest.mark.parametrize("for_s", [8 / 3 * SHORT_SILENCE_S, 20 / 3 * SHORT_SILENCE_S])
def test_an_outage_of_the_whole_network_costs_nothing(
    for_s, machines, networks, assert_equals_reference, tmp_path
):
    """No machine reaches another one or the claim list, as when the switch of them all restarts."""
    begin_on_three_machines(machines)
    claims, away = machines.run_dir.root / CLAIMS, tmp_path / "away"
    for number in NUMBERS.values():
        networks.cut(number)
    claims.rename(away)
    time.sleep(for_s)  # not a wait: the length of the outage, in which nothing may happen
    away.rename(claims)
    for number in NUMBERS.values():
        networks.heal(number)
    step = machines.wait_for_answer().step
    wait_until(lambda: machines.wait_for_answer().step > step + 3, "further steps")
    machines.hurry()
    ended = machines.end(machines.find_in_charge())
    assert_equals_reference(ended)
    assert_only_lost(ended, [], [])


# With 80 ms from a machine to another one and back a step takes several times as long.
@pytest.mark.parametrize("networks", [(3, 0.02)], indirect=True, ids=["20 ms"])
def test_machines_with_slow_links_are_lost_and_return(machines, networks, assert_equals_reference):
    begin_on_three_machines(machines, steps=150)
    workers = []
    for name, how in ((FIRST, "stopped for a while"), ("b", "cut off for a while")):
        workers += lose(machines, networks, name, NUMBERS[name], how)
        take_back(machines, networks, name, NUMBERS[name], how)
        machines.wait_for_members(name)
    machines.hurry()
    ended = machines.end("c")
    assert_equals_reference(ended)
    assert_only_lost(ended, [FIRST, "b"], workers)


def test_a_run_resumes_after_every_copy_of_its_state_was_lost(
    machines, networks, assert_attempts_equal_reference
):
    begin_on_three_machines(machines, "--checkpoint-every=4 steps")
    wait_until(
        lambda: any(kind == "checkpoint.saved" for kind, _ in machines.count_events()), "a checkpoint exists"
    )
    rows = machines.wait_for_answer().processes
    machines.signal([row.pid for row in rows if row.role == "worker"], signal.SIGKILL)
    machines.wait_for("run.resumed", "elastane run")
    for name in ("b", "c"):
        machines.wait_for("node.joined", name_node(name), times=2)
        machines.wait_for_members(name)
    machines.hurry()
    ended = machines.end(FIRST)
    assert_attempts_equal_reference(ended)
    assert ended.find_events("node.lost") == []
    assert machines.wait("b") == machines.wait("c") == 0


# Ten deaths alone take two and a half minutes.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("series", range(5))
@pytest.mark.parametrize("networks", [(14,)], indirect=True, ids=["14 machines"])
def test_the_machine_in_charge_is_lost_ten_times(series, machines, networks, assert_equals_reference):
    """Together fifty times, each with other workers, at another age and in another way."""
    machines.begin("--seconds=0.08", "--steps=900", start=1 + series % 2, network=1)
    machines.wait_for_members(FIRST, 1 + series % 2)
    numbers, slots, present = {FIRST: 1}, {FIRST: 1 + series % 2}, {FIRST}
    lost, workers = [], []

    def join(count):
        name = f"m{len(numbers)}"
        numbers[name], slots[name] = len(numbers) + 1, count
        present.add(name)
        machines.join(name, numbers[name], count)
        machines.wait_for_members(name, count)

    # With an even number of workers the smaller part must wait for the larger one; with three it need not.
    join(1 + series % 3)
    for how in islice(cycle(ENDS), series, series + 10):
        if len(present) == 1:
            join(1)
        name = machines.find_in_charge()
        if how == "cut off for a while":
            # The others must be more than it: the part with more workers goes on.
            join(slots[name])
        workers += lose(machines, networks, name, numbers[name], how)
        lost.append(name)
        if how.endswith("for a while"):
            take_back(machines, networks, name, numbers[name], how)
            machines.wait_for_members(name, slots[name])
        else:
            present.remove(name)
    machines.hurry()
    ended = machines.end(machines.find_in_charge())
    assert_equals_reference(ended)
    assert_only_lost(ended, lost, workers)
