"""The checks that a successful pilot passes."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pilot.figures import Figures
from pilot.recorded import Recorded
from pilot.scenario import Kill, Scenario

Equal = Mapping[str, Mapping[str, bool]]
"""By job and arm: whether it trained the bytes of its reference run."""


class Check(msgspec.Struct, frozen=True):
    """One sentence, and whether it is true."""

    text: str
    good: bool


def checks_of(
    scenario: Scenario, arms: Sequence[Recorded], figures: Mapping[str, Figures], equal: Equal
) -> tuple[Check, ...]:
    return tuple(one for arm in arms for one in _of(scenario, arm, figures[arm.name], equal))


def _of(scenario: Scenario, arm: Recorded, figures: Figures, equal: Equal) -> Iterable[Check]:
    ends = {job.name: job.state for job in arm.jobs}
    wrong = [f"{job.name} has {ends[job.name]}" for job in scenario.jobs if ends[job.name] != job.ends]
    yield _but(f"{arm.name}: every job ended as it should", wrong)
    differ = [job for job, by_arm in equal.items() if not by_arm[arm.name]]
    yield _but(
        f"{arm.name}: all {len(equal)} jobs trained the bytes of a quiet run, and lost and repeated nothing",
        differ,
    )
    for job in arm.jobs:
        if job.state == "failed":
            text = f"{arm.name}: {job.name} failed at its first try, and its traceback is kept"
            yield Check(text, bool(job.traceback) and job.attempts == 1)
    killed = {
        one.what.job for one in scenario.happens if isinstance(one.what, Kill) and one.what.process == "agent"
    }
    for job in arm.jobs:
        if job.name in killed:
            # A job that ended before its kill shows nothing; the scenario's times are then wrong.
            text = f"{arm.name}: {job.name} lived on after its agent was killed"
            yield Check(text, job.crashes >= 1 and job.state == "finished")
    yield Check(f"{arm.name}: nobody had to step in", not figures.interventions)
    yield Check(f"{arm.name}: no pool gave more devices than it had", figures.most_beyond <= 0)


def _but(text: str, exceptions: Sequence[str]) -> Check:
    return Check(f"{text}, but {', '.join(exceptions)}" if exceptions else text, not exceptions)
