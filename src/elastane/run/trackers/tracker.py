"""What a tracker is to the process that feeds it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from elastane.common.extras import require_for_import
from elastane.run.nouns.trackers import Tracker
from elastane.run.trackers.metric_rows import MetricRow

Outcome: TypeAlias = Literal["finished", "stopped", "failed", "interrupted"]


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run as trackers know it.

    Args:
        id: a name that no other run has.
        name: for people.
        tensorboard: the folder of its event files.
        mlflow: the folder of its store, if there is no server.
        wandb: the folder of its files.
        parameters: the settings and facts that the run keeps from its first step to its last.
    """

    id: str
    name: str
    tensorboard: Path
    mlflow: Path
    wandb: Path
    parameters: Mapping[str, str]


class MetricStore(Protocol):
    """A tracker that is open, or will be.

    After an error of any method the caller opens the store again; then `open` says what it has received. Each
    name gets its steps in ascending order.
    """

    def open(self, run: TrackedRun) -> dict[str, int]:
        """Prepare the store for rows; return the last step of each name that it has."""

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Add rows."""

    def close(self, outcome: Outcome, step: int) -> None:
        """Make everything durable, and record how the attempt of the run ended and its last step."""

    def read_last_steps(self) -> dict[str, int]:
        """Return the last step of each name that the store really has, after `close`."""

    def describe_view(self) -> str:
        """Return the command that shows the metrics."""


# -- the store of each tracker, by name; its library is imported only then -------------------------------


def make_store(name: Tracker) -> MetricStore:
    """Return the store of a tracker, not open yet.

    Raises:
        MissingExtra: its package is not installed.
    """
    with require_for_import("trackers", f"--log {name}"):
        match name:
            case "tensorboard":
                from elastane.run.trackers.tensorboard_store import TensorBoardStore

                return TensorBoardStore()
            case "mlflow":
                from elastane.run.trackers.mlflow_store import MLflowStore

                return MLflowStore()
            case "wandb":
                from elastane.run.trackers.wandb_store import WandbStore

                return WandbStore()
