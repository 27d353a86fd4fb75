"""Scheduling stories: events of a cluster above the line, decisions with their reasons below it.

``pytest tests/cluster/scheduling --rewrite`` writes the present decisions; review the difference as prose.
"""

from pathlib import Path

import pytest

from tests.cluster.scheduling.script import Story

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
LINE = "----\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_cluster_is_scheduled_as_its_story_was_written_down(path, request):
    script, _, expected = path.read_text().partition(LINE)
    story = Story()
    story.play(script)
    written = "".join(f"{line}\n" for line in story.lines)
    if request.config.getoption("--rewrite"):
        path.write_text(script + LINE + written)
    else:
        assert written == expected
