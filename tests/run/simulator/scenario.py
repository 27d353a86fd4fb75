"""Scenarios as text: the events of a history, one per line.

::

    start 2 virtual_ranks=4 blocks=2 copies=2 steps=3
    resize 3 at=0.6
    drain 0 at=0.8
    kill 1 before=Vote spared=1 at=0.6

A number selects a worker by its place among the living. ``before`` names an action or a sent message;
``spared`` such actions still happen.
"""

from collections.abc import Callable

from tests.run.simulator.faults import (
    Drain,
    Fault,
    HistoryPlan,
    Kill,
    KillCoordinator,
    Resize,
    Trigger,
    build_layout,
)
from tests.run.simulator.reference_run import Shape


class InvalidScenario(ValueError):
    """A line that the simulator does not understand."""


def parse_scenario(text: str) -> HistoryPlan:
    """Parse a scenario into a plan; lines that begin with ``#`` are comments.

    Raises:
        InvalidScenario: it has no ``start``, or a line is invalid.
    """
    first, *rest = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    if first[0] != "start":
        raise InvalidScenario(f"a scenario begins with a start line, not with {first[0]}")
    options = _parse_options(first)
    copies = options.get("copies", "all")
    shape = Shape(
        layout=build_layout(
            int(options.get("virtual_ranks", "4")),
            int(options.get("blocks", "2")),
            None if copies == "all" else int(copies),
        ),
        steps=int(options.get("steps", "3")),
    )
    faults = tuple(sorted((_parse_fault(words) for words in rest), key=lambda fault: fault.at_s))
    return HistoryPlan(seed=int(options.get("seed", "0")), shape=shape, start=int(first[1]), faults=faults)


def _parse_options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _parse_fault(words: list[str]) -> Fault:
    options = _parse_options(words)
    at_s = float(options["at"])
    verbs: dict[str, Callable[[], Fault]] = {
        "resize": lambda: Resize(at_s, int(words[1])),
        "drain": lambda: Drain(at_s, int(words[1])),
        "kill": lambda: (
            Trigger(at_s, int(words[1]), options["before"], int(options.get("spared", "0")))
            if "before" in options
            else Kill(at_s, int(words[1]))
        ),
        "kill-coordinator": lambda: KillCoordinator(at_s, float(options.get("absent", "0.1"))),
    }
    if words[0] not in verbs:
        raise InvalidScenario(f"unknown event: {' '.join(words)}")
    return verbs[words[0]]()
