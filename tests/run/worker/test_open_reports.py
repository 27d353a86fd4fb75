"""The reports that a worker keeps open, and those that a joiner takes over."""

import msgspec
import pytest

from elastane.common.untrusted_data import Malformed
from elastane.run.nouns import control
from elastane.run.nouns.records import Digest, EventLine
from elastane.run.worker import open_reports
from elastane.run.worker.open_reports import MOST_HANDED, OpenReports

from .step_reports import build_report

DIGEST = Digest("a", "b", ("c",), ("d",))


class Link:
    """The connection of a worker whose coordinator acknowledges nothing."""

    def __init__(self, *events):
        self.steps, self.events = [], list(events)

    def report_step(self, report):
        self.steps.append(report)

    def list_unacknowledged(self):
        return list(self.steps), list(self.events)

    def take_over(self, steps, events):
        self.steps += steps
        self.events += events


def make_reports(*events):
    link = Link(*events)
    return OpenReports(link, link.report_step), link


def list_steps(link):
    return [report.line.step for report in link.steps]


def train(reports, *steps, digest_due=False):
    for step in steps:
        reports.add(build_report(step), digest_due=digest_due)
        reports.end_record()


def test_a_report_waits_for_the_script_and_for_its_digest():
    reports, link = make_reports()
    reports.add(build_report(1), digest_due=True)
    reports.update_record({"norm": 2.0}, {})
    reports.end_record()
    assert link.steps == []
    reports.set_digest(1, DIGEST)
    (sent,) = link.steps
    assert (sent.line.logged, sent.line.digest) == ({"norm": 2.0}, DIGEST)


def test_a_joiner_reports_the_steps_and_events_of_the_worker_that_sends_it_the_state():
    event = control.WorkerEvent(worker=0, key="a", event=EventLine(time=1.0, kind="message", step=2))
    donor, sent = make_reports(event)
    joiner, link = make_reports()
    train(donor, 1, 2)
    joiner.take_over(donor.hand_over())
    assert (link.steps, link.events) == (sent.steps, [event])
    train(joiner, 3)
    assert list_steps(link) == [1, 2, 3]


def test_a_joiner_adds_the_digest_that_its_first_votes_bring():
    donor, _ = make_reports()
    joiner, link = make_reports()
    train(donor, 1)
    train(donor, 2, digest_due=True)
    joiner.take_over(donor.hand_over())
    joiner.take_over(donor.hand_over())
    assert 2 not in list_steps(link)
    joiner.set_digest(2, DIGEST)
    assert link.steps[-1].line.digest == DIGEST
    assert list_steps(link).count(2) == 1


def test_a_worker_that_has_made_steps_takes_nothing_over():
    donor, _ = make_reports()
    member, link = make_reports()
    train(donor, 1, 2)
    train(member, 2)
    member.take_over(donor.hand_over())
    assert list_steps(link) == [2]


def test_a_joiner_takes_over_a_limited_number_of_steps_without_a_gap():
    donor, _ = make_reports()
    joiner, link = make_reports()
    train(donor, *range(1, MOST_HANDED + 10))
    train(donor, MOST_HANDED + 10, digest_due=True)
    joiner.take_over(donor.hand_over())
    assert list_steps(link) == list(range(1, MOST_HANDED + 1))


def test_reports_that_no_message_can_carry_stay_with_their_worker(monkeypatch):
    donor, _ = make_reports()
    train(donor, 1, 2)
    monkeypatch.setattr(open_reports, "MOST_HANDED_BYTES", len(donor.hand_over()) - 1)
    assert donor.hand_over() == b""


@pytest.mark.parametrize("handed", [b"", b"junk", msgspec.msgpack.encode({"steps": [1]})])
def test_bytes_that_are_no_reports_are_refused(handed):
    joiner, link = make_reports()
    with pytest.raises(Malformed):
        joiner.take_over(handed)
    assert link.steps == []


def test_a_process_that_trains_alone_hands_nothing_over():
    assert OpenReports(None, lambda _: None).hand_over() == b""
