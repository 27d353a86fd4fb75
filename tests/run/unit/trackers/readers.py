"""What a tracker has of a run, read as its users read it."""

import json
import warnings
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

from elastane.run.trackers.wandb_store import find_record_files, read_wandb_records

Series: TypeAlias = dict[str, list[tuple[int, float]]]


def read_tensorboard(folder: Path) -> Series:
    """Return the points of each name in the order in which TensorBoard sees them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def read_tensorboard_texts(folder: Path) -> dict[str, list[str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        name: [point.tensor_proto.string_val[0].decode() for point in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }


def find_mlflow_run(uri: str):
    """Return MLflow's only run of ours, and the client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("elastane")
        (run,) = client.search_runs([experiment.experiment_id])
        return run, client


def read_mlflow(uri: str) -> Series:
    """Return the points of each name, by step and time."""
    run, client = find_mlflow_run(uri)
    found = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        found[name] = [(point.step, point.value) for point in sorted(history, key=lambda one: one.step)]
    return found


def read_wandb(folder: Path, run_id: str) -> Series:
    """Return the points of each name; the rows of all files must come in ascending order."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, rows = defaultdict(list), []
    for path in find_record_files(folder, run_id):
        for record in read_wandb_records(path):
            items = Record.FromString(record).history.item
            values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
            if not values:
                continue
            rows.append(values["_step"])
            for name, value in values.items():
                if name != "step" and not name.startswith("_"):
                    found[name].append((values["step"], value))
    assert rows == sorted(set(rows)), "W&B drops a row whose number does not grow"
    return dict(found)
