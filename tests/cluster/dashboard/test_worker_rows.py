"""The workers on the page of a job: by machine, with what they do, and stragglers."""

from elastane.cluster.dashboard.worker_rows import draw_activity, group_workers, list_shares
from elastane.cluster.nouns.job_workers import JobWorker, find_stragglers, list_job_workers
from elastane.run.nouns.control import ProcessInfo
from tests.cluster.dashboard.run_records import make_line


def make_worker(worker, node="", **fields):
    return JobWorker(**{"worker": worker, "node": node, "state": "member", "virtual_ranks": 2} | fields)


def test_workers_are_grouped_by_machine_with_their_share_and_since_when():
    lines = [make_line(step, 1 if step < 5 else 2) for step in range(1, 9)]
    live = (make_worker(0, activity={"wait": 70, "compute": 30}), make_worker(1, "b"))
    (first, (one,)), (other, (two,)) = group_workers(live, list_shares(lines), 4)
    assert (first, other) == ("first", "b")
    assert (one.share, one.since_step, two.since_step) == (0.5, 1, 5)
    assert one.now == "exchanges sums and waits 70 %, computes 30 %"


def test_a_worker_that_joins_is_shown_before_its_first_step():
    live = (make_worker(0), make_worker(7, state="starting", virtual_ranks=0, activity={"start": 100}))
    ((_, rows),) = group_workers(live, list_shares([make_line(1, 1)]), 4)
    assert [(row.worker, row.state, row.since_step, row.now) for row in rows] == [
        (0, "member", 1, ""),
        (7, "starting", None, "starts 100 %"),
    ]


def test_without_an_answer_of_the_run_its_last_step_is_shown():
    ((_, rows),) = group_workers((), list_shares([make_line(1, 2)]), 4)
    assert [(row.worker, row.ranks, row.now) for row in rows] == [(0, 2, ""), (1, 2, "")]
    assert group_workers((), {}, 1) == ()


def test_a_straggler_needs_a_quarter_more_than_the_usual_time():
    rows = [make_worker(worker, compute_s=seconds) for worker, seconds in enumerate((0.2, 0.2, 0.24, 0.4))]
    assert find_stragglers(rows) == {3: 0.4 / 0.22}
    assert find_stragglers([make_worker(0, compute_s=9.0)]) == {}
    assert find_stragglers([make_worker(0), make_worker(1, compute_s=0.1)]) == {}


def test_one_that_does_not_train_is_no_straggler():
    rows = [make_worker(0, compute_s=0.1), make_worker(1, compute_s=0.1)]
    rows.append(make_worker(2, compute_s=5.0, state="leaving"))
    assert find_stragglers(rows) == {}


def test_a_bar_is_as_long_as_its_shares_whatever_they_add_up_to():
    bar = draw_activity({"wait": 100, "compute": 100})
    assert bar.index('class="compute"') < bar.index('class="wait"')
    assert bar.count('width="60.0"') == 2
    assert draw_activity({}) == ""


def test_texts_of_a_run_are_cut_and_made_visible():
    processes = [
        ProcessInfo(role="worker", pid=1, worker=1, state="\x1b[31m" * 100, node="b"),
        ProcessInfo(role="worker", pid=2, worker=3, state="member"),
        ProcessInfo(role="coordinator", pid=3),
    ]
    first, second = list_job_workers(processes)
    assert (first.worker, second.worker) == (3, 1)
    assert "\x1b" not in second.state
    assert len(second.state) <= 110
