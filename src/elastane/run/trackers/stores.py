"""The store of each tracker, by name; its library is imported only then."""

from elastane.common.extras import require_for_import
from elastane.run.nouns.trackers import Tracker
from elastane.run.trackers.tracker import MetricStore


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
