"""A run on three machines with networks of their own outlives broken links, with the bytes of one worker."""

import os
import signal
import time
from itertools import pairwise

import pytest

from elastane.run.connections.endpoint import read_endpoint
from elastane.run.nouns.rundir import RunDir
from tests import waiting
from tests.waiting import wait_until

from .machines import FIRST, Machines
from .stage import SHORT_SILENCE_S

AWAY_ROUNDS = int(os.environ.get("ELASTANE_AWAY_ROUNDS", "5"))
"""How many rounds others make at least while a site is away; one takes about a second."""
LONGEST_ROUND_S = 15.0

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def machines(stage, networks, tmp_path):
    with Machines(
        RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S, warm=False), networks
    ) as made:
        yield made


def test_a_machine_with_a_cut_link_is_lost_and_returns(machines, networks, assert_equals_reference):
    machines.begin("--seconds=0.3")
    for number, name in ((1, "b"), (2, "c")):
        machines.join(name, number)
        machines.wait_for("node.joined", f"node {name}")
    for worker in ("worker 100", "worker 200"):
        machines.wait_for("worker.joined", worker)
    networks.cut(1)
    # TCP alone would notice it after a quarter of an hour.
    machines.wait_for("node.lost", "node b")
    networks.heal(1)
    machines.wait_for("node.joined", "node b", times=2)
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    (lost,) = ended.find_events("node.lost")
    assert lost.workers == (100,)
    assert "worker 200" not in ended.find_subjects("worker.died")


@pytest.mark.timeout(1500)
def test_a_site_with_a_cut_link_is_lost_and_returns_in_a_run_of_rounds(
    machines, networks, stage, monkeypatch
):
    rounds = (f"--steps={60 + AWAY_ROUNDS}", "--inner-steps=3", "--wire=int8", "--group=2")
    machines.begin("--seconds=0.05", *rounds, start=1)
    for number, name in ((1, "b"), (2, "c")):
        machines.join(name, number)
        machines.wait_for_members(name)
    networks.cut(1)
    machines.wait_for("node.lost", "node b")
    lost = machines.count_steps()
    for round_ in range(lost + 1, lost + 1 + AWAY_ROUNDS):
        wait_until(lambda round_=round_: machines.count_steps() >= round_, f"the others make round {round_}")
    networks.heal(1)
    machines.wait_for("node.joined", "node b", times=2)
    machines.wait_for_members("b")
    machines.hurry()
    # The reference run makes as many rounds.
    monkeypatch.setattr(waiting, "WAIT_S", waiting.WAIT_S + AWAY_ROUNDS)
    ended, expected = machines.end(FIRST), stage.play(*rounds)
    assert ended.outcome.code == 0, ended.describe()
    assert (ended.losses, ended.digests) == (expected.losses, expected.digests), ended.describe()
    assert ended.verdict.problems == ()
    assert "worker 200" not in ended.find_subjects("worker.died")
    times = [line.time for line in ended.run.ledger]
    assert max(after - before for before, after in pairwise(times)) < LONGEST_ROUND_S


def begin_on_three_machines(machines):
    """Begin a run with one worker on each machine; its steps are slow until `Machines.hurry`."""
    machines.begin("--seconds=0.1", "--steps=300", start=1)
    for number, name in ((1, "b"), (2, "c")):
        machines.join(name, number)
        machines.wait_for_members(name)


@pytest.mark.parametrize(
    "directions", [((1, 2), (2, 1)), ((1, 2),), ((2, 1),)], ids=["both ways", "from b to c", "from c to b"]
)
def test_of_two_machines_that_do_not_reach_each_other_one_is_given_up(
    directions, machines, networks, assert_equals_reference
):
    begin_on_three_machines(machines)
    for sender, receiver in directions:
        networks.block(sender, receiver)
    wait_until(lambda: len(machines.list_died()) == 1, "a worker of one of the two has ended")
    (died,) = machines.list_died()
    for sender, receiver in directions:
        networks.unblock(sender, receiver)
    # Its machine has a free slot, and now a way to all others.
    machines.wait_for_members("b")
    machines.wait_for_members("c")
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert died in ("worker 100", "worker 200")
    assert {"worker 0", "worker 100", "worker 200"} & set(ended.find_subjects("worker.died")) == {died}
    assert ended.find_events("node.lost") == []


