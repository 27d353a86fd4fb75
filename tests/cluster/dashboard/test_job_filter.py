"""Filtering, sorting and paging of jobs."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.dashboard.job_filter import PAGE_ROWS, JobFilter, filter_jobs, parse_filter
from elastane.cluster.nouns.rest import JobSummary


def make_job(number: int, **fields: object) -> JobSummary:
    usual = {
        "number": number,
        "name": f"job-{number}",
        "team": f"team-{number % 3}",
        "user": "ada",
        "queue": "",
        "priority_class": "",
        "state": ("queued", "running", "finished")[number % 3],
        "wanted": "run",
        "workers": number % 5,
        "min_workers": 1,
        "max_workers": 8,
        "step": number,
        "steps": 0,
        "loss": None if number % 4 == 0 else number / 7,
        "samples_per_s": 0.0,
        "submitted_s": float(number),
        "started_s": None,
        "ended_s": None,
        "retry_at_s": 0.0,
    }
    return JobSummary(**{**usual, **fields})


JOBS = tuple(make_job(number) for number in range(200, 0, -1))


def test_words_match_in_any_order_and_case():
    found = filter_jobs(JOBS, JobFilter(q="TEAM-1 job-10"))
    assert {job.name for job in found.rows} == {"job-10", "job-100", "job-103", "job-106", "job-109"}


def test_jobs_are_found_and_sorted_by_their_next_decision():
    jobs = (
        make_job(3),
        make_job(2, next_decision="This changes when 2 more devices of h100 become free."),
        make_job(1, next_decision="It has reached maxReplicas."),
    )
    assert [job.number for job in filter_jobs(jobs, JobFilter(q="H100")).rows] == [2]
    assert [job.number for job in filter_jobs(jobs, JobFilter(sort="next")).rows] == [1, 2, 3]


def test_a_page_beyond_the_last_one_shows_the_last_one():
    found = filter_jobs(JOBS, JobFilter(page=99))
    assert found.pages == 4
    assert [job.number for job in found.rows] == list(range(50, 0, -1))


@given(
    state=st.sampled_from(["", "queued", "running", "lost"]),
    sort=st.sampled_from(
        ["newest", "name", "team", "state", "workers", "step", "loss", "speed", "age", "next"]
    ),
    down=st.booleans(),
)
def test_the_pages_together_show_each_matching_job_once(state, sort, down):
    first = filter_jobs(JOBS, JobFilter(state=state, sort=sort, down=down))
    seen = [
        job.number
        for page in range(1, first.pages + 1)
        for job in filter_jobs(JOBS, JobFilter(state=state, sort=sort, down=down, page=page)).rows
    ]
    assert sorted(seen) == sorted(job.number for job in JOBS if not state or job.state == state)
    assert all(len(part) <= PAGE_ROWS for part in (first.rows,))


@given(st.dictionaries(st.sampled_from(["q", "state", "team", "sort", "down", "page"]), st.text()))
def test_any_address_is_understood_and_its_own_query_means_the_same(params):
    chosen = parse_filter(params)
    filter_jobs(JOBS, chosen)
    assert parse_filter(dict(parse_qsl(chosen.format_query()))) == chosen


@pytest.mark.parametrize(
    ("sort", "down", "first"), [("step", True, 200), ("step", False, 1), ("age", True, 1)]
)
def test_columns_sort_in_both_directions(sort, down, first):
    assert filter_jobs(JOBS, JobFilter(sort=sort, down=down)).rows[0].number == first
