"""Learning-rate schedules that a Fabric script steps: inside a step they wait for its end."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from elastane.common.errors import BadInput
from elastane.integrations.lightning.training_run import TrainingRun
from elastane.run.worker.state.live_objects import find_live_objects

STEPPED = "fabric_stepped"
"""The name in `Run.keep` of the numbers of the schedules that the script steps in each iteration."""


class FabricSchedules:
    """The schedules of the run's optimizer, which are part of the run's state.

    A script may step a schedule in each of its iterations, and an iteration is a microbatch. The
    calls in one step count as one, which takes effect when the step is complete. A worker without a
    microbatch in a step makes it, too.
    """

    def __init__(self, training: TrainingRun) -> None:
        self._training = training
        self._steps: list[Callable[..., None]] = []
        self._called: set[int] = set()
        self._expected: frozenset[int] | None = None

    def adopt(self, optimizer: Optimizer) -> None:
        """Find the schedules of an optimizer, or of Fabric's wrapper of it, and keep them."""
        found = [s for s in find_live_objects(LRScheduler) if _has_optimizer(s, optimizer)]
        parts = {id(part) for schedule in found for part in _list_values(schedule)}
        # The garbage collector lists objects in another order in each process.
        for schedule in sorted(found, key=_describe_schedule):
            if id(schedule) not in parts:
                number = len(self._steps)
                self._training.run.keep[f"fabric_schedule_{number}"] = schedule
                self._steps.append(schedule.step)
                vars(schedule)["step"] = partial(self._step, number)

    def _step(self, number: int, *args: Any, **options: Any) -> None:
        if not self._training.computing:
            self._steps[number](*args, **options)
            return
        if args or options:
            raise BadInput(
                "scheduler.step(...) was given a value inside the loop over batches",
                means="each worker computes other microbatches, so the value would differ",
                do="call it after the loop over the batches of an epoch, with a value of a validation",
            )
        self._called.add(number)

    def end_microbatch(self) -> None:
        """Check that the script has stepped the same schedules as in its other microbatches."""
        called, self._called = frozenset(self._called), set()
        self._expect(called)

    def complete_step(self) -> None:
        """Step each schedule that the script steps in its iterations."""
        keep = self._training.run.keep
        if STEPPED not in keep:
            keep[STEPPED] = sorted(self._expected or ())
        self._expect(frozenset(keep[STEPPED]))
        for number in keep[STEPPED]:
            self._steps[number]()

    def _expect(self, called: frozenset[int]) -> None:
        if self._expected is not None and called != self._expected:
            raise BadInput(
                "scheduler.step() was called for some batches only",
                means="a worker that computes other microbatches would step it at other times",
                do="call it for every batch, or after the loop over the batches of an epoch; a schedule such "
                "as SequentialLR changes in the middle of an epoch by itself",
            )
        self._expected = called


def _has_optimizer(schedule: LRScheduler, optimizer: Optimizer) -> bool:
    found = getattr(schedule, "optimizer", None)
    return found is optimizer or vars(found or object).get("_optimizer") is optimizer


def _list_values(schedule: LRScheduler) -> list[object]:
    return [
        part
        for value in vars(schedule).values()
        for part in (value if isinstance(value, list | tuple) else [value])
        if isinstance(part, LRScheduler)
    ]


def _describe_schedule(schedule: LRScheduler) -> str:
    """Return a text that tells the schedules of an optimizer apart, and is the same on every worker."""
    facts = sorted(
        f"{name}={_describe_value(value)}"
        for name, value in vars(schedule).items()
        if not isinstance(value, Optimizer)
    )
    return f"{type(schedule).__module__}.{type(schedule).__qualname__}: {', '.join(facts)}"


def _describe_value(value: object) -> str:
    """Return a value that decides about a schedule as text; objects without one count by their types."""
    if isinstance(value, list | tuple):
        return str([_describe_value(part) for part in value])
    if isinstance(value, str | int | float | None):
        return repr(value)
    code = getattr(value, "__code__", None)
    return type(value).__qualname__ if code is None else f"{code.co_qualname}, line {code.co_firstlineno}"
