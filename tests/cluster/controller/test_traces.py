"""Traces of resizes and deaths, up to a collector that receives them."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from elastane.cluster.controller.traces.change_traces import JobTraces, add_cluster_event, add_run_event
from elastane.cluster.controller.traces.follower import TraceFollower, wants_traces
from elastane.cluster.nouns.history import Event
from elastane.run.nouns.records import EventLine

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def decision(time_s, kind="job.grown", **detail):
    event = Event(
        id=int(time_s), time_s=time_s, kind=kind, team="vision", job="train", message="more is free"
    )
    return msgspec.structs.replace(event, detail=detail)


def line(time, kind, *workers, **fields):
    return EventLine(time=time, kind=kind, workers=workers, **fields)


def play(*events):
    """Return the traces that these events of a job end."""
    traces, ended = JobTraces("train"), []
    for event in events:
        add = add_run_event if isinstance(event, EventLine) else add_cluster_event
        traces, some = add(traces, event)
        ended += some
    return ended


def describe(trace):
    return {f"{part.name} {part.of}".strip(): (part.begin_s, part.end_s) for part in trace.parts}


GROWTH = (
    decision(100.5, **{"from": 1, "to": 3}),
    line(101.0, "resize.requested"),
    line(101.2, "worker.started", 1),
    line(101.4, "worker.started", 2),
    line(103.0, "worker.joined", 1),
    line(103.1, "generation.started", 0, 1),
    line(104.0, "worker.joined", 2),
    line(104.2, "generation.started", 0, 1, 2),
)


def test_a_growth_lasts_from_the_request_to_the_first_step_at_the_new_size():
    (trace,) = play(decision(100.0, "job.scaled"), *GROWTH)
    assert (trace.root.name, trace.root.begin_s, trace.root.end_s, trace.why) == ("resize", 100.0, 104.2, "")
    assert trace.root.attributes["elastane.workers.before"] == 1
    assert trace.root.attributes["elastane.workers.after"] == 3
    assert describe(trace) == {
        "plan": (100.0, 100.5),
        "order": (100.5, 101.0),
        "agent": (101.0, 101.4),
        "join worker 1": (101.2, 103.0),
        "join worker 2": (101.4, 104.0),
        "first step": (104.0, 104.2),
    }


def test_a_request_long_before_is_not_the_reason_of_a_decision_unless_the_job_waited():
    (trace,) = play(decision(20.0, "job.scaled"), *GROWTH)
    assert trace.root.begin_s == 100.5
    start = decision(100.5, "job.started", **{"from": 0, "to": 2})
    (trace,) = play(
        decision(20.0, "job.submitted"),
        decision(30.0, "job.reprioritised"),
        start,
        line(101.0, "run.started"),
        line(103.0, "generation.started", 0, 1),
    )
    assert describe(trace)["plan"] == (20.0, 100.5)


def test_a_death_lasts_to_the_first_step_without_the_worker():
    (trace,) = play(
        line(50.0, "worker.died", 1, who="worker 1", why="killed by signal 9"),
        line(50.3, "generation.started", 0, 2),
    )
    assert (trace.root.name, trace.root.begin_s, trace.root.end_s) == ("death", 50.0, 50.3)
    assert trace.root.attributes["elastane.worker"] == "worker 1"


@pytest.mark.parametrize("kind", ["job.grown", "job.preempted", "job.finished"])
def test_a_resize_that_never_takes_place_ends_with_the_reason(kind):
    (trace,) = play(GROWTH[0], GROWTH[1], decision(102.0, kind, **{"from": 3, "to": 4}))
    assert trace.why
    assert (trace.root.end_s, "first step" in describe(trace)) == (102.0, False)


def test_clocks_that_differ_make_no_part_that_ends_before_it_begins():
    (trace,) = play(GROWTH[0], line(100.6, "generation.started", 0, 1, 2))
    events = [msgspec.structs.replace(one, time=100.5) for one in GROWTH[1:]]
    (skewed,) = play(GROWTH[0], *events)
    for part in (*trace.parts, *skewed.parts, trace.root, skewed.root):
        assert part.begin_s <= part.end_s


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({ENDPOINT: "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINT: "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: ""}, False),
    ],
)
def test_the_usual_variables_ask_for_traces(environment, wanted):
    assert wants_traces(environment) is wanted


class Collector(ThreadingHTTPServer):
    """A collector of OTLP over HTTP on loopback.

    Attributes:
        spans: all that it has received.
        away: it refuses what comes.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans, self.services, self.away = [], set(), False

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        if not self.server.away:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.services |= {
                    one.value.string_value
                    for one in resource.resource.attributes
                    if one.key == "service.name"
                }
                for scope in resource.scope_spans:
                    self.server.spans += scope.spans
        self.send_response(400 if self.server.away else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector(monkeypatch):
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(ENDPOINT, server.url)
        yield server
        server.shutdown()
        thread.join()


def make_follower(cluster):
    follower = TraceFollower(cluster.api.store, clock=cluster.clock)
    follower._exporter = follower._open_exporter()
    return follower


def test_a_collector_gets_each_trace_once_also_after_a_restart(cluster, collector, tmp_path):
    operator = cluster.api.user("operator", user="olga")
    operator.put("/pools/a100", {"name": "a100", "device": "a100", "devices": 2})
    follower = make_follower(cluster)
    spec = {"name": "train", "team": "vision", "script": "/train.py"}
    cluster.api.user().post("/jobs", spec | {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 2}})
    cluster.until(lambda: cluster.workers("train") == 2)
    follower.look()
    now_s = cluster.clock()
    lines = [
        line(now_s - 1, "run.started"),
        line(now_s - 1, "worker.started", 0),
        line(now_s, "generation.started", 0, 1, step=1),
        line(now_s + 7, "worker.died", 1, who="worker 1"),
        line(now_s + 8, "generation.started", 0, step=9),
    ]
    with (tmp_path / "runs" / "train" / "events.jsonl").open("wb") as file:
        file.writelines(msgspec.json.encode(one) + b"\n" for one in lines)
        file.write(b"not an event\n")
    follower.look()
    collector.away = True
    follower.send()
    assert collector.spans == []
    collector.away = False
    follower.send()
    first = {span.span_id: span for span in collector.spans}
    names = sorted(span.name for span in first.values())
    assert names == ["agent", "death", "first step", "join", "order", "plan", "regroup", "resize"]
    assert collector.services == {"elastane"}
    roots = {span.trace_id: span for span in first.values() if not span.parent_span_id}
    assert sorted(root.name for root in roots.values()) == ["death", "resize"]
    for span in first.values():
        assert not span.parent_span_id or span.parent_span_id == roots[span.trace_id].span_id
    follower.look()
    follower.send()
    assert len(collector.spans) == len(first)
    # A restarted controller sends them again, under the same ids.
    again = make_follower(cluster)
    again.look()
    again.send()
    assert len(collector.spans) == 2 * len(first)
    assert {span.span_id for span in collector.spans} == first.keys()
