"""Scenarios: above the line the events of a run, below it the transcript of the workers.

``pytest tests/run/simulation --rewrite`` writes the present transcripts; review the difference as prose.
"""

from pathlib import Path

import pytest

from tests.run.simulator.history import History
from tests.run.simulator.scenario import parse_scenario

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
LINE = "----\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_gives_the_stored_transcript(path, request):
    script, _, expected = path.read_text().partition(LINE)
    history = History(parse_scenario(script), write_line=lambda _: None)
    verdict = history.play()
    transcript = "".join(f"{line}\n" for line in history.transcript) + f"the run ends: {verdict.why}\n"
    if request.config.getoption("--rewrite"):
        path.write_text(script + LINE + transcript)
    else:
        assert transcript == expected
