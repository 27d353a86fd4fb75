"""The meters of a run: what its coordinator counts of steps and events, for Prometheus.

The coordinator adds each line that it writes; steps do not wait for it. A new coordinator begins to count
again, as Prometheus expects of a new process. It knows the newest checkpoint from the lines before.
"""

import math
from collections import Counter
from collections.abc import Iterable

from elastane.common.exposition import HistogramCounter, LabelValues, MetricDefinition, Readings
from elastane.run.nouns import run_metrics
from elastane.run.nouns.control import Answer, ProcessInfo
from elastane.run.nouns.records import EventLine, LedgerLine

PHASES = ("deal", "compute", "reduce", "apply")
DEATHS = ("worker.died", "worker.hung")
COUNTED_EVENTS = frozenset(
    {
        *DEATHS,
        "worker.joined",
        "worker.left",
        "worker.failed",
        "worker.refused",
        "node.joined",
        "node.left",
        "node.lost",
        "node.refused",
        "node.closed",
        "generation.started",
        "generation.unheard",
        "resize.requested",
        "drain.requested",
        "stop.requested",
        "shares.rebalanced",
        "spot_check.failed",
        "claim.waiting",
        "data.awaited",
        "evaluation",
        "warning",
        "ledger.stalled",
        "checkpoint.saved",
        "checkpoint.failing",
        "checkpoint.abandoned",
        "model.failing",
    }
)


class RunMeters:
    """The meters under one coordinator."""

    def __init__(self) -> None:
        self._last: LedgerLine | None = None
        self._saved: EventLine | None = None
        self._steps = self._samples = self._written_bytes = 0
        self._step_s = 0.0
        self._phases_s = dict.fromkeys(PHASES, 0.0)
        self._events = Counter[str]()
        self._pauses = HistogramCounter(run_metrics.PAUSE_TIME.bounds)
        self._resizes = HistogramCounter(run_metrics.RESIZE_TIME.bounds)
        self._recoveries = HistogramCounter(run_metrics.RECOVERY_TIME.bounds)
        self._requested: tuple[float, int] | None = None
        """When a number of workers was requested that no generation has had yet, and the number."""
        self._died_s: float | None = None
        """When the first death was recorded that no generation has followed yet."""

    def begin(self, events: Iterable[EventLine], last: LedgerLine | None) -> None:
        """Learn what was there before this coordinator; none of it is counted.

        Args:
            events: of the run so far.
            last: the last line of the ledger; None: no step was committed.
        """
        self._last = last
        for event in events:
            if event.kind == "checkpoint.saved":
                self._saved = event

    def add_step(self, line: LedgerLine) -> None:
        """Count a committed step."""
        self._last = line
        self._steps += 1
        self._samples += line.samples.count
        self._step_s += line.seconds.get("step", 0.0)
        for phase in PHASES:
            self._phases_s[phase] += line.seconds.get(phase, 0.0)

    def add_event(self, event: EventLine, target: int | None) -> None:
        """Count an event.

        Args:
            target: number of workers that the run should have after it; None: not known yet.
        """
        if event.kind in COUNTED_EVENTS:
            self._events[event.kind] += 1
        if event.kind == "checkpoint.saved":
            self._saved = event
            self._written_bytes += _read_bytes(event)
        elif event.kind == "resize.requested" and target is not None:
            self._requested = event.time, target
        elif event.kind in DEATHS and self._died_s is None:
            self._died_s = event.time
        elif event.kind == "generation.started":
            self._add_generation(event)

    def _add_generation(self, event: EventLine) -> None:
        if event.pause_ms:
            self._pauses.add(max(0.0, *event.pause_ms.values()) / 1000)
        if self._requested is not None and len(event.workers) == self._requested[1]:
            self._resizes.add(max(0.0, event.time - self._requested[0]))
            self._requested = None
        if self._died_s is not None:
            self._recoveries.add(max(0.0, event.time - self._died_s))
            self._died_s = None

    def read(self, status: Answer) -> Readings:
        """Return the values of a scrape, given what the coordinator answers to ``elastane ps``."""
        found: dict[MetricDefinition, dict[LabelValues, float]] = {
            run_metrics.STATE: {(status.state,): 1},
            run_metrics.STEP: {(): status.step},
            run_metrics.STEPS: {(): self._steps},
            run_metrics.SAMPLES: {(): self._samples},
            run_metrics.STEP_TIME: {(): self._step_s},
            run_metrics.PHASE_TIME: {(phase,): seconds for phase, seconds in self._phases_s.items()},
            run_metrics.TARGET: {(): status.target},
            run_metrics.GENERATION: {(): status.generation},
            run_metrics.EVENTS: {(kind,): times for kind, times in self._events.items()},
            run_metrics.WRITTEN_BYTES: {(): self._written_bytes},
            **_measure_processes(status),
        }
        if status.steps:
            found[run_metrics.STEPS_PLANNED] = {(): status.steps}
        if status.loss is not None and math.isfinite(status.loss):
            found[run_metrics.LOSS] = {(): status.loss}
        if self._last is not None:
            found[run_metrics.LAST_STEP] = {(): self._last.time}
        if self._saved is not None:
            found[run_metrics.CHECKPOINT_TIME] = {(): self._saved.time}
            found[run_metrics.CHECKPOINT_BYTES] = {(): _read_bytes(self._saved)}
        histograms: Readings = {
            run_metrics.PAUSE_TIME: {(): self._pauses.read()},
            run_metrics.RESIZE_TIME: {(): self._resizes.read()},
            run_metrics.RECOVERY_TIME: {(): self._recoveries.read()},
        }
        values: Readings = {**found, **histograms}
        return {metric: values[metric] for metric in run_metrics.RUN_METRICS if values.get(metric)}


def _measure_processes(status: Answer) -> dict[MetricDefinition, dict[LabelValues, float]]:
    workers = [process for process in status.processes if process.role == "worker"]
    found: dict[MetricDefinition, dict[LabelValues, float]] = {
        run_metrics.WORKERS: {(state,): times for state, times in _count_states(workers).items()}
    }
    sent = [worker.sent_bytes for worker in workers if worker.sent_bytes is not None]
    received = [worker.received_bytes for worker in workers if worker.received_bytes is not None]
    if sent or received:
        found[run_metrics.TRAFFIC_BYTES] = {("sent",): float(sum(sent)), ("received",): float(sum(received))}
    return found


def _count_states(workers: Iterable[ProcessInfo]) -> Counter[str]:
    return Counter(worker.state for worker in workers)


def _read_bytes(event: EventLine) -> int:
    size = event.detail.get("bytes")
    return size if isinstance(size, int) else 0
