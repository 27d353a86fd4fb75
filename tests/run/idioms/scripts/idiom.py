"""Train one idiom of the catalogue, at the pace of a test.

So the test chooses the steps at which workers join and leave.

``NAME [VARIANT] [--paced-from=STEP]``: each step from that one on waits for its file ``gate-STEP``.

After the file ``strike`` appears, worker 0 dies in the middle of its share of the next step.
"""

import argparse
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import elastane
from elastane.run.worker import worker_settings
from elastane.run.worker.data.batch_sources import BatchSource

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "processes" / "scripts")]

import faults  # noqa: E402 - after the change of sys.path
from catalogue import CATALOGUE  # noqa: E402 - after the change of sys.path


def die_after_strike(strike):
    """Kill this worker at the second virtual rank of a step; the sums of the first one are lost."""
    loads = Counter()

    def look(_source, step, _rank):
        loads[step] += 1
        if loads[step] == 2 and strike.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    faults._around(BatchSource, "load", before=look)


parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("variant", nargs="?", default="")
parser.add_argument("--paced-from", type=int, default=1 << 30)
options = parser.parse_args()

here = worker_settings.get_settings()
if here.run_dir is not None and here.worker == 0:
    die_after_strike(here.run_dir.root / "strike")
faults.pace(options.paced_from)
run = elastane.join()
CATALOGUE[options.name](run, options.variant)
if run.digest is not None:
    run.print("digest", run.digest.parameters, run.digest.optimizer)
