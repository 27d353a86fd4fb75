"""How long the parts of a run on several machines may be silent, and the times in proportion to that.

One value decides: after `SilenceLimits.limit_s` the others go on without a machine or a coordinator. The
other times here only have a meaning beside it, such as a missed report. So all of them follow from it, and no
run has a limit that is shorter than the time between two reports.

Times that do not depend on it stay where they are used: how long storage or a claim list may take, how long a
lost packet takes, and how long processes may take to end.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypeAlias

from msgspec import Meta

LISTEN_S = 1.0
"""How long a new coordinator waits for the first reports, if some do not come.

The processes connect to it meanwhile, which takes as long in a run with a short limit.
"""

SILENCE_S = 3.0
"""The limit of every run that a user starts. Tests start runs with a shorter one."""

SilenceLimit: TypeAlias = Annotated[float, Meta(ge=1.5, le=9.0)]
"""Seconds that a machine, or the coordinator, may be silent.

Below the least, a new coordinator could lose machines before it has listened, for `LISTEN_S` and one check.
Above the most, `SilenceLimits.unseen_s` would exceed the 60 s of `elastane.run.machines.succession.silence`,
which are the same for every run.
"""


@dataclass(frozen=True)
class SilenceLimits:
    """The silence that a run allows, and the times that follow from it; in brackets those of the usual limit.

    Args:
        limit_s: how long a machine, or the coordinator, may be silent before the others go on without it.
    """

    limit_s: float = SILENCE_S

    @cached_property
    def report_every_s(self) -> float:
        """The time between two reports of a worker or of an agent without a change (0.5 s)."""
        return self.limit_s / 6

    @cached_property
    def late_s(self) -> float:
        """A worker that has sent no report for so long has missed one (0.7 s)."""
        return self.limit_s * 7 / 30

    @cached_property
    def quiet_s(self) -> float:
        """A worker that has been silent for so long has missed two reports (1.2 s)."""
        return self.limit_s * 2 / 5

    @cached_property
    def longest_gap_s(self) -> float:
        """The most that two readings of the coordinator's clock count, see `AwakeClock` (0.5 s).

        After a pause of the coordinator its processes are as silent as after one missed report, not more.
        """
        return self.limit_s / 6

    @cached_property
    def asleep_s(self) -> float:
        """An agent that did not run for so long was stopped: the silence was its own (1.0 s)."""
        return self.limit_s / 3

    @cached_property
    def ask_after_s(self) -> float:
        """How long an agent does not hear the coordinator before it asks the other agents (2.0 s).

        They have time to answer before the limit: an answer from a dead machine never comes.
        """
        return self.limit_s * 2 / 3

    @cached_property
    def answer_s(self) -> float:
        """How long an agent waits for an answer of another one: until the limit (1.0 s)."""
        return self.limit_s / 3

    @cached_property
    def check_every_s(self) -> float:
        """The time between two checks that no other coordinator has claimed a later term (1.0 s).

        With each of them the coordinator renews its sign in the run directory. So an agent that does not hear
        it sees several signs within the limit.
        """
        return self.limit_s / 3

    @cached_property
    def pings_s(self) -> tuple[float, float]:
        """The time between two pings to a coordinator on another machine, and to its answer (1.0, 2.0 s).

        Together they are the limit, so that a connection to a dead machine is given up by then.
        """
        return self.limit_s / 3, self.limit_s * 2 / 3

    @cached_property
    def turn_s(self) -> float:
        """How long each node waits for the one before it, so that usually one claims the next term (0.5 s).

        A claim takes milliseconds. The turns of a few nodes must fit into `minority_s`.
        """
        return self.limit_s / 6

    @cached_property
    def minority_s(self) -> float:
        """How much longer the smaller part of a run waits, so that the larger part can go on first (2.5 s).

        Perhaps not the others are cut off but this part. They notice its silence in `limit_s`, and need up to
        this time, five turns, to agree on a successor and to claim its term. Then the smaller part of the run
        ends, not the larger one.
        """
        return self.limit_s * 5 / 6

    @cached_property
    def unseen_s(self) -> float:
        """How long a node that is cut off looks for signs of the run before it takes charge (20 s).

        A coordinator in charge renews its sign twenty times meanwhile.
        """
        return self.limit_s * 20 / 3

    @cached_property
    def unheard_s(self) -> float:
        """How long the coordinator waits for members that may be at work where it does not hear them (30 s).

        A living part of the run would have claimed a term in this time, also one that had to wait for
        `minority_s` or `unseen_s`, and that would have ended this coordinator.
        """
        return self.limit_s * 10
