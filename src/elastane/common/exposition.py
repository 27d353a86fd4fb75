"""Metrics in the text formats of Prometheus: their definitions, their values, and the encoding.

The values of a scrape are read first, and then encoded by `prometheus_client` from a registry of their own.
So no metric has global state, and nothing but a scrape needs the library.
"""

import bisect
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from elastane.common.extras import require_for_import

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as MetricFamily

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram"]
UNITS = ("seconds", "bytes", "ratio")
"""The base units of names. Everything else is a number of things, and has no unit."""


class MetricDefinition(msgspec.Struct, frozen=True):
    """One metric.

    Args:
        name: as in Prometheus; that of a counter ends in ``_total``.
        meaning: one sentence without its full stop.
        labels: names of the labels of each series, in order.
        bounds: upper bounds of the buckets of a histogram, ascending, without infinity.
    """

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """The base unit; empty: a number of things."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


class HistogramValue(msgspec.Struct, frozen=True):
    """A histogram at one moment.

    Args:
        counts: of each bucket, with the last one for values above every bound; not cumulative.
    """

    counts: tuple[int, ...]
    sum: float


class HistogramCounter:
    """A histogram that grows, with ascending upper bounds of buckets, without infinity. Thread-safe."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        with self._lock:
            self._counts[bisect.bisect_left(self._bounds, value)] += 1
            self._sum += value

    def read(self) -> HistogramValue:
        with self._lock:
            return HistogramValue(tuple(self._counts), self._sum)


LabelValues: TypeAlias = tuple[str, ...]
Readings: TypeAlias = Mapping[MetricDefinition, Mapping[LabelValues, float | HistogramValue]]
"""The values of one scrape, by metric and then by the values of its labels."""


def encode_readings(readings: Readings, accept: str = "") -> tuple[bytes, str]:
    """Encode the values of a scrape.

    Args:
        accept: the header of the request, which chooses between the two text formats.

    Returns:
        The body of the answer, and its content type.

    Raises:
        MissingExtra: `prometheus_client` is not installed.
    """
    with require_for_import("metrics", "metrics need a library"):
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReadingsCollector(readings))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _ReadingsCollector:
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator["MetricFamily"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for metric, series in self._readings.items():
            about = (metric.name, metric.meaning)
            family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
            if metric.kind == "histogram":
                family = HistogramMetricFamily(*about, labels=metric.labels, unit=metric.unit)
            elif metric.kind == "counter":
                family = CounterMetricFamily(*about, labels=metric.labels, unit=metric.unit)
            else:
                family = GaugeMetricFamily(*about, labels=metric.labels, unit=metric.unit)
            for labels, value in series.items():
                if isinstance(family, HistogramMetricFamily):
                    assert isinstance(value, HistogramValue), "the definition says that it is a histogram"
                    family.add_metric(labels, list(_accumulate(metric.bounds, value)), value.sum)
                else:
                    assert not isinstance(value, HistogramValue), "the definition says that it is a number"
                    family.add_metric(labels, value)
            yield family


def _accumulate(bounds: Iterable[float], value: HistogramValue) -> Iterator[tuple[str, int]]:
    """Return the bound of each bucket, and the number of values up to it."""
    total = 0
    for bound, count in zip((*map(str, bounds), "+Inf"), value.counts, strict=True):
        total += count
        yield bound, total
