"""Jobs with workers of several processes: what the controller checks, and what a user reads about them."""

import msgspec
import pytest

from elastane.cluster.controller.admission import check_virtual_ranks
from elastane.cluster.controller.jobs.explanation import explain_size
from elastane.cluster.controller.rest.job_bodies import render_summary
from elastane.cluster.engines.local.job_program import make_run_spec
from elastane.cluster.engines.own_run import check_fits_own_home
from elastane.cluster.nouns.job_records import Explanation
from elastane.cluster.nouns.job_words import format_job_workers
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common.errors import BadField, BadInput
from tests.cluster.stored_jobs import make_stored_job

SPEC = JobSpec(
    name="j", team="t", script="/train.py", processes=2, elastic_policy=ElasticPolicy(max_replicas=4)
)
JOB = make_stored_job(
    SPEC,
    reason=Explanation(sentences=("j keeps 3 workers in p.",)),
)


def test_each_process_computes_a_virtual_rank_at_least():
    check_virtual_ranks(SPEC, 8)
    with pytest.raises(
        BadField, match="4 is more than the 6 virtual ranks of its run allow with 2"
    ) as refused:
        check_virtual_ranks(SPEC, 6)
    assert refused.value.do.startswith("write 3 or fewer")


def test_a_user_reads_how_many_processes_each_worker_is():
    assert format_job_workers(render_summary(JOB)) == "3 of 1:4 x 2"
    one = msgspec.structs.replace(JOB, spec=msgspec.structs.replace(SPEC, processes=1))
    assert format_job_workers(render_summary(one)) == "3 of 1:4"
    assert explain_size(JOB).sentences[1:] == (
        "Each of its workers is 2 processes, and has 2 devices of one machine.",
    )
    assert len(explain_size(one).sentences) == 1


def test_the_run_of_a_job_has_its_processes():
    assert make_run_spec("j", SPEC, "python").processes == 2


def test_a_job_that_stays_on_one_machine_is_refused_where_its_records_would_be_lost_with_it():
    with pytest.raises(BadInput, match="j has workers of 2 processes, and its machines share no directory"):
        check_fits_own_home(SPEC)
