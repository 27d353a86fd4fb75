"""What an observation means for a job. Pure; every attempt is judged once, however often it is seen ended."""

import msgspec

from elastane.api.attempts import RETRYABLE, AttemptOutcome
from elastane.api.exit_codes import ExitCode
from elastane.api.observations import Observation
from elastane.controller.course import Course, Ended

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 300.0
DOUBLINGS = 8
"""From the first wait on, to the longest at the least; of thousands of crashes the power is no float."""

WITHOUT_A_WORD = AttemptOutcome(code=RETRYABLE + 9, why="its agent is gone and left no word")


def observed(course: Course, seen: Observation, now_s: float) -> Course:
    """The job after this observation; one that is repeated changes nothing more.

    Args:
        course: of the job.
        seen: by its engine.
        now_s: seconds since 1970.
    """
    course = msgspec.structs.replace(course, held=held(course, seen))
    if seen.present or course.ended is not None:
        return course
    if seen.attempt > course.over:
        course = msgspec.structs.replace(course, over=seen.attempt)
        course = judged(course, seen.outcome or WITHOUT_A_WORD, now_s)
    if course.ended is None and course.ending is not None:
        course = msgspec.structs.replace(course, ended=course.ending)
    if course.ended is not None:
        course = msgspec.structs.replace(course, granted=0)
    return course


def held(course: Course, seen: Observation) -> int:
    """Workers whose devices are in use, or soon will be.

    Of an agent that replaces a dead worker fewer are seen than it aims at. While nobody answers for a job, it
    holds as many as before. A job that claims more than it may ever have is not believed: others would wait
    for devices that nobody uses.
    """
    if not seen.present:
        return 0
    if seen.workers is None or seen.target is None:
        return course.held
    _, most = course.spec.elastic_policy.limits
    believed = max(most, course.granted, course.held)
    return min(max(seen.workers, seen.target), believed)


def judged(course: Course, outcome: AttemptOutcome, now_s: float) -> Course:
    """The job after an attempt that ended so."""
    if outcome.code == ExitCode.OK:
        return msgspec.structs.replace(course, ended=Ended("finished", outcome.why))
    if course.ending is not None and course.ending.how == "cancelled":
        return course
    if is_permanent(outcome):
        return msgspec.structs.replace(course, ended=Ended("failed", outcome.why, outcome.traceback))
    if course.ending is not None:
        return (
            course if outcome.code == ExitCode.STOPPED_BY_USER else _unready(course, course.ending, outcome)
        )
    if course.granted == 0:
        # However it went, it went because it was to go.
        return msgspec.structs.replace(course, why=outcome.why)
    if outcome.code == ExitCode.STOPPED_BY_USER:
        return msgspec.structs.replace(course, why=outcome.why, retry_at_s=now_s + FIRST_RETRY_S)
    crashes, most = course.crashes + 1, course.spec.run_policy.job_max_retry_count
    course = msgspec.structs.replace(course, crashes=crashes, why=outcome.why)
    if crashes > most:
        times = f"{crashes} crashes, and jobMaxRetryCount is {most}; the last: {outcome.why}"
        return msgspec.structs.replace(course, ended=Ended("failed", times, outcome.traceback))
    wait_s = min(FIRST_RETRY_S * 2 ** min(crashes - 1, DOUBLINGS), LONGEST_RETRY_S)
    return msgspec.structs.replace(course, retry_at_s=now_s + wait_s)


def _unready(course: Course, ending: Ended, outcome: AttemptOutcome) -> Course:
    """The job was to stop in order, and did not: its files are those of its newest checkpoint."""
    words = f"{ending.why}; its last attempt did not stop in order: {outcome.why}"
    return msgspec.structs.replace(course, ending=msgspec.structs.replace(ending, why=words))


def is_permanent(outcome: AttemptOutcome) -> bool:
    """Another attempt would end alike: exit codes from 1 to 127, as Kubeflow has it."""
    return 0 < outcome.code < RETRYABLE


def retried_at_s(retry_at_s: float, now_s: float) -> float:
    """When another attempt may begin; 0: at once.

    No wait is longer than `LONGEST_RETRY_S`: after a clock was set back nobody waits until it shows again
    what it did.

    Args:
        retry_at_s: as it was written down, in seconds since 1970.
        now_s: likewise.
    """
    return retry_at_s if retry_at_s <= now_s + LONGEST_RETRY_S else 0.0
