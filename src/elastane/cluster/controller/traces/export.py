"""The export of traces by OTLP, with the usual variables of OpenTelemetry.

Ids are derived from the keys of traces, so a trace that is sent again after a restart replaces the first one.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span as OpenSpan
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from elastane.cluster.controller.traces.change_traces import Span, Trace

NS = 1_000_000_000


class TraceExporter:
    """Sends traces to the collector that the variables of OpenTelemetry in an environment name."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        # The follower logs once that the collector is away; the library would in every attempt.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter()
        self._ended = _EndedSpans()
        self._ids = _DerivedIds()
        resource = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": "elastane"}
        provider = TracerProvider(
            resource=Resource.create(resource),
            id_generator=self._ids,
            sampler=ALWAYS_ON,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("elastane", version("elastane"))

    def send(self, traces: Iterable[Trace]) -> bool:
        """Send traces, and return whether the collector has them. It may wait as long as its timeout."""
        for trace in traces:
            self._add(trace)
        result = self._exporter.export(self._ended.take())
        return result is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End a transfer that waits for the collector."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _add(self, trace: Trace) -> None:
        self._ids.key = trace.key
        root = self._begin(trace.root, None)
        for part in trace.parts:
            _end(self._begin(part, root), part)
        if trace.why:
            root.set_status(Status(StatusCode.ERROR, trace.why))
        _end(root, trace.root)

    def _begin(self, span: Span, parent: OpenSpan | None) -> OpenSpan:
        self._ids.name, self._ids.of = span.name, span.of
        context = None if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(
            span.name, context, attributes=dict(span.attributes), start_time=_read_ns(span.begin_s)
        )


def _end(span: OpenSpan, described: Span) -> None:
    span.end(end_time=max(_read_ns(described.begin_s), _read_ns(described.end_s)))


def _read_ns(time_s: float) -> int:
    return int(time_s * NS)


class _DerivedIds(IdGenerator):
    """Ids from the key of a trace and the names of its spans."""

    key = name = of = ""

    def generate_trace_id(self) -> int:
        return _derive(16, self.key)

    def generate_span_id(self) -> int:
        return _derive(8, self.key, self.name, self.of)


def _derive(size_bytes: int, *texts: str) -> int:
    digest = hashlib.sha256("\0".join(texts).encode(errors="replace")).digest()
    # An id is never zero.
    return int.from_bytes(digest[:size_bytes]) or 1


class _EndedSpans(SpanProcessor):
    """The spans that have ended and were not sent."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> tuple[ReadableSpan, ...]:
        spans, self._spans = tuple(self._spans), []
        return spans
