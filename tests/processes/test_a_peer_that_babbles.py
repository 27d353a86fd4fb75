"""A worker that sends its peers what no worker sends is dead to them; the run keeps its bytes."""

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        ("noise", "shared"),
        ("nested", "shared"),
        ("terabyte", "shared"),
        ("letter", "shared"),
        ("no state", "shared"),
        ("no state", "tcp"),
        ("short sums", "tcp"),
    ],
)
def test_it_is_replaced_and_nobody_else_suffers(stage, quiet, kind, transport):
    ended = stage.play(kind, script="babbling.py", start=2, transport=transport)
    expected = quiet(30)
    assert ended.over.code == 0, ended.story()
    assert ended.losses == expected.losses, ended.story()
    assert ended.digests == expected.digests, ended.story()
    assert ended.model == expected.model, ended.story()
    assert ended.events("worker.failed") == [], ended.story()
    assert ended.who("worker.died") == ["worker 1"], ended.story()
