"""The names of trackers, as users write them in options, job files and scripts."""

import sys

import pytest

from elastane.cluster.nouns.job_checks import make_job_document, parse_job_spec
from elastane.common.errors import BadField, BadInput
from elastane.common.extras import MissingExtra
from elastane.run.nouns.trackers import parse_trackers, require_trackers


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("tensorboard", ("tensorboard",)),
        (" wandb, mlflow,wandb ", ("mlflow", "wandb")),
        (["mlflow", "tensorboard"], ("tensorboard", "mlflow")),
        ("none", ()),
    ],
)
def test_trackers_are_named_once_and_in_one_order(named, expected):
    assert parse_trackers(named, "--log") == expected


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ("tensorbord", "write tensorboard"),
        ("MLflow", "write mlflow"),
        ("", "none"),
        ("none,wandb", "separated"),
    ],
)
def test_an_unknown_tracker_is_refused_with_the_nearest_name(named, hint):
    with pytest.raises(BadInput, match=hint):
        parse_trackers(named, "--log")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    require_trackers(["wandb"], "--log", {})
    with pytest.raises(MissingExtra, match=r"elastane\[trackers\]"):
        require_trackers(["tensorboard"], "--log", {})


def test_mlflow_needs_a_database_only_without_a_server(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    require_trackers(["mlflow"], "--log", {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"})
    with pytest.raises(MissingExtra, match="sqlalchemy"):
        require_trackers(["mlflow"], "--log", {})


def test_a_tracker_that_is_switched_off_is_refused():
    with pytest.raises(BadInput, match="WANDB_MODE is disabled"):
        require_trackers(["wandb"], "--log", {"WANDB_MODE": "disabled"})


def test_a_job_file_names_its_trackers():
    document = {"name": "a", "team": "b", "script": "/t.py", "training": {"log": ["tensorboard", "mlflow"]}}
    spec = parse_job_spec(document)
    assert spec.training.log == ("tensorboard", "mlflow")
    assert parse_job_spec(make_job_document(spec)) == spec
    document["training"]["log"] = ["tensorbord"]
    with pytest.raises(BadField, match=r"training\.log.*"):
        parse_job_spec(document)
