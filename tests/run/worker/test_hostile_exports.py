"""Readers refuse damaged files of a finished run and damaged manifests with an error of Elastane."""

import json
import shutil

import msgspec
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastane.common.errors import BadInput, Damaged, ElastaneError
from elastane.run.nouns.checkpoints import Manifest
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.worker.checkpoints.model_description import KEY, describe_model, read_model_description
from elastane.run.worker.checkpoints.state_reader import read_replicated_state
from elastane.run.worker.export import read_finished_run
from tests.hostile import STAND_INS, damaged_documents

from .lessons import Lesson, build_spec, train_elastic
from .test_model_file import SHARD_BYTES, Tied, finish

FUZZ = settings(max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))
INDEX = "model.safetensors.index.json"
CONFIG = {"architectures": ["Any"], "hidden_size": 8}


@pytest.fixture(scope="module")
def learned():
    return train_elastic(Lesson(Tied))


@pytest.fixture(scope="module")
def finished(learned, tmp_path_factory):
    """A run directory with a finished model in shards, a configuration, and the optimizer's state."""
    wishes = {"max_shard_bytes": SHARD_BYTES, "save_optimizer": True}
    folder = finish(learned, tmp_path_factory.mktemp("finished"), **wishes)
    record = RunRecord(spec=build_spec(**wishes), created="2026-11-23T00:00:00Z")
    (folder / "run.json").write_bytes(msgspec.json.encode(record))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def read_all(folder):
    """Read every tensor and every text, as an export does."""
    trained = read_finished_run(RunDir(folder), optimizer=True)
    for tensors in (trained.model, trained.optimizer.tensors):
        for name in tensors.descriptions:
            tensors.read_tensor(name)
    return trained


def catch_error(read):
    """Call ``read``; return the error, None without one."""
    try:
        read()
    except ElastaneError as error:
        return error
    return None


def test_an_undamaged_run_is_read(finished):
    assert read_all(finished).texts["config.json"]


@FUZZ
@given(data=st.data(), name=st.sampled_from([INDEX, "run.json", "config.json"]))
def test_a_damaged_file_of_a_run_is_refused(finished, data, name):
    before = (finished / name).read_bytes()
    (finished / name).write_bytes(data.draw(damaged_documents(before)))
    error = catch_error(lambda: read_all(finished))
    (finished / name).write_bytes(before)
    assert error is None or str(finished) in error.what or "no file of the model" in error.what


@FUZZ
@given(data=st.data(), key=st.sampled_from(["param_groups", "plain", "optimizer"]))
def test_damaged_metadata_of_the_optimizer_is_refused(finished, data, key):
    file = finished / "optimizer.safetensors"
    before = file.read_bytes()
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    text = metadata[key] if key != "optimizer" else json.dumps(metadata[key])
    metadata[key] = data.draw(damaged_documents(text.encode())).decode(errors="replace")
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata)
    error = catch_error(lambda: read_all(finished))
    file.write_bytes(before)
    assert error is None or "metadata" in error.what


def test_a_tensor_with_a_data_type_that_no_run_has_is_refused(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shard = min(folder.glob("model-*.safetensors"))
    tensors = safetensors.torch.load_file(shard)
    safetensors.torch.save_file({name: one.to(torch.float8_e8m0fnu) for name, one in tensors.items()}, shard)
    with pytest.raises(BadInput, match="data type that no run trains"):
        read_all(folder)


@pytest.mark.parametrize("where", ["../elsewhere.safetensors", "/elsewhere.safetensors", "..", ""])
def test_an_index_cannot_name_a_file_outside_the_folder(finished, tmp_path, where):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    index = json.loads((folder / INDEX).read_bytes())
    name = next(iter(index["weight_map"]))
    safetensors.torch.save_file({name: torch.zeros(1)}, tmp_path / "elsewhere.safetensors")
    index["weight_map"][name] = where
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadInput):
        read_all(folder)


@pytest.mark.parametrize("stand_in", STAND_INS.values(), ids=STAND_INS)
@pytest.mark.parametrize("name", [INDEX, "config.json"])
def test_only_regular_files_are_read(finished, tmp_path, stand_in, name):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / name).unlink()
    stand_in(folder / name)
    trained = []
    # Other entries than files are refused or ignored.
    assert catch_error(lambda: trained.append(read_all(folder))) or name not in trained[0].texts


def test_a_link_to_another_file_is_not_exported(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (tmp_path / "secret.json").write_text("{}")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(BadInput, match=r"config\.json"):
        read_all(folder)


@FUZZ
@given(data=st.data())
def test_a_damaged_manifest_is_reported_as_damaged(learned, data):
    state = learned.run._trainer.state
    rest, _ = state.replicated.describe()
    outline = msgspec.json.encode(describe_model(state, None))
    plain = {"rest": data.draw(damaged_documents(json.dumps(rest).encode())).decode(errors="replace")}
    drawn = data.draw(damaged_documents(outline))
    try:
        plain[KEY] = msgspec.json.decode(drawn)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        plain[KEY] = None
    manifest = Manifest(name="step-00000003", step=3, created="", parts=(), plain=plain)
    for read in (read_replicated_state, read_model_description):
        error = catch_error(lambda read=read: read(manifest))
        assert error is None or isinstance(error, Damaged)
