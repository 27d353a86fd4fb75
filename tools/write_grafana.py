"""Write deploy/grafana/elastane.json, a dashboard for Grafana that reads the metrics of docs/metrics.md.

A test compares the file with what this script writes, and its queries with the metrics that there are.
"""

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "deploy" / "grafana" / "elastane.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 8, 8
"""Of a panel; the page is 24 wide."""

Query = tuple[str, str]
"""An expression and the legend of its series."""

RECENT, HOUR = "$__rate_interval", "1h"


def _rate(metric: str, within: str = RECENT) -> str:
    return f"rate({metric}[{within}])"


def _quantile(share: float, metric: str, *by: str, within: str = RECENT) -> str:
    """Return the query of the value that this share of a histogram does not exceed, by labels."""
    groups = ", ".join(("le", *by))
    return f"histogram_quantile({share}, sum by ({groups}) ({_rate(f'{metric}_bucket', within)}))"


USED_SHARE = "sum by (pool) (elastane_pool_devices_used) / on (pool) elastane_pool_devices"
QUEUE, PLAN = "elastane_queue_time_seconds", "elastane_plan_time_seconds"
PAUSE, RESIZE = "elastane_run_pause_seconds", "elastane_run_resize_seconds"
EVENT_RATE = f"3600 * sum by (event) ({_rate('elastane_job_events_total')})"
PHASE_RATE = f"sum by (phase) ({_rate('elastane_run_phase_seconds_total')})"
STEP_RATE = f"sum ({_rate('elastane_run_steps_total')})"
CHECKPOINT_AGE = "time() - elastane_job_checkpoint_timestamp_seconds"
PLANS = ((_quantile(0.5, PLAN), "half of them"), (_quantile(0.99, PLAN), "99 of 100"))

ROWS: dict[str, tuple[tuple[str, str, tuple[Query, ...]], ...]] = {
    "Cluster": (
        ("Devices in use, of those there are", "percentunit", ((USED_SHARE, "{{pool}}"),)),
        ("Free devices", "none", (("elastane_pool_devices_free", "{{pool}}"),)),
        ("Devices by team", "none", (("sum by (team) (elastane_team_devices_used)", "{{team}}"),)),
        ("Jobs by state", "none", (("sum by (state) (elastane_jobs)", "{{state}}"),)),
        ("First job in the queue waits for", "s", (("elastane_queue_oldest_seconds", "{{team}}"),)),
        ("Time in the queue, 9 of 10 jobs that started", "s", ((_quantile(0.9, QUEUE, "team"), "{{team}}"),)),
        ("Cost per hour", "none", ((f"3600 * {_rate('elastane_cost_total')}", "{{team}}"),)),
        ("Changes of jobs per hour", "none", ((EVENT_RATE, "{{event}}"),)),
        ("Duration of a plan", "s", PLANS),
    ),
    "Running jobs": (
        ("Workers that train", "none", (("elastane_job_workers", "{{job_name}}"),)),
        ("Samples per second", "none", (("elastane_job_samples_per_second", "{{job_name}}"),)),
        ("Age of the newest checkpoint", "s", ((CHECKPOINT_AGE, "{{job_name}}"),)),
    ),
    "Runs (job elastane-runs)": (
        ("Time of a step by phase", "s", ((f"{PHASE_RATE} / on () group_left {STEP_RATE}", "{{phase}}"),)),
        (
            "Pause of a healthy worker at a change, 99 of 100",
            "s",
            ((_quantile(0.99, PAUSE, "job_name", within=HOUR), "{{job_name}}"),),
        ),
        (
            "From a request to the first step at the new size, half of them",
            "s",
            ((_quantile(0.5, RESIZE, "job_name", within=HOUR), "{{job_name}}"),),
        ),
    ),
}


def build_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "gridPos": _place(0, top, 24, 1),
                "panels": [],
            }
        )
        top += 1
        for number, (name, unit, queries) in enumerate(row):
            place = _place(number % 3 * WIDTH, top + number // 3 * HEIGHT, WIDTH, HEIGHT)
            panels.append(_build_panel(len(panels) + 1, name, unit, queries, place))
        top += (len(row) + 2) // 3 * HEIGHT
    return {
        "title": "Elastane",
        "uid": "elastane",
        "tags": ["elastane"],
        "editable": True,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _build_panel(
    number: int, title: str, unit: str, queries: tuple[Query, ...], place: dict[str, int]
) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for index, (query, legend) in enumerate(queries)
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": targets,
    }


def render() -> str:
    return json.dumps(build_dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
