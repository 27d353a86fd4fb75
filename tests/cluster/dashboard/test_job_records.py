"""Records of a run are read on, also after their files were cut, torn or damaged in between."""

import msgspec
import pytest

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.dashboard.job_records import WatchedJob
from elastane.cluster.dashboard.job_table import JobTable
from elastane.cluster.dashboard.run_page import RunFeed
from elastane.cluster.dashboard.run_records import MOST_LINES, RecordTail, keep_last_of_each_step
from elastane.cluster.nouns.job_workers import JobWorker
from elastane.common.bodies import Problem
from elastane.common.connections.controller_connection import RequestRefused
from elastane.common.errors import ElastaneError
from elastane.run.observability.run_files import decode_ledger_line
from tests.cluster.dashboard.conftest import wait_for_feeds
from tests.cluster.dashboard.run_records import make_line, write_run
from tests.cluster.dashboard.test_job_filter import make_job
from tests.waiting import wait_until


class Record:
    """A file that the API serves in small parts."""

    def __init__(self):
        self.data = b""

    def append(self, *steps):
        for step in steps:
            self.data += msgspec.json.encode(make_line(step)) + b"\n"

    def read_part(self, _, offset):
        begin = min(offset, len(self.data))
        part = self.data[begin : begin + 500]
        return part, begin + len(part)


@pytest.fixture
def record():
    return Record()


@pytest.fixture
def tail():
    return RecordTail("ledger.jsonl", decode_ledger_line)


def read_all(tail, record):
    while tail.read(record.read_part):
        pass
    return [line.step for line in tail.lines]


def test_lines_arrive_in_parts_and_a_torn_one_waits(tail, record):
    record.append(1, 2, 3)
    whole, record.data = record.data, record.data[:-10]
    assert read_all(tail, record) == [1, 2]
    record.data = whole
    record.append(4)
    assert read_all(tail, record) == [1, 2, 3, 4]


def test_a_shorter_file_is_read_again(tail, record):
    record.append(1, 2, 3, 4)
    read_all(tail, record)
    record.data = b""
    record.append(1, 2)
    assert read_all(tail, record) == [1, 2]


def test_an_unreadable_line_costs_only_itself(tail, record):
    record.append(1)
    record.data += b"<script>\n" + b"[" * 200 + b"\n"
    record.append(2)
    assert read_all(tail, record) == [1, 2]
    assert tail.unreadable == 2


def test_the_oldest_lines_go_first(tail, record):
    record.data = b"".join(msgspec.json.encode(make_line(step)) + b"\n" for step in range(1, MOST_LINES + 3))
    tail.read(lambda _, offset: (record.data[offset:], len(record.data)))
    assert (len(tail.lines), tail.dropped, tail.lines[0].step) == (MOST_LINES, 2, 3)


def test_steps_that_were_made_again_replace_the_earlier_ones(tail):
    lines = [make_line(step) for step in (1, 2, 3, 4)]
    again = [make_line(step, loss=9.0) for step in (3, 4, 5)]
    kept = keep_last_of_each_step([*lines, *again])
    assert [(line.step, line.loss == 9.0) for line in kept] == [
        (1, False),
        (2, False),
        (3, True),
        (4, True),
        (5, True),
    ]


@pytest.fixture
def watched(site, make_spec, monkeypatch):
    """A job that pages show, and a list of errors; the controller answers with the first."""
    monkeypatch.setattr("elastane.cluster.dashboard.job_records.EACH_S", 1e6)
    site.submit(make_spec())
    errors = []
    with Cluster(site.api_url, site.api.token()) as cluster:

        def ask(request):
            if errors:
                raise errors[0]
            return request(cluster)

        yield WatchedJob("train", ask), errors
        wait_for_feeds()


def test_an_event_lets_the_next_look_ask_at_once(site, watched):
    job, _ = watched
    assert job.look().job.state == "queued"
    site.observe("train", state="failed", why="killed")
    assert job.look().job.state == "queued"
    version = job.version
    job.expire()
    assert job.version > version
    assert job.look().job.why == "killed"


def test_workers_stay_on_a_page_while_their_run_answers_late(site, watched, tmp_path, monkeypatch):
    job, _ = watched
    answers, asked = [(JobWorker(worker=0), JobWorker(worker=1))], []

    async def answer(_):
        asked.append(1)
        return answers.pop(0) if answers else ()

    monkeypatch.setattr("elastane.cluster.controller.rest.workers._ask_workers", answer)
    write_run(tmp_path / "train", steps=3)
    site.observe("train", state="running", run_dir=str(tmp_path / "train"))

    def look_again():
        job.expire()
        return [row.worker for row in job.look().workers]

    assert job.look().workers == ()
    assert wait_until(look_again, "the run has answered") == [0, 1]
    wait_until(lambda: look_again() and len(asked) > 2, "it has given no answer since")
    assert look_again() == [0, 1]
    monkeypatch.setattr("elastane.cluster.dashboard.job_records.KEEP_WORKERS_S", 0.0)
    assert look_again() == []


def test_a_page_keeps_what_it_has_while_the_controller_is_away_but_not_what_it_refuses(watched):
    job, errors = watched
    errors.append(ElastaneError("no answer"))
    with pytest.raises(ElastaneError):
        job.look()
    errors.clear()
    sight = job.look()
    errors.append(ElastaneError("no answer"))
    job.expire()
    assert job.look() is sight
    assert job.read_log("worker-0") == ""
    errors[:] = [RequestRefused(Problem(type="about:blank", title="t", status=403, detail="no"))]
    job.expire()
    with pytest.raises(RequestRefused):
        job.look()


def test_a_table_keeps_the_sizes_that_it_saw():
    table = JobTable()
    assert table.put([make_job(1, workers=2, started_s=5.0)], 10.0)
    assert not table.put([make_job(1, workers=2, started_s=5.0)], 11.0)
    table.put([make_job(1, workers=4, started_s=5.0)], 12.0)
    assert table.list_sizes("job-1") == ((5.0, 2), (12.0, 4))
    table.remove("job-1")
    assert table.jobs == ()


def test_a_damaged_line_of_a_run_without_a_controller_costs_only_itself(tmp_path):
    write_run(tmp_path / "train", steps=3)
    for name in ("ledger.jsonl", "events.jsonl"):
        path = tmp_path / "train" / name
        path.write_bytes(b"{damaged\n" + path.read_bytes())
    run, _ = RunFeed(str(tmp_path / "train")).look()
    assert [line.step for line in run.ledger] == [1, 2, 3]
    assert run.events[0].kind == "run.started"
