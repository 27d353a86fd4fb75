"""The time of the tests: by house, and the tests that take longest.

Both cores are busy while the tests run. So a test that waits costs little, and one that computes delays all
others: CPU time decides. That of a test is the CPU time of its process, of the children, and of the warm
process with the programs that it forks.
"""

import json
import os
import resource
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from .houses import find_house

KEPT = Path(__file__).with_name("times.json")
"""The times to compare with; `make times` replaces them."""
MEASURED = Path(__file__).parents[1] / "build" / "test-times.json"
EACH_TEST = MEASURED.with_suffix(".tsv")
"""CPU seconds, seconds and name of each test."""
SHOWN_FROM_S = 60.0
SLOWEST = 25
CPU_S = "cpu_s"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_PID = pytest.StashKey[int]()
"""The process id of the warm process of this test session."""
BEGAN_S = pytest.StashKey[float]()


@dataclass
class Time:
    """The time of some tests, in seconds.

    Args:
        tests: how many.
        cpu_s: CPU time.
        wall_s: from the beginning to the end of each; tests run beside each other.
    """

    tests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of pytest-xdist: this process prints the results
        config.pluginmanager.register(TimeKeeper())


def read_cpu(config: pytest.Config) -> float:
    """Return the CPU seconds of this process, its ended children, and the warm process with its own."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    here_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
    pid = config.stash.get(WARM_PID, None)
    try:
        fields = [] if pid is None else Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        fields = []  # the warm process has just ended
    return here_s + sum(map(int, fields[11:15])) / TICKS_PER_S


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN_S] = read_cpu(item.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> None:
    if call.when == "teardown" and BEGAN_S in item.stash:
        item.user_properties.append((CPU_S, read_cpu(item.config) - item.stash[BEGAN_S]))


class TimeKeeper:
    """Adds up the times of the tests, and prints them at the end of a long run."""

    def __init__(self) -> None:
        self._tests: dict[str, Time] = defaultdict(lambda: Time(tests=1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        time = self._tests[report.nodeid]
        time.wall_s += report.duration
        time.cpu_s += max(0.0, sum(value for name, value in report.user_properties if name == CPU_S))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(time.wall_s for time in self._tests.values()) < SHOWN_FROM_S:
            return
        terminalreporter.section("time by house, and the slowest tests")
        terminalreporter.write_line(render_houses(self._tests, read_houses(KEPT)))
        terminalreporter.write_line(render_slowest(self._tests))
        MEASURED.parent.mkdir(exist_ok=True)
        MEASURED.write_text(json.dumps(summarise(self._tests), indent=2) + "\n")
        rows = [f"{time.cpu_s:.2f}\t{time.wall_s:.2f}\t{name}\n" for name, time in self._tests.items()]
        EACH_TEST.write_text("".join(rows))


def sum_houses(tests: Mapping[str, Time]) -> dict[str, Time]:
    """Return the time of each house, those with the most CPU time first."""
    houses: dict[str, Time] = defaultdict(Time)
    for name, time in tests.items():
        house = houses[find_house(name.partition("::")[0])]
        house.tests += time.tests
        house.cpu_s += time.cpu_s
        house.wall_s += time.wall_s
    return dict(sorted(houses.items(), key=lambda row: -row[1].cpu_s))


def find_slowest(tests: Mapping[str, Time]) -> list[tuple[str, Time]]:
    return sorted(tests.items(), key=lambda row: -row[1].cpu_s)[:SLOWEST]


def render_houses(tests: Mapping[str, Time], kept: Mapping[str, Time]) -> str:
    """Return a table of the houses; `kept` are the times of an earlier run."""
    rows = [f"{'house':<14}{'tests':>7}{'CPU s':>8}{'kept':>8}{'wall s':>8}"]
    for house, time in sum_houses(tests).items():
        before = f"{kept[house].cpu_s:.0f}" if house in kept else "-"
        rows.append(f"{house:<14}{time.tests:>7}{time.cpu_s:>8.0f}{before:>8}{time.wall_s:>8.0f}")
    return "\n".join(rows)


def render_slowest(tests: Mapping[str, Time]) -> str:
    """Return a table of the tests with the most CPU time."""
    rows = [f"{time.cpu_s:>8.1f}{time.wall_s:>8.1f}  {name}" for name, time in find_slowest(tests)]
    return "\n".join(["", f"{'CPU s':>8}{'wall s':>8}  test", *rows])


def summarise(tests: Mapping[str, Time]) -> dict[str, object]:
    """Return what `MEASURED` has: the time of each house, and the slowest tests."""
    return {
        "houses": {house: _round(time) for house, time in sum_houses(tests).items()},
        "slowest": {name: _round(time) for name, time in find_slowest(tests)},
    }


def _round(time: Time) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(time).items()}


def read_houses(path: Path) -> dict[str, Time]:
    """Return the time of each house that a file of `summarise` has."""
    return {house: Time(**time) for house, time in json.loads(path.read_text())["houses"].items()}
