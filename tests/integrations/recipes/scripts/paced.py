"""Run the script of a recipe at the pace of a test: ``paced.py SCRIPT RECIPE``.

Each step from `PACED_FROM` on waits for its file ``gate-STEP``, or for ``gates``. After the file ``strike``
appears, the last process of worker 0 dies in the middle of its share of the next step. At the end of the run,
each worker of one process writes the logits of its model into ``logits-WORKER.pt``.
"""

import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path

import torch

from elastane.run.worker import worker_settings
from elastane.run.worker.data.batch_sources import BatchSource
from elastane.run.worker.session import Run

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "run" / "processes" / "scripts"))

import faults

PACED_FROM = 3


def die_after_strike(strike):
    """Kill this worker at the second virtual rank of a step; the sums of the first one are lost.

    Each process of several ones may have one virtual rank only.
    """
    strike_at = 2 if here.seat.processes == 1 else 1
    loads = Counter()

    def look(_source, step, _rank):
        loads[step] += 1
        if loads[step] == strike_at and strike.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    faults._around(BatchSource, "load", before=look)


def keep_model(models):
    """Keep the model that the script prepares."""
    prepare = Run.prepare

    def keep(run, model, *args, **kwargs):
        models.append(model)
        return prepare(run, model, *args, **kwargs)

    Run.prepare = keep


here = worker_settings.get_settings()
if here.run_dir is not None and (here.worker, here.seat.number) == (0, here.seat.processes - 1):
    die_after_strike(here.run_dir.root / "strike")
faults.pace(PACED_FROM)
models = []
keep_model(models)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
if here.run_dir is not None and here.seat.processes == 1:
    (model,) = models
    with torch.no_grad():
        logits = model.eval()(torch.arange(20, 40)[None]).logits
    torch.save(logits, here.run_dir.root / f"logits-{here.worker}.pt")
