"""Peers drop a worker that sends malformed messages, and the trained bytes do not change."""

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        ("noise", "shared"),
        ("nested", "shared"),
        ("terabyte", "shared"),
        ("short message", "shared"),
        ("no state", "shared"),
        ("no state", "tcp"),
        ("no reports", "tcp"),
        ("short sums", "tcp"),
    ],
)
def test_a_worker_that_sends_malformed_messages_is_replaced(stage, play_reference, kind, transport):
    ended = stage.play(kind, script="malformed.py", start=2, transport=transport)
    expected = play_reference(30)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.digests == expected.digests, ended.describe()
    assert ended.model_digest == expected.model_digest, ended.describe()
    assert ended.find_events("worker.failed") == [], ended.describe()
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
