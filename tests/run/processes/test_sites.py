"""Sites with data of their own: it is read there only, and rounds wait for an absent site or leave it out."""

import pytest

from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.bound_data import collect_absences, read_worker_sites
from elastane.run.observability.run_files import read_run

from .machines import FIRST, Machines
from .stage import SHORT_SILENCE_S

pytestmark = pytest.mark.processes

ROUNDS, WITHOUT = 12, 6
ARGS = (f"--steps={ROUNDS}", "--inner-steps=3", "--sites=eu,us")
DELAYED = (*ARGS, "--delay=1", "--wire=int8")


@pytest.fixture
def machines(stage, tmp_path):
    with Machines(RunDir(tmp_path / "run"), stage.build_command(silence_s=SHORT_SILENCE_S)) as made:
        yield made


def check_openings(ended):
    """Check that no worker has opened the data of another site."""
    sites = read_worker_sites(ended.run.events)
    opened = [path.name.split("-")[1:] for path in ended.run.run_dir.root.glob("opened-*")]
    assert opened
    assert all(site in sites[int(worker)] for site, worker in opened), (opened, sites)


def list_absences(machines):
    """Return the sites that each committed round has left out."""
    return [line.absent for line in read_run(machines.run_dir).ledger]


@pytest.mark.parametrize("args", [ARGS, DELAYED], ids=["at once", "delayed"])
def test_rounds_wait_for_a_site_and_its_return_changes_no_bit(stage, machines, args):
    expected = stage.play(*args, sites=("eu", "us"))
    machines.begin(*args, f"--paced-from={WITHOUT}", start=1, options=("--site", "eu"))
    machines.join("b", options=("--site", "us"))
    machines.wait_for_members("b")
    machines.kill("b")
    machines.stop_pacing()
    machines.wait_for("site.absent", "site us")
    assert "waits for a worker of site us" in machines.wait_for_answer().note
    machines.join("c", options=("--site", "us"))
    ended = machines.end(FIRST)
    assert ended.outcome.code == 0, ended.describe()
    assert (ended.losses, ended.digests) == (expected.losses, expected.digests), ended.describe()
    assert ended.verdict.problems == ()
    check_openings(ended)


def test_rounds_leave_a_site_out_and_are_repeated_from_the_ledger(stage, machines):
    args = (*ARGS, "--absent=skip")
    machines.begin(*args, "--paced-from=2", start=1, options=("--site", "eu"))
    machines.join("b", options=("--site", "us"))
    machines.wait_for("worker.ready", "worker 100")
    machines.step_until("a round with both sites", lambda: () in list_absences(machines))
    machines.kill("b")
    machines.stop_pacing()
    ended = machines.end(FIRST)
    assert ended.outcome.code == 0, ended.describe()
    absences = [line.absent for line in ended.run.ledger]
    assert absences[0] == absences[-1] == ("us",)
    assert () in absences
    assert ended.verdict.problems == ()
    assert ended.verdict.remarks == (f"site us was left out of {absences.count(('us',))} of {ROUNDS} rounds",)
    check_openings(ended)
    again = stage.play(*args, sites=("eu", "us"), replayed=collect_absences(ended.run.ledger))
    assert (again.losses, again.digests) == (ended.losses, ended.digests), again.describe()
    assert again.verdict.problems == ()
    assert again.model_digest == ended.model_digest


def test_a_machine_with_other_data_of_a_site_is_refused_and_the_run_goes_on(stage, machines):
    args = (*ARGS, "--shorter=200")
    machines.begin(*args, "--paced-from=2", start=1, options=("--site", "eu"))
    machines.join("b", options=("--site", "us"))
    machines.wait_for_members("b")
    machines.join("c", options=("--site", "us"))
    machines.wait_for("worker.refused", "worker 200")
    machines.stop_pacing()
    ended = machines.end(FIRST)
    assert ended.outcome.code == 0, ended.describe()
    (refused,) = ended.find_events("worker.refused")
    assert "the dataset of site us is another one than the run's" in refused.why
    expected = stage.play(*ARGS, sites=("eu", "us"))
    assert (ended.losses, ended.digests) == (expected.losses, expected.digests), ended.describe()


def test_a_run_of_machines_without_its_data_is_refused_in_words(stage):
    refused = stage.play(*ARGS, sites=("jp",))
    assert refused.outcome.code == 1
    assert "belongs to site jp, and the data of the run is bound to eu, us" in refused.outcome.why
