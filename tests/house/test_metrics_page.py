"""The tables of docs/metrics.md, generated from the definitions: ``--rewrite`` writes them again."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from elastane.cluster.controller.metrics.definitions import CLUSTER_METRICS
from elastane.common.exposition import MetricDefinition
from elastane.run.nouns.run_metrics import RUN_METRICS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
BLOCK = re.compile(r"<!-- metrics of (?P<owner>the controller|a run) -->\n.*?<!-- end -->", re.DOTALL)
METRICS = {"the controller": CLUSTER_METRICS, "a run": RUN_METRICS}


def format_table(metrics: Iterable[MetricDefinition]) -> Iterator[str]:
    yield "| metric | type | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.meaning} |"


def format_block(match: re.Match[str]) -> str:
    return "\n".join(
        (f"<!-- metrics of {match['owner']} -->", *format_table(METRICS[match["owner"]]), "<!-- end -->")
    )


def test_the_tables_of_metrics_are_up_to_date(request: pytest.FixtureRequest):
    text = PAGE.read_text()
    assert [match["owner"] for match in BLOCK.finditer(text)] == list(METRICS)
    generated = BLOCK.sub(format_block, text)
    if request.config.getoption("--rewrite"):
        PAGE.write_text(generated)
    assert PAGE.read_text() == generated, "run this test with --rewrite"


@pytest.mark.parametrize("metric", [*CLUSTER_METRICS, *RUN_METRICS], ids=lambda metric: metric.name)
def test_names_keep_the_conventions_of_prometheus(metric):
    assert re.fullmatch(r"elastane_[a-z_]+[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.bounds) == (metric.kind == "histogram")
    assert metric.bounds == tuple(sorted(set(metric.bounds)))
    assert not re.search(r"_(ms|minutes|hours|kib|mib|percent)(_|$)", metric.name)
    assert not metric.meaning.endswith(".")