def test_a_machine_that_only_the_coordinator_does_not_hear_keeps_its_worker(
    machines, networks, assert_equals_reference
):
    begin_on_three_machines(machines)
    port = read_endpoint(machines.run_dir).port
    step = machines.wait_for_answer().step
    networks.block(1, 0, (port, port))
    # Its votes arrive over the connections between workers, for longer than silence is allowed.
    time.sleep(3 * SHORT_SILENCE_S)  # not a wait: its loss would be noticed meanwhile
    assert machines.wait_for_answer().step > step
    networks.unblock(1, 0, (port, port))
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == ended.find_events("node.lost") == []
    assert machines.count_events()["coordinator.started", "coordinator"] == 1


def test_a_death_costs_no_worker_of_a_machine_without_the_coordinator(
    machines, networks, assert_equals_reference
):
    """Its worker gets the membership without the dead one from its peer; the next one joins afterwards."""
    begin_on_three_machines(machines)
    port = read_endpoint(machines.run_dir).port
    networks.block(1, 0, (port, port))
    networks.block(0, 1, from_ports=(port, port))
    answer = machines.wait_for_answer()
    machines.signal([row.pid for row in answer.processes if row.worker == 200], signal.SIGKILL)
    machines.wait_for("worker.died", "worker 200")
    # A step takes at least 0.4 s, so these take longer than silence is allowed.
    last = machines.count_steps() + 15
    wait_until(lambda: machines.count_steps() >= last, f"step {last}")
    networks.unblock(1, 0, (port, port))
    networks.unblock(0, 1, from_ports=(port, port))
    machines.wait_for("worker.joined", "worker 201")
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 200"]
    assert ended.find_events("node.lost") == []
    assert machines.count_events()["coordinator.started", "coordinator"] == 1


def test_the_machine_in_charge_whose_packets_vanish_gives_way_and_returns(
    machines, networks, assert_equals_reference
):
    """It still hears all others: one direction is enough to be lost."""
    begin_on_three_machines(machines)
    for receiver in (1, 2):
        networks.block(0, receiver)
    machines.wait_for("node.lost", "the first node")
    for receiver in (1, 2):
        networks.unblock(0, receiver)
    machines.wait_for("node.joined", "the first node")
    assert machines.find_in_charge() in ("b", "c")
    machines.hurry()
    ended = machines.end("b")
    assert_equals_reference(ended)
    assert {"worker 0", "worker 100", "worker 200"} & set(ended.find_subjects("worker.died")) == {"worker 0"}


def test_a_link_that_comes_and_goes_costs_its_machine_at_most_once_each_time(
    machines, networks, assert_equals_reference
):
    begin_on_three_machines(machines)
    for cut_s in (0.3, SHORT_SILENCE_S / 3, SHORT_SILENCE_S + 1.0, 0.5, SHORT_SILENCE_S + 0.5):
        networks.cut(1)
        time.sleep(cut_s)  # not a wait: the length of the outage
        networks.heal(1)
        machines.wait_for_members("b")
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    # TCP outlives the short cuts.
    assert len(ended.find_events("node.lost")) <= 2
    assert {"worker 0", "worker 200"}.isdisjoint(ended.find_subjects("worker.died"))


def test_a_machine_is_reached_at_the_published_ports_of_another_address(
    machines, networks, assert_equals_reference
):
    machines.begin("--seconds=0.3", start=1, options=("--ports", "7000-7017"))
    networks.publish(1, "10.77.200.1", (7100, 7105))
    machines.join("b", 1, slots=2, options=("--advertise", "10.77.200.1", "--ports", "7100-7105"))
    machines.wait_for("worker.joined", "worker 100")
    machines.wait_for("worker.joined", "worker 101")
    endpoint = read_endpoint(machines.run_dir)
    assert (endpoint.host, 7000 <= endpoint.port <= 7017) == ("10.77.1.1", True)
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == []


@pytest.mark.parametrize("networks", [{"ipv6": True}], indirect=True, ids=["ipv6"])
def test_machines_reach_each_other_at_the_ipv6_addresses_of_their_interfaces(
    machines, assert_equals_reference
):
    machines.begin("--seconds=0.1", "--steps=300", start=1, network=1, interface="wire")
    machines.wait_for_members(FIRST)
    machines.join("b", 2, options=("--listen", "wire"))
    machines.wait_for_members("b")
    hosts = {node.name: node.host for node in machines.wait_for_answer().nodes}
    machines.hurry()
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert hosts == {FIRST: "fd77::1:2", "b": "fd77::2:2"}
    assert ended.find_events("worker.died") == []
