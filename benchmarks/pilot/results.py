"""``report.json``: the content of the page, for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pilot.checks import Check
from pilot.figures import Figures, list_sizes
from pilot.record import ArmRecord
from pilot.scenario import Scenario


def build_results(
    scenario: Scenario,
    arms: Sequence[ArmRecord],
    figures: Mapping[str, Figures],
    checks: Sequence[Check],
    machine: Mapping[str, str | int],
) -> dict[str, Any]:
    """Return the content of ``report.json``; times are seconds of the pilot."""
    return {
        "scenario": scenario.name,
        "machine": dict(machine),
        "checks": msgspec.to_builtins(checks),
        "arms": {arm.name: _describe_arm(arm, figures[arm.name]) for arm in arms},
    }


def _describe_arm(arm: ArmRecord, figures: Figures) -> dict[str, Any]:
    return {
        "figures": msgspec.to_builtins(figures)
        | {"utilisation": figures.utilisation, "training": figures.training},
        "jobs": {
            job.name: {
                "team": job.team,
                "state": job.state,
                "submitted_s": job.submitted_s - arm.began_s,
                "started_s": None if job.started_s is None else job.started_s - arm.began_s,
                "ended_s": None if job.ended_s is None else job.ended_s - arm.began_s,
                "step": job.step,
                "attempts": job.attempts,
                "crashes": job.crashes,
                "resizes": job.resizes,
                "preemptions": job.preemptions,
                "why": job.why,
                "sizes": list_sizes(arm.observations, job.name),
            }
            for job in arm.jobs
        },
        "actions": msgspec.to_builtins(arm.actions),
        "events": [
            {
                "at_s": event.time_s - arm.began_s,
                "kind": event.kind,
                "job": event.job,
                "message": event.message,
            }
            for event in sorted(arm.events, key=lambda one: one.id)
        ],
        "usage": msgspec.to_builtins(arm.usage),
    }
