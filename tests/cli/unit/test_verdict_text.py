"""The output of `elastane verify` about a long run fits on a screen."""

import io

from rich.console import Console

from elastane.cli.runs.verify import print_verdict
from elastane.run.observability.coverage import EpochCoverage
from elastane.run.observability.verify import Verdict


def test_epochs_with_equal_numbers_share_a_line():
    screen = io.StringIO()
    whole = [EpochCoverage(epoch=e, samples=8, once=8, never=0, repeated=0, finished=True) for e in range(30)]
    last = EpochCoverage(epoch=30, samples=8, once=3, never=5, repeated=0, finished=False)
    verdict = Verdict(
        ok=True,
        steps=60,
        planned_steps=None,
        generations=1,
        samples=243,
        epochs=(*whole, last),
        problems=(),
        not_finite=(),
    )
    print_verdict(verdict, Console(file=screen, width=200))
    assert screen.getvalue().splitlines()[1:3] == [
        "  epochs 0 to 29, each: 8 samples once, 0 never, 0 repeatedly",
        "  epoch 30 (unfinished): 3 samples once, 5 never, 0 repeatedly",
    ]
