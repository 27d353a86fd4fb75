"""The files in deploy/: they name metrics that there are, and Prometheus' own tool accepts them."""

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
