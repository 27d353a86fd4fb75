"""The store of each tracker, by name; its library is imported only then."""

from elastane.api.extras import require_for_import
from elastane.api.trackers import Tracker
from elastane.trackers.tracker import MetricStore


def make_store(name: Tracker) -> MetricStore:
    """Return the store of a tracker, not open yet.

    Raises:
        MissingExtra: its package is not installed.
    """
    with require_for_import("trackers", f"--log {name}"):
        match name:
            case "tensorboard":
                from elastane.trackers.tensorboard_store import TensorBoardStore

                return TensorBoardStore()
            case "mlflow":
                from elastane.trackers.mlflow_store import MLflowStore

                return MLflowStore()
            case "wandb":
                from elastane.trackers.wandb_store import WandbStore

                return WandbStore()
