"""Stories: above the line what happens to a run, below it how the workers live through it.

``pytest tests/simulation --rewrite`` writes down how they do now; review the difference as prose.
"""

from pathlib import Path

import pytest

from tests.simulator.history import History
from tests.simulator.scenario import parse_scenario

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
LINE = "----\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_story_is_told_as_it_was_written_down(path, request):
    script, _, expected = path.read_text().partition(LINE)
    history = History(parse_scenario(script), listen=lambda _: None)
    verdict = history.play()
    told = "".join(f"{line}\n" for line in history.story) + f"the run ends: {verdict.why}\n"
    if request.config.getoption("--rewrite"):
        path.write_text(script + LINE + told)
    else:
        assert told == expected
