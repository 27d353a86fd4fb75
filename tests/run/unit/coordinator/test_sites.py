"""The coordinator waits for sites with bound data, or leaves them out, and brings them back."""

from dataclasses import replace

import msgspec
import pytest

from elastane.run.coordinator.sites import choose_joining
from elastane.run.nouns.control import AskResize, AskStatus, AskStop, Dismiss, WorkerReport

from .conftest import PINNED

RANKS = ("eu",) * 4 + ("us",) * 4


@pytest.fixture
def stage(open_stage):
    return open_stage(start=1)


@pytest.fixture
def start(stage):
    """Return a function that starts workers, each with its site."""

    def begin(absent, digest="digest of {site}", **sites):
        pinned = msgspec.structs.replace(PINNED, rank_sites=RANKS, absent=absent)
        numbers = {int(name.removeprefix("w")): site for name, site in sites.items()}
        stage.alive |= numbers.keys()
        stage.target = max(stage.target, len(stage.alive))
        if stage.roster.wanted.target is not None:
            stage.ask(AskResize(workers=stage.target))
        stage.report_agent()
        for worker, site in numbers.items():
            own = msgspec.structs.replace(pinned, site_digests={site: digest.format(site=site)})
            stage.report_worker(worker, state="ready", pinned=own, sites=(site,))

    return begin


def with_ready(stage, sites):
    """Return the roster with further workers that are ready at the same time."""
    reports = {
        worker: WorkerReport(
            worker=worker, pid=1, host="", port=0, state="ready", sites=(site,), pinned=stage.roster.pinned
        )
        for worker, site in sites.items()
    }
    return replace(stage.roster, reports={**stage.roster.reports, **reports})


def list_kinds(stage):
    return [event.kind for event in stage.written if event.kind.startswith("site.")]


def test_the_first_generation_waits_for_a_worker_of_each_site(stage, start):
    start("wait", w0="eu", w1="eu")
    assert stage.roster.newest is None
    assert "the run waits for a worker of site us" in stage.ask(AskStatus()).note
    start("wait", w2="us")
    assert stage.newest.workers == (0, 1, 2)
    assert stage.newest.absent == ()


def test_a_run_that_skips_begins_with_the_sites_that_are_there(stage, start):
    start("skip", w0="eu")
    assert (stage.newest.workers, stage.newest.absent) == ((0,), ("us",))
    stage.adopt()
    start("skip", w1="us")
    assert (stage.newest.workers, stage.newest.absent) == ((0, 1), ())
    assert list_kinds(stage) == ["site.absent", "site.present"]


def test_the_loss_of_the_last_worker_of_a_site_leaves_it_out(stage, start):
    start("skip", w0="eu", w1="us")
    stage.adopt()
    stage.end_worker(1)
    assert (stage.newest.planned, stage.newest.absent) == (False, ("us",))


def test_a_worker_of_the_missing_site_joins_first(stage, start):
    start("wait", w0="eu", w1="us")
    stage.adopt()
    stage.end_worker(1)
    stage.adopt()
    joining = choose_joining(with_ready(stage, {2: "eu", 3: "us"}), stage.newest.members, 1)
    assert [member.worker for member in joining] == [3]


def test_a_worker_of_no_site_of_the_run_is_refused(stage, start):
    start("wait", w0="eu", w1="us")
    stage.adopt()
    start("wait", w2="jp")
    (refused,) = [event for event in stage.written if event.kind == "worker.refused"]
    assert "its machine belongs to site jp, and the data of the run is bound to eu, us" in refused.why
    assert isinstance(stage.roster.dismissed[2], Dismiss)


def test_a_run_that_waits_for_a_site_can_be_stopped(stage, start):
    start("wait", w0="eu", w1="us")
    stage.adopt(step=3)
    stage.end_worker(1)
    stage.adopt()
    stage.ask(AskStop())
    stage.wait(1.0)
    assert stage.roster.over is None
    stage.wait(2.0)
    assert stage.roster.over is not None
    assert stage.roster.over.why == "stopped after step 3"


def test_a_worker_with_other_data_of_a_site_is_refused_and_a_new_site_is_pinned(stage, start):
    start("skip", w0="eu", w1="us")
    known = {"eu": "digest of eu", "us": "digest of us"}
    assert stage.roster.pinned.site_digests == known
    start("skip", digest="other data", w2="us")
    assert stage.roster.pinned.site_digests == known
    (refused,) = [event for event in stage.written if event.kind == "worker.refused"]
    assert "the dataset of site us is another one than the run's" in refused.why
