"""The pass of a spot check, and the words of what it finds; see `elastane.run.protocol.spot_checks`."""

import time
from collections.abc import Iterable

import torch

from elastane.common.errors import RunFailed
from elastane.run.nouns.control import FOUND_WRONG, WorkerEvent
from elastane.run.nouns.records import SPOT_CHECK_FAILED, EventLine
from elastane.run.protocol.spot_checks import Finding
from elastane.run.worker.exhaustion import exit_for_replacement
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.module_attributes import ModuleAttributes
from elastane.run.worker.state.training_state import TrainingState

CAUSES = (
    "a fault of the machine (its processor, memory or GPU) that changes results without an error, or code "
    "with results that depend on what the worker has computed before: a cache, a counter, a generator, "
    "a variable that changes between steps"
)


class SpotCheckPass:
    """A pass over another worker's microbatch that leaves no trace but its fingerprints."""

    def __init__(self, state: TrainingState, gradients: Gradients) -> None:
        self._untrained, self._gradients = state.replicated.untrained, gradients
        self._attributes = ModuleAttributes(state.model)
        self._caches = self._untrained.copy_buffers(caches_only=True)
        gradients.begin_check()

    def end(self, buffers: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """End the pass; the arguments and the result are those of `Gradients.end_leaf`.

        Raises:
            BadInput: the script ran its own backward pass after that of the microbatch.
        """
        fingerprints = self._gradients.end_check(buffers)
        self._attributes.restore()
        self._untrained.restore_buffers(self._caches)
        trained = fingerprints[: len(self._gradients.layout.parameters)]
        return tuple(number for number, digest in enumerate(trained) if not digest), fingerprints


def describe_finding(finding: Finding, step: int, layout: ModelLayout) -> str:
    """Describe different results, in a clause without an end."""
    first, *others = finding.workers
    if finding.wrong is not None:
        first, others = finding.wrong, [worker for worker in finding.workers if worker != finding.wrong]
    names = [extent.name for extent in (*layout.extents, *layout.buffer_extents)]
    number = finding.parameter
    what, where = "another loss or other logged values", ""
    if number is not None:
        what = "other gradients" if number < len(layout.extents) else "other changes of buffers"
        where = f", first in {names[number]}"
    rest = " and ".join(f"worker {worker}" for worker in others)
    place = f"virtual rank {finding.virtual_rank} of step {step}"
    return f"{place} has {what} on worker {first} than on {rest}{where}"


def build_undecided_error(finding: Finding, step: int, layout: ModelLayout) -> RunFailed:
    return RunFailed(
        describe_finding(finding, step, layout),
        means="a spot check computed it on several workers, and it cannot be decided which of them is wrong; "
        f"the step was not committed. Likely causes: {CAUSES}",
        do="look for such code, keep such values in run.keep, and else test the machines; elastane run "
        "--resume goes back to a checkpoint. One worker (--workers 1) needs no equal results",
    )


def build_wrong_event(finding: Finding, worker: int, step: int, layout: ModelLayout) -> WorkerEvent:
    """Return the event about a worker that is wrong; all others report the same."""
    event = EventLine(
        time=time.time(),
        kind=SPOT_CHECK_FAILED,
        who=f"worker {finding.wrong}",
        why=f"{describe_finding(finding, step, layout)}; it ends, and the step is repeated without it. "
        f"Likely causes: {CAUSES}",
        step=step,
    )
    return WorkerEvent(worker=worker, key=f"spot check of step {step}, {finding.wrong}", event=event)


def end_wrong_worker(finding: Finding, step: int, layout: ModelLayout) -> None:
    """End this process, which a spot check has found wrong."""
    exit_for_replacement(
        f"spot check: {describe_finding(finding, step, layout)}. Likely causes: {CAUSES}", code=FOUND_WRONG
    )
