"""A run on three machines with networks of their own outlives a cut link, with the bytes of one worker."""

import sys
import time

import pytest

from elastane.api.endpoint import read_endpoint
from elastane.api.rundir import RunDir

from .machines import FIRST, Machines
from .networks import Networks, NoNetworks

pytestmark = [pytest.mark.processes, pytest.mark.long]
ELASTANE = [sys.executable, "-P", "-m", "elastane"]


@pytest.fixture
def networks():
    try:
        with Networks(2) as made:
            yield made
    except NoNetworks as error:
        pytest.skip(str(error))


@pytest.fixture
def machines(networks, tmp_path):
    with Machines(RunDir(tmp_path / "run"), ELASTANE, networks) as made:
        yield made


def test_a_machine_with_a_cut_link_is_lost_and_returns(machines, networks, assert_equals_reference):
    machines.begin("--seconds=0.3")
    for number, name in ((1, "b"), (2, "c")):
        machines.join(name, number)
        machines.wait_for("node.joined", f"node {name}")
    for worker in ("worker 100", "worker 200"):
        machines.wait_for("worker.joined", worker)
    networks.cut(1)
    began_s = time.monotonic()
    machines.wait_for("node.lost", "node b")
    assert time.monotonic() - began_s < 30
    networks.heal(1)
    machines.wait_for("node.joined", "node b", times=2)
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    (lost,) = ended.find_events("node.lost")
    assert lost.workers == (100,)
    assert "worker 200" not in ended.find_subjects("worker.died")


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
    ended = machines.end(FIRST)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == []
