"""Checkpoints over the S3 protocol, against a real server on loopback."""

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

from elastane.common.errors import BadInput, NoSuchFile, StorageError
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage import hashing, remote
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.checkpoints import MARKER, Retention, format_checkpoint_name
from elastane.run.worker.checkpoints.reader import CheckpointReader, ReadRequest
from elastane.run.worker.export import export_to_store
from elastane.run.worker.finished.formats import TrainedModel
from elastane.run.worker.finished.named_tensors import MemoryTensors
from tests.lazy_modules import LazyModule

from .saving import save

boto3 = LazyModule("boto3")
s3fs = LazyModule("s3fs")

# s3fs closes its sockets when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

MULTIPART = 5 << 20
"""The smallest piece of a multipart upload of S3; larger files are uploaded in pieces."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch, request):
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    # fsspec caches them for the whole process, with the endpoint of the first test.
    s3fs.S3FileSystem.clear_instance_cache()
    name = request.node.name.replace("_", "-")[:60].strip("-")
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    yield client, name
    client.close()


@pytest.fixture
def catalog(bucket):
    return Catalog(open_storage(f"s3://{bucket[1]}/runs/a/checkpoints"))


def weights(step, elements=50):
    return {"w": torch.arange(float(elements)) * step}


def restore(catalog, elements=50):
    def attempt(manifest):
        into = torch.empty(elements)
        with CheckpointReader(catalog.storage, manifest) as reader:
            reader.read_many([ReadRequest("model.w", 0, elements, into)])
        return into

    return catalog.restore_newest(attempt)


def test_checkpoints_are_published_verified_restored_and_pruned(catalog):
    with pytest.raises(NoSuchFile):
        restore(catalog)
    for step in (1, 2, 3):
        save(catalog, step, weights(step))
    assert [summary.state for summary in catalog.list_summaries()] == ["complete"] * 3
    assert catalog.verify(format_checkpoint_name(3)) == ()
    values, manifest, passed = restore(catalog)
    assert (manifest.step, passed) == (3, ())
    assert torch.equal(values, weights(3)["w"])
    assert [d.name for d in catalog.prune(Retention(last=1))] == [
        format_checkpoint_name(1),
        format_checkpoint_name(2),
    ]
    assert catalog.list_names() == [format_checkpoint_name(3)]


def test_a_listing_shows_files_that_another_worker_has_just_written(catalog, bucket):
    save(catalog, 1, weights(1))
    assert catalog.list_names() == [format_checkpoint_name(1)]
    other = Catalog(open_storage(catalog.storage.url))
    save(other, 2, weights(2))
    assert catalog.list_names() == [format_checkpoint_name(1), format_checkpoint_name(2)]
    assert restore(catalog)[1].step == 2
    other.delete(format_checkpoint_name(2))
    assert restore(catalog)[1].step == 1


def test_large_files_are_uploaded_in_pieces_and_read_in_ranges(catalog, bucket, monkeypatch):
    monkeypatch.setattr(remote, "UPLOAD_BYTES", MULTIPART)
    monkeypatch.setattr(hashing, "BATCH_BYTES", 1 << 20)
    elements = 3 << 20
    manifest = save(catalog, 1, weights(1, elements), borders=[1 << 20, 2 << 20], writers=1)
    client, name = bucket
    key = f"runs/a/checkpoints/{manifest.name}/part-0.distcp"
    # The ETag of a multipart upload ends in the number of its pieces.
    assert client.head_object(Bucket=name, Key=key)["ETag"].strip('"').endswith("-3")
    assert catalog.verify(manifest.name) == ()
    assert torch.equal(restore(catalog, elements)[0], weights(1, elements)["w"])


def test_an_abandoned_upload_leaves_no_object(catalog, bucket, monkeypatch):
    monkeypatch.setattr(remote, "UPLOAD_BYTES", MULTIPART)

    def break_off():
        yield bytes(2 * MULTIPART)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.write(format_checkpoint_name(1), "part-0.distcp", break_off())
    client, name = bucket
    assert client.list_objects_v2(Bucket=name)["KeyCount"] == 0
    assert "Uploads" not in client.list_multipart_uploads(Bucket=name)


def test_a_restore_names_a_changed_object_and_uses_an_older_checkpoint(catalog, bucket):
    save(catalog, 1, weights(1))
    manifest = save(catalog, 2, weights(2))
    part = next(part for part in manifest.parts if part.items)
    client, name = bucket
    key = f"runs/a/checkpoints/{manifest.name}/{part.name}"
    data = bytearray(client.get_object(Bucket=name, Key=key)["Body"].read())
    data[part.items[0].raw_offset + 2] ^= 1
    client.put_object(Bucket=name, Key=key, Body=bytes(data))
    assert [damage.file for damage in catalog.verify(manifest.name)] == [part.name]
    _, used, passed = restore(catalog)
    assert used.step == 1
    assert part.name in str(passed[0])


def test_a_checkpoint_with_a_torn_marker_is_not_used(catalog, bucket):
    save(catalog, 1, weights(1))
    save(catalog, 2, weights(2))
    client, name = bucket
    client.put_object(
        Bucket=name, Key=f"runs/a/checkpoints/{format_checkpoint_name(2)}/{MARKER}", Body=b'{"bytes":12'
    )
    assert restore(catalog)[1].step == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_plain_pytorch_reads_a_checkpoint_with_its_own_fsspec_reader(catalog, bucket):
    manifest = save(catalog, 1, weights(4))
    found = {"model": {"w": torch.zeros(50)}}
    reader = FsspecReader(f"{catalog.storage.url}/{manifest.name}")
    dcp.load(found, storage_reader=reader, no_dist=True)
    assert torch.equal(found["model"]["w"], weights(4)["w"])


def test_refusals_of_s3_become_storage_errors(bucket, monkeypatch):
    with pytest.raises(StorageError, match="cannot write s3://no-such-bucket/x"):
        open_storage("s3://no-such-bucket").write("x", [b"1"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    place = open_storage(f"s3://{bucket[1]}/elsewhere")
    place._fs.config_kwargs["retries"] = {"max_attempts": 1}
    with pytest.raises(StorageError):
        place.list_directories()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_export_is_uploaded_and_overwrites_nothing(bucket):
    trained = TrainedModel(MemoryTensors({"w": torch.arange(50.0)}), max_shard_bytes=1 << 20)
    url = f"s3://{bucket[1]}/models/a"
    done = export_to_store(trained, "dcp", url)
    assert (done.out, [*done.files][-1]) == (url, ".metadata")
    found = {"model": {"w": torch.zeros(50)}}
    dcp.load(found, storage_reader=FsspecReader(url), no_dist=True)
    assert torch.equal(found["model"]["w"], torch.arange(50.0))
    with pytest.raises(BadInput, match=f"{url} has files already"):
        export_to_store(trained, "torch", url)
