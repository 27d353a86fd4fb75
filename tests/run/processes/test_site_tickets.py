"""The owner of a run gives each site a ticket, and takes it back; the others wait for the site's return."""

import subprocess
import sys

import pytest

from elastane.run.machines.tickets.ticket_files import revoke_tickets
from elastane.run.nouns.rundir import RunDir

from .machines import FIRST, Machines
from .stage import SHORT_SILENCE_S

pytestmark = pytest.mark.processes

ARGS = ("--steps=12", "--inner-steps=3", "--sites=eu,us")


@pytest.fixture
def machines(stage, tmp_path):
    with Machines(RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S)) as made:
        yield made


def create_ticket(machines, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "elastane", "ticket", "create", str(machines.run_dir.root), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.long
def test_a_site_whose_ticket_is_revoked_leaves_and_returns_with_another_one(stage, machines):
    expected = stage.play(*ARGS, sites=("eu", "us"))
    machines.begin(*ARGS, "--paced-from=4", start=1, options=("--site", "eu"))
    machines.wait_for_answer()
    ticket = create_ticket(machines, "us")
    machines.join("liar", options=("--site", "eu"), ticket=ticket)
    assert machines.wait("liar") == 2
    assert "the ticket is one of site us" in machines.read_log("liar")
    machines.join("stranger", options=("--site", "us"))
    assert machines.wait("stranger") == 2
    assert "has not joined with one of that site" in machines.read_log("stranger")
    machines.join("b", ticket=ticket)
    machines.wait_for_members("b")
    revoke_tickets(machines.run_dir, "us")
    machines.wait_for("drain.requested", "node b")
    machines.step_until("b has left", lambda: machines.count_events()["node.left", "node b"])
    assert machines.wait("b") == 0
    machines.join("c", ticket=ticket)
    assert machines.wait("c") == 2
    assert "the ticket was revoked" in machines.read_log("c")
    machines.wait_for("site.absent", "site us")
    machines.stop_pacing()
    machines.join("d", ticket=create_ticket(machines, "us"))
    ended = machines.end(FIRST)
    assert ended.outcome.code == 0, ended.describe()
    assert (ended.losses, ended.digests) == (expected.losses, expected.digests), ended.describe()
    assert ended.verdict.problems == ()
    assert ended.find_events("worker.died") == []
