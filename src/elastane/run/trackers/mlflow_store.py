"""MLflow: a server, or a database in the run directory."""

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastane.run.trackers.metric_rows import MetricRow
from elastane.run.trackers.tracker import Outcome, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Metric

EXPERIMENT = "elastane"
TAG = "elastane.id"
MOST_METRICS = 500
"""The metrics of one request; servers take at most 1000."""
LONGEST_PARAMETER = 500
"""The limit of older servers, in characters."""
STATUSES: dict[Outcome, str] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
}
ENVIRONMENT = {
    # The caller retries, and first asks the store what it has taken: a request that timed out may have been.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # MLflow prefers a database, but MLFLOW_TRACKING_URI may name a folder.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The run prints the address once, at its start.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings of `mlflow`, unless the user has set them."""


class MLflowStore:
    """The run in MLflow that has our id as a tag."""

    def __init__(self) -> None:
        self._uri = self._run_id = ""

    def open(self, run: TrackedRun) -> dict[str, int]:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not self._uri:
            self._uri = f"sqlite:///{_prepare_database(run.mlflow)}"
        self._client = MlflowClient(tracking_uri=self._uri)
        self._run_id = self._find_run(run) or self._create_run(run)
        self._add_parameters(run)
        return self.read_last_steps()

    def write(self, rows: Sequence[MetricRow]) -> None:
        from mlflow.entities import Metric

        metrics = (
            Metric(name, value, round(row.time * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        )
        for batch in _cut_batches(metrics):
            self._client.log_batch(self._run_id, metrics=batch)

    def close(self, outcome: Outcome, step: int) -> None:
        self._client.set_terminated(self._run_id, STATUSES[outcome])

    def read_last_steps(self) -> dict[str, int]:
        # Of each metric a run has the one of the highest step.
        return {metric.key: metric.step for metric in self._get_data().metrics}

    def describe_view(self) -> str:
        if self._uri.startswith(("http://", "https://")):
            experiment = self._client.get_run(self._run_id).info.experiment_id
            return f"{self._uri.rstrip('/')}/#/experiments/{experiment}/runs/{self._run_id}"
        return f"mlflow ui --backend-store-uri {shlex.quote(self._uri)}"

    def _get_data(self) -> Any:
        return self._client.get_run(self._run_id).data.to_proto()

    def _find_run(self, run: TrackedRun) -> str:
        """Return the id of the run in MLflow; empty: it has none."""
        experiment = self._find_experiment()
        found = self._client.search_runs([experiment], f"tags.`{TAG}` = '{run.id}'", max_results=1)
        if not found:
            return ""
        known = str(found[0].info.run_id)
        self._client.update_run(known, status="RUNNING")
        return known

    def _create_run(self, run: TrackedRun) -> str:
        created = self._client.create_run(self._find_experiment(), run_name=run.name, tags={TAG: run.id})
        return str(created.info.run_id)

    def _find_experiment(self) -> str:
        if chosen := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return chosen
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id

    def _add_parameters(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        # A parameter cannot be changed.
        known = {parameter.key for parameter in self._get_data().params}
        new = [Param(k, v[:LONGEST_PARAMETER]) for k, v in run.parameters.items() if k not in known]
        if new:
            self._client.log_batch(self._run_id, params=new)


def _prepare_database(folder: Path) -> Path:
    """Return the database in a folder; a process that is killed while it creates one leaves none behind."""
    from mlflow.tracking import MlflowClient

    folder.mkdir(exist_ok=True)
    database, partial = folder / "mlflow.db", folder / ".mlflow.db.partial"
    if not database.exists():
        partial.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{partial}").search_experiments(max_results=1)
        partial.replace(database)
    return database


def _cut_batches(metrics: "Iterator[Metric]") -> "Iterator[list[Metric]]":
    while batch := list(islice(metrics, MOST_METRICS)):
        yield batch
