"""Trains one idiom of the catalogue, paced, so that a test can say at which step workers come and go.

``NAME [VARIANT] [--paced-from=STEP]``: each step from that one on waits for its file ``gate-STEP``.

Once the file ``strike`` is there, worker 0 dies in the middle of its share of the next step.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import elastane
from elastane.runtime import worker_settings
from elastane.runtime.data.batch_sources import BatchSource

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "processes" / "scripts")]

import faults  # noqa: E402 - it is where the tests of processes have it
from catalogue import CATALOGUE  # noqa: E402 - likewise


def die_when_asked(strike):
    """At the second virtual rank of a step, with the sums of the first one lost."""
    dealt = Counter()

    def look(_source, step, _rank):
        dealt[step] += 1
        if dealt[step] == 2 and strike.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    faults._around(BatchSource, "load", before=look)


parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("variant", nargs="?", default="")
parser.add_argument("--paced-from", type=int, default=1 << 30)
options = parser.parse_args()

here = worker_settings.get_settings()
if here.run_dir is not None and here.worker == 0:
    die_when_asked(here.run_dir.root / "strike")
faults.pace(options.paced_from)
run = elastane.join()
CATALOGUE[options.name](run, options.variant)
if run.digest is not None:
    run.print("digest", run.digest.parameters, run.digest.optimizer)
