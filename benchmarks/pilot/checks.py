"""The checks that a successful pilot passes."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pilot.figures import Figures
from pilot.record import ArmRecord
from pilot.scenario import Kill, Scenario

Equal = Mapping[str, Mapping[str, bool]]
"""By job and arm: whether the job trained the bytes of its reference run."""


class Check(msgspec.Struct, frozen=True):
    """One sentence, and whether it is true."""

    text: str
    good: bool


def check_arms(
    scenario: Scenario, arms: Sequence[ArmRecord], figures: Mapping[str, Figures], equal: Equal
) -> tuple[Check, ...]:
    return tuple(one for arm in arms for one in _check_arm(scenario, arm, figures[arm.name], equal))


def _check_arm(scenario: Scenario, arm: ArmRecord, figures: Figures, equal: Equal) -> Iterable[Check]:
    ends = {job.name: job.state for job in arm.jobs}
    wrong = [f"{job.name} has {ends[job.name]}" for job in scenario.jobs if ends[job.name] != job.ends]
    yield _make_check(f"{arm.name}: every job ended as expected", wrong)
    differ = [job for job, by_arm in equal.items() if not by_arm[arm.name]]
    yield _make_check(
        f"{arm.name}: all {len(equal)} jobs trained the bytes of their reference runs, and lost or repeated "
        "no sample",
        differ,
    )
    for job in arm.jobs:
        if job.state == "failed":
            text = f"{arm.name}: {job.name} failed at its first attempt, and its traceback is stored"
            yield Check(text, bool(job.traceback) and job.attempts == 1)
    killed = {
        one.what.job for one in scenario.events if isinstance(one.what, Kill) and one.what.process == "agent"
    }
    for job in arm.jobs:
        if job.name in killed:
            # A job that ended before its kill shows nothing; the scenario's times are then wrong.
            text = f"{arm.name}: {job.name} continued after its agent was killed"
            yield Check(text, job.crashes >= 1 and job.state == "finished")
    yield from check_cluster(arm.name, figures)


def check_cluster(arm: str, figures: Figures) -> Iterable[Check]:
    yield Check(f"{arm}: no operator had to intervene", not figures.interventions)
    yield Check(f"{arm}: no pool gave more devices than it had", figures.most_beyond <= 0)


def _make_check(text: str, exceptions: Sequence[str]) -> Check:
    return Check(f"{text}, but {', '.join(exceptions)}" if exceptions else text, not exceptions)
