"""The files in deploy/: they name metrics that there are, and Prometheus' own tool accepts them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from elastane.cluster.controller.metrics.definitions import CLUSTER_METRICS
from elastane.run.nouns.run_metrics import RUN_METRICS
from tests.run.processes.skipping import skip_except_in_ci
from tools import write_grafana

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
USED = re.compile(r"\belastane_[a-z_]+")


def list_names():
    for metric in (*CLUSTER_METRICS, *RUN_METRICS):
        yield metric.name
        if metric.kind == "histogram":
            yield f"{metric.name}_bucket"


def test_the_dashboard_is_what_its_script_writes():
    assert write_grafana.TARGET.read_text() == write_grafana.render(), "run tools/write_grafana.py"


@pytest.mark.parametrize("text", [write_grafana.render(), (RULES / "alerts.yml").read_text()])
def test_queries_use_metrics_that_there_are(text):
    used = set(USED.findall(text))
    assert used
    assert used <= set(list_names())


def test_grafana_knows_every_field_of_the_dashboard():
    """Its own types read the file and write all of it again; a field that they lack would be missing."""
    dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.prometheus import Dataquery

    register_default_plugins()
    ours = write_grafana.build_dashboard()
    read = dashboards.Dashboard.from_json(ours)
    assert list_missing(ours, json.loads(JSONEncoder().encode(read))) == []
    queries = [query for panel in read.panels if panel.type_val != "row" for query in panel.targets]
    assert {type(query) for query in queries} == {Dataquery}
    # The names of the choices are those of the enumerations, which reading alone does not check.
    common = pytest.importorskip("grafana_foundation_sdk.models.common")
    legends = [panel.options.legend for panel in read.panels if panel.type_val != "row"]
    for legend in legends:
        assert common.LegendDisplayMode(legend.display_mode)
        assert common.LegendPlacement(legend.placement)


def list_missing(ours, theirs, place=""):
    """Return where a document lacks something that ours has, or has another value there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        places = [(ours[key], theirs.get(key), f"{place}/{key}") for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        places = [(*pair, f"{place}/{number}") for number, pair in enumerate(zip(ours, theirs, strict=True))]
    else:
        return [] if ours == theirs else [f"{place}: {ours!r}, {theirs!r}"]
    return [missing for found in places for missing in list_missing(*found)]


def test_every_alert_has_a_situation_in_which_it_fires():
    alerts = re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text())
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts", (RULES / "alerts_test.yml").read_text())
    # The check that fails for long differs from `ElastaneStoreUnsound` in its labels only.
    assert set(alerts) - set(fired) <= {"ElastaneCheckFails"}


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "--lint-fatal", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
)
def test_promtool_accepts_the_rules(words):
    if shutil.which("promtool") is None:
        skip_except_in_ci("promtool is not installed (package prometheus)")
    ended = subprocess.run(["promtool", *words], cwd=RULES, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
