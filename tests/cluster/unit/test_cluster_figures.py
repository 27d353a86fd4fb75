"""The figures of a cluster between two times."""

from elastane.cluster.controller.figures import JobTimes, compute_cluster_figures
from elastane.cluster.nouns.usage import UsageRow

USUAL = {
    "from_s": 100.0,
    "until_s": 200.0,
    "usage": (UsageRow(job="a", owned_device_s=50.0, cost=3.0), UsageRow(job="b", cost=1.0)),
    "used_device_s": 100.0,
    "devices": 4,
    "began_s": 0.0,
    "interventions": 3,
}


def test_waits_and_ends_count_if_they_fall_between_the_times():
    found = compute_cluster_figures(
        [
            JobTimes("finished", 10, 20, 90, reached=True),  # all before
            JobTimes("finished", 90, 120, 150, reached=True),
            JobTimes("finished", 100, 110, 190, reached=False),
            JobTimes("running", 100, 150, None, reached=False),
            JobTimes("queued", 160, None, None, reached=False),
            JobTimes("failed", 100, 199, 200, reached=False),
        ],
        **USUAL,
    )
    assert (found.started, found.queue_s, found.queue_longest_s) == (4, 40.0, 99)
    assert (found.queued, found.queued_longest_s) == (1, 40.0)
    assert (found.finished, found.finish_s, found.reached, found.target_s) == (2, 75.0, 1, 60)
    assert found.utilisation == 0.25
    assert (found.interventions, found.runs, found.cost) == (3, 2, 4.0)


def test_an_idle_and_a_young_cluster_have_no_impossible_figures():
    idle = compute_cluster_figures([], **{**USUAL, "usage": (), "used_device_s": 0.0, "devices": 0})
    assert (idle.utilisation, idle.queue_s, idle.target_s, idle.queued_longest_s) == (None,) * 4
    young = compute_cluster_figures([], **{**USUAL, "began_s": 150.0})
    assert young.available_device_s == 200.0
    assert compute_cluster_figures([], **{**USUAL, "began_s": None}).utilisation is None
