"""An object store with the protocol of S3 on this machine, for tests whose clients read their environment."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def serve_object_store(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Iterator[None]:
    """Serve a store with an empty bucket; this process and its children find it by their variables."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    # fsspec caches them for the whole process, with the endpoint of the first test.
    s3fs.S3FileSystem.clear_instance_cache()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield
    finally:
        server.stop()
