"""What the scheduler assumes about an unmodified script, and what a user reads about it."""

import msgspec

from elastane.cluster.controller.jobs.explanation import explain_size
from elastane.cluster.controller.jobs.observation_record import observe_job
from elastane.cluster.controller.jobs.scheduler_state import read_scheduler_job
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import JobProgress, Observation
from elastane.cluster.nouns.job_records import Explanation, HeldWorkers, ObservedJob
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from tests.cluster.stored_jobs import make_stored_job

SPEC = JobSpec(
    name="j", team="t", script="/train.py", contract="torchrun", elastic_policy=ElasticPolicy(max_replicas=8)
)
JOB = make_stored_job(
    SPEC,
    observed=ObservedJob(seen_s=9.0, held={"p": HeldWorkers(workers=3)}),
    reason=Explanation(sentences=("j keeps 3 workers in p.",)),
)
OURS = msgspec.structs.replace(JOB, spec=msgspec.structs.replace(SPEC, contract="elastane"))


def observe(job: StoredJob, progress: JobProgress) -> StoredJob:
    seen = Observation(
        job="j", attempt=1, present=True, agent=True, workers=3, members=3, target=3, progress=progress
    )
    return observe_job(job, seen, 10.0)


def test_the_stop_of_a_script_without_steps_is_recorded_and_weighed() -> None:
    seen = observe(JOB, JobProgress(resize_s=4.5))
    assert seen.observed.resize_s == 4.5
    assert read_scheduler_job(seen, 10.0).state.resize_s == 34.5


def test_a_job_with_steps_is_not_charged_for_a_restart() -> None:
    seen = observe(OURS, JobProgress(step=3, resize_s=0.2))
    assert read_scheduler_job(seen, 10.0).state.resize_s == 0.2


def test_an_attempt_whose_files_were_not_read_yet_forgets_no_measurement() -> None:
    seen = observe(
        observe(OURS, JobProgress(step=3, resize_s=0.2, speeds=((3, 7.0),), weights=(1.0,))), JobProgress()
    )
    assert (seen.observed.step, seen.observed.resize_s, seen.observed.speeds) == (3, 0.2, ((3, 7.0),))


def test_the_explanation_says_what_a_resize_costs_and_that_the_speed_is_unknown() -> None:
    _, cost, speed = explain_size(JOB).sentences
    assert "counts as 31.0 s: 1.00 s from the announced stop to the new start, assumed" in cost
    assert "Its speed is unknown" in speed
    _, cost, _ = explain_size(observe(JOB, JobProgress(resize_s=4.5))).sentences
    assert "counts as 34.5 s: 4.50 s from the announced stop to the new start, as measured" in cost


def test_the_explanation_of_other_jobs_and_of_a_stopping_one_says_nothing_about_restarts() -> None:
    assert len(explain_size(OURS).sentences) == 1
    assert len(explain_size(msgspec.structs.replace(JOB, wanted="pause")).sentences) == 1
